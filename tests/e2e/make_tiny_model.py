#!/usr/bin/env python3
"""Write a tiny random Llama with a byte-level tokenizer into a folder; needs no network.

Goal: a model that a real engine loads in seconds and whose answers are the same in every run.
Method: a vocabulary of single bytes without merges, seeded random weights, saved in the usual
format.

Usage: make_tiny_model.py FOLDER   (needs torch, transformers, tokenizers)
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"


def byte_vocabulary() -> dict[str, int]:
    """The special tokens first, then one token for each of the 256 bytes."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return {token: index for index, token in enumerate([BEGIN, END, UNKNOWN, *characters])}


def save_tokenizer(folder: Path, vocabulary: dict[str, int]) -> None:
    """A byte-level tokenizer without merges, so that one character is one token."""
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END, unk_token=UNKNOWN
    )
    fast.save_pretrained(folder)


def save_model(folder: Path, vocabulary: dict[str, int]) -> None:
    """Four small layers with grouped-query attention and seeded weights, in bfloat16."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        bos_token_id=vocabulary[BEGIN],
        eos_token_id=vocabulary[END],
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = byte_vocabulary()
    save_tokenizer(folder, vocabulary)
    save_model(folder, vocabulary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
