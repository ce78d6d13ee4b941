"""Paged KV tensors whose bytes follow from the tokens.

Goal: whoever retrieves can tell right bytes from wrong ones without having seen the writer, in
another process or with another release of the client.
Method: the KV of a chunk is a function of model, salt, layout, rank and all tokens up to its end,
as in a real engine. It is written in one order here, and put into the paged tensors as the engine
keeps them; lmcache is not imported.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from prompts import Prompt


def _byte_count(shape: Sequence[int], dtype: torch.dtype) -> int:
    return int(numpy.prod(shape)) * dtype.itemsize


def _byte_shape(shape: Sequence[int], dtype: torch.dtype) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] * dtype.itemsize)


@dataclass(frozen=True)
class KvLayout:
    """How an engine keeps its KV: the shape of one layer's paged tensor."""

    dtype: torch.dtype = torch.bfloat16
    layers: int = 2
    heads: int = 2
    head_size: int = 4
    block_tokens: int = 4
    mla: bool = False

    def block_shape(self, *, head_major: bool = True) -> tuple[int, ...]:
        """What one block holds in one plane of one layer."""
        if self.mla:
            return (self.block_tokens, self.head_size)
        if head_major:
            return (self.heads, self.block_tokens, self.head_size)
        return (self.block_tokens, self.heads, self.head_size)

    def tensors(self, blocks: int, *, head_major: bool = True) -> dict[str, torch.Tensor]:
        """Zeroed paged tensors, one per layer."""
        block = self.block_shape(head_major=head_major)
        shape = (blocks, *block) if self.mla else (2, blocks, *block)
        return {
            f"layer.{layer}": torch.zeros(_byte_shape(shape, self.dtype), dtype=torch.uint8)
            .view(self.dtype)
            .view(shape)
            for layer in range(self.layers)
        }

    def chunk_bytes(self, chunk_tokens: int) -> int:
        """Bytes of one chunk of one rank."""
        planes = 1 if self.mla else 2
        blocks = chunk_tokens // self.block_tokens
        return planes * self.layers * blocks * _byte_count(self.block_shape(), self.dtype)


@dataclass(frozen=True)
class Rank:
    """Whose KV it is: one rank of one model."""

    model: str
    world_size: int = 1
    worker_id: int = 0


class WrongBytes(AssertionError):
    """What was retrieved is not what was stored; nothing excuses it."""


def assert_bytes(found: bytes, wanted: bytes) -> None:
    """Compare without printing megabytes."""
    if len(found) != len(wanted):
        raise WrongBytes(f"{len(found)} bytes instead of {len(wanted)}")
    if found != wanted:
        different = numpy.frombuffer(found, numpy.uint8) != numpy.frombuffer(wanted, numpy.uint8)
        places = numpy.flatnonzero(different)
        raise WrongBytes(f"{len(places)} of {len(wanted)} bytes differ, first at {places[0]}")


