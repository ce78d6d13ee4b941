"""The KV tensors of an engine whose memory the server reads, in any of the forms that engines use.

Goal: after a retrieve, tell of every block of every layer whether it holds what it should, the blocks
that nobody may touch included.
Method: a block's bytes follow from model, layer, the prompt's tokens up to its chunk and its place in
it. Nothing here knows how objects are laid out: what comes back into a block must be what was taken
out of one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from kv import Rank, WrongBytes
from prompts import Prompt

SPOILED = 0xEE
NULL_BLOCK = 0


@dataclass(frozen=True)
class LayerForm:
    """One layer: the shape of its tensor and which blocks of a prompt it needs."""

    form: str = "kv_first"  # or blocks_first, fused, mla
    heads: int = 3
    head_size: int = 8
    block_tokens: int = 4
    window: int = -1  # tokens of a sliding window; -1: full attention
    group: int = 0  # the engine's group: its own block ids
    dtype: str = "bfloat16"

    def tensor(self, blocks: int, *, head_major: bool) -> torch.Tensor:
        """A zeroed paged tensor."""
        rows = (self.heads, self.block_tokens) if head_major else (self.block_tokens, self.heads)
        shape = {
            "kv_first": (2, blocks, *rows, self.head_size),
            "blocks_first": (blocks, 2, *rows, self.head_size),
            "fused": (blocks, *rows, 2 * self.head_size),
            "mla": (blocks, self.block_tokens, self.head_size),
        }[self.form]
        return torch.zeros(shape, dtype=getattr(torch, self.dtype))


@dataclass(frozen=True)
class Group:
    """Layers that share block ids."""

    number: int
    layers: tuple[int, ...]
    block_tokens: int
    window: int


class PagedLayers:
    """The tensors of one rank and their free blocks; block 0 is vLLM's null block and never free."""

    def __init__(
        self, rank: Rank, forms: Sequence[LayerForm], *, chunk_tokens: int, blocks: int,
        head_major: bool,
    ) -> None:  # fmt: skip
        self.rank, self.forms, self.chunk_tokens = rank, list(forms), chunk_tokens
        self.tensors = {
            f"layer.{layer}": form.tensor(blocks, head_major=head_major)
            for layer, form in enumerate(self.forms)
        }
        self.groups = [self._group(number) for number in sorted({form.group for form in forms})]
        self._free = {group.number: list(range(blocks - 1, 0, -1)) for group in self.groups}

    def _group(self, number: int) -> Group:
        layers = tuple(i for i, form in enumerate(self.forms) if form.group == number)
        first = self.forms[layers[0]]
        return Group(number, layers, first.block_tokens, first.window)

    @property
    def chunk_blocks(self) -> int:
        """Blocks of a chunk in the first group, which is all that the client asks for."""
        return self.chunk_tokens // self.groups[0].block_tokens

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk, in all layers."""
        blocks = {group.number: self.blocks_of(group, 1) for group in self.groups}
        return sum(
            self.view(layer)[0].size * blocks[form.group] for layer, form in enumerate(self.forms)
        )

    def blocks_of(self, group: Group, chunks: int) -> int:
        """Block ids that so many chunks take."""
        return chunks * self.chunk_tokens // group.block_tokens

    def take(self, chunks: int) -> list[list[int]]:
        """Blocks for so many chunks, a list a group."""
        taken = []
        for group in self.groups:
            free = self._free[group.number]
            wanted = self.blocks_of(group, chunks)
            assert wanted <= len(free), "the engine's KV cache is too small for this test"
            taken.append([free.pop() for _ in range(wanted)])
        return taken

    def give(self, lists: list[list[int]]) -> None:
        """Take blocks back."""
        for group, ids in zip(self.groups, lists, strict=True):
            self._free[group.number].extend(block for block in ids if block != NULL_BLOCK)

    def view(self, layer: int) -> numpy.ndarray[Any, Any]:
        """A writable byte view of a layer, block by block."""
        tensor = self.tensors[f"layer.{layer}"].view(torch.uint8).numpy()
        return tensor.swapaxes(0, 1) if self.forms[layer].form == "kv_first" else tensor

    def content(self, layer: int, prompt: Prompt, chunk: int, place: int) -> bytes:
        """What block number `place` of a chunk holds."""
        tokens = prompt.tokens[: (chunk + 1) * self.chunk_tokens]
        who = (self.rank.model, prompt.salt, self.rank.world_size, self.rank.worker_id, layer)
        name = repr((who, tokens, place)).encode()
        return hashlib.shake_128(name).digest(self.view(layer)[0].size)

    def write(self, prompt: Prompt, first: int, lists: list[list[int]]) -> None:
        """Compute the prompt's chunks from `first` on into blocks."""
        for group, ids in zip(self.groups, lists, strict=True):
            per_chunk = self.chunk_tokens // group.block_tokens
            for layer in group.layers:
                view = self.view(layer)
                for index, block in enumerate(ids):
                    made = self.content(layer, prompt, first + index // per_chunk, index % per_chunk)
                    view[block] = numpy.frombuffer(made, numpy.uint8).reshape(view[block].shape)

    def spoil(self) -> None:
        """Overwrite everything with what nobody stores."""
        for layer in range(len(self.forms)):
            self.view(layer)[:] = SPOILED

    def written_places(self, group: Group, chunks: int, skip_tokens: int) -> Iterable[int]:
        """Which of a retrieve's blocks are written: those in the window, not skipped."""
        blocks = self.blocks_of(group, chunks)
        per_chunk = self.chunk_tokens // group.block_tokens
        needed = blocks
        if group.window > 0:
            whole_chunks = -(-group.window // self.chunk_tokens)
            needed = min(whole_chunks * per_chunk, blocks)
            if group.window < self.chunk_tokens:
                needed = min(group.window // group.block_tokens, blocks)
        return range(max(blocks - needed, skip_tokens // group.block_tokens), blocks)

    def check(
        self, prompt: Prompt, first: int, lists: list[list[int]], *, skip_tokens: int = 0,
        retrieved: bool = True,
    ) -> None:  # fmt: skip
        """Every block of every layer: as retrieved where that was asked for, spoiled elsewhere."""
        for group, ids in zip(self.groups, lists, strict=True):
            per_chunk = self.chunk_tokens // group.block_tokens
            chunks = len(ids) // per_chunk
            places = self.written_places(group, chunks, skip_tokens) if retrieved else ()
            for layer in group.layers:
                view = self.view(layer)
                expected = numpy.full_like(view, SPOILED)
                for place in places:
                    made = self.content(layer, prompt, first + place // per_chunk, place % per_chunk)
                    target = expected[ids[place]]
                    target[:] = numpy.frombuffer(made, numpy.uint8).reshape(target.shape)
                if not numpy.array_equal(view, expected):
                    different = numpy.unique(numpy.argwhere(view != expected)[:, 0])
                    raise WrongBytes(
                        f"layer {layer}: blocks {different[:8].tolist()} differ; "
                        f"the request's are {ids}, written {list(places)}"
                    )