class PagedKv:
    """The paged tensors of one rank, its free blocks, and what the tensors should hold.

    `head_major` says how the client reads a tensor of five dimensions: [2, blocks, heads, tokens,
    head_size], or with tokens before heads. The bytes of a prompt, and of the objects made of it,
    do not depend on it.
    """

    def __init__(
        self,
        rank: Rank,
        layout: KvLayout,
        *,
        chunk_tokens: int,
        blocks: int,
        head_major: bool = True,
    ) -> None:
        self.rank, self.layout = rank, layout
        self.chunk_tokens = chunk_tokens
        self.tensors = layout.tensors(blocks, head_major=head_major)
        self._head_major = head_major
        self._free = random.SystemRandom().sample(range(blocks), blocks)

    @property
    def chunk_blocks(self) -> int:
        """Engine blocks in one chunk."""
        return self.chunk_tokens // self.layout.block_tokens

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk of this rank."""
        return self.layout.chunk_bytes(self.chunk_tokens)

    def take_blocks(self, chunks: int) -> list[int]:
        """Blocks for that many chunks, in no particular order."""
        wanted = chunks * self.chunk_blocks
        assert wanted <= len(self._free), "the worker's KV cache is too small for this test"
        taken, self._free = self._free[:wanted], self._free[wanted:]
        return taken

    def give_blocks(self, blocks: list[int]) -> None:
        """Take blocks back."""
        self._free.extend(blocks)

    def expected(self, prompt: Prompt, first: int, last: int) -> bytes:
        """The KV of chunks [first, last): chunk, layer, [plane,] block, [head,] token, element."""
        layout, rank = self.layout, self.rank
        who = (rank.model, prompt.salt, rank.worker_id, rank.world_size, str(layout))
        digest = hashlib.blake2b(repr(who).encode()).digest()
        made = []
        for chunk in range(last):
            tokens = prompt.tokens[chunk * self.chunk_tokens :][: self.chunk_tokens]
            digest = hashlib.blake2b(digest + repr(tokens).encode()).digest()
            if chunk >= first:
                made.append(hashlib.shake_128(digest).digest(self.chunk_bytes))
        joined = b"".join(made)
        if layout.dtype is torch.bool:
            joined = bytes(byte & 1 for byte in joined)
        return joined

    def object_bytes(self, prompt: Prompt, first: int, last: int) -> list[bytes]:
        """The same KV as the client packs it into objects: [plane,] layer, token, head, element."""
        itemsize = self.layout.dtype.itemsize
        chunks = self._chunk_array(self.expected(prompt, first, last))
        if self.layout.mla:  # chunk, layer, block, token, bytes
            return [bytes(chunk) for chunk in chunks.reshape(last - first, -1)]
        # chunk, layer, plane, block, head, token, bytes
        # -> chunk, plane, layer, block, token, head, bytes
        packed = numpy.ascontiguousarray(chunks.transpose(0, 2, 1, 3, 5, 4, 6))
        assert packed.shape[-1] == self.layout.head_size * itemsize
        return [bytes(chunk) for chunk in packed.reshape(last - first, -1)]

    def write(self, blocks: list[int], content: bytes) -> None:
        """Put content, ordered as `expected` orders it, into blocks."""
        chunks = self._chunk_array(content)
        if not self.layout.mla:
            chunks = chunks.swapaxes(2, 3)
        for layer in range(self.layout.layers):
            by_block = chunks[:, layer].reshape(len(blocks), *chunks.shape[3:])
            self._paged(layer)[blocks] = by_block

    def spoil(self, blocks: list[int]) -> None:
        """Overwrite blocks with what nobody stores."""
        self.write(blocks, bytes([0xEE]) * (len(blocks) // self.chunk_blocks * self.chunk_bytes))

    def read(self, blocks: list[int]) -> bytes:
        """The content of blocks, ordered as `expected` orders it."""
        layers = []
        for layer in range(self.layout.layers):
            by_block = self._paged(layer)[blocks]
            by_chunk = by_block.reshape(-1, self.chunk_blocks, *by_block.shape[1:])
            layers.append(by_chunk if self.layout.mla else by_chunk.swapaxes(1, 2))
        return numpy.ascontiguousarray(numpy.stack(layers, axis=1)).tobytes()

    def _chunk_array(self, content: bytes) -> numpy.ndarray[Any, Any]:
        layout = self.layout
        planes = () if layout.mla else (2,)
        inner = _byte_shape(layout.block_shape(), layout.dtype)
        shape = (-1, layout.layers, *planes, self.chunk_blocks, *inner)
        return numpy.frombuffer(content, dtype=numpy.uint8).reshape(shape)

    def _paged(self, layer: int) -> numpy.ndarray[Any, Any]:
        """A writable byte view of one layer: block, [plane, head,] token, element."""
        view = self.tensors[f"layer.{layer}"].view(torch.uint8).numpy()
        if self.layout.mla:
            return view
        by_block = view.swapaxes(0, 1)
        return by_block if self._head_major else by_block.swapaxes(2, 3)
