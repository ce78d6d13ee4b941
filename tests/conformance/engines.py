"""Engine workers and schedulers made of the real, unmodified client classes of lmcache 0.5.2.

Goal: do what a vLLM worker and scheduler do over the wire, with KV bytes that everybody can
predict.
Method: paged KV tensors on the CPU, the client's own request client and transfer contexts. The KV
of a chunk is a function of model, salt, layout, rank and all tokens up to its end, as in a real
engine: whoever retrieves can tell right bytes from wrong ones without having seen the writer.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import random
import time
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
import zmq
from lmcache.integration.vllm.vllm_multi_process_adapter import send_lmcache_request
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.mq import MessageQueueClient
from lmcache.v1.multiprocess.protocol import RequestType, get_response_class
from lmcache.v1.multiprocess.transfer_context import create_transfer_context
from lmcache.v1.multiprocess.transfer_context import shm as client_shm

CALL_SECONDS = 20.0

_request_numbers = itertools.count()


def context() -> zmq.Context[Any]:
    """This process's context, with sockets that do not hold up its end."""
    shared: zmq.Context[Any] = zmq.Context.instance()
    shared.linger = 0
    return shared


class Client:
    """The real request client with blocking calls; the first is GET_CHUNK_SIZE, as usual."""

    def __init__(self, url: str) -> None:
        self.mq = MessageQueueClient(url, context())
        self.chunk_tokens: int = self.call(RequestType.GET_CHUNK_SIZE)

    def call(self, operation: RequestType, *payloads: Any, seconds: float = CALL_SECONDS) -> Any:
        """Submit and wait; a reply that does not come in time fails the test."""
        future = self.mq.submit_request(operation, list(payloads), get_response_class(operation))
        return future.result(timeout=seconds)

    def close(self) -> None:
        """Close the connection."""
        self.mq.close()


@dataclass(frozen=True)
class KvLayout:
    """How an engine keeps its KV: the shape of one layer's paged tensor."""

    dtype: torch.dtype = torch.bfloat16
    layers: int = 2
    heads: int = 2
    head_size: int = 4
    block_tokens: int = 4
    mla: bool = False

    def block_shape(self) -> tuple[int, ...]:
        """What one block holds in one plane of one layer."""
        if self.mla:
            return (self.block_tokens, self.head_size)
        return (self.heads, self.block_tokens, self.head_size)

    def tensors(self, blocks: int) -> dict[str, torch.Tensor]:
        """Zeroed paged tensors, one per layer; five dimensions are read head-major on the CPU."""
        shape = (blocks, *self.block_shape()) if self.mla else (2, blocks, *self.block_shape())
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


def _byte_count(shape: Sequence[int], dtype: torch.dtype) -> int:
    return int(numpy.prod(shape)) * dtype.itemsize


def _byte_shape(shape: Sequence[int], dtype: torch.dtype) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] * dtype.itemsize)


@dataclass
class Prompt:
    """The tokens of one engine request."""

    tokens: list[int]
    salt: str = ""
    request_id: str = field(default_factory=lambda: f"request-{next(_request_numbers)}")

    def again(self) -> Prompt:
        """The same prompt as another request."""
        return Prompt(self.tokens, self.salt)

    def cut(self, tokens: int) -> Prompt:
        """Its first tokens, as the same request."""
        return Prompt(self.tokens[:tokens], self.salt, self.request_id)


def random_prompt(tokens: int, salt: str = "", seed: int | None = None) -> Prompt:
    """A prompt that no other test uses, unless the seed is the same."""
    source = random.Random(seed) if seed is not None else random.SystemRandom()
    return Prompt([source.randrange(1 << 32) for _ in range(tokens)], salt)


@contextlib.contextmanager
def pool_that_cannot_be_mapped() -> Iterator[None]:
    """Within, the client cannot open the server's segment, as if it ran as another user."""

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("the segment belongs to another user")

    genuine = client_shm.shared_memory
    client_shm.shared_memory = types.SimpleNamespace(SharedMemory=refuse)  # type: ignore[assignment]
    try:
        yield
    finally:
        client_shm.shared_memory = genuine


class Worker:
    """One engine worker: paged tensors, a registration, and the calls of a vLLM worker."""

    def __init__(
        self,
        url: str,
        *,
        model: str = "model",
        layout: KvLayout = KvLayout(),
        world_size: int = 1,
        worker_id: int = 0,
        blocks: int = 128,
        maps_pool: bool = True,
    ) -> None:
        self.client = Client(url)
        self.model, self.layout = model, layout
        self.world_size, self.worker_id = world_size, worker_id
        self.instance_id = random.SystemRandom().getrandbits(63)
        self.kv = layout.tensors(blocks)
        self._free = random.Random(self.instance_id).sample(range(blocks), blocks)
        self._maps_pool = maps_pool
        self.transfer = create_transfer_context(self.kv, mode="engine_driven")
        self.register()

    @property
    def chunk_blocks(self) -> int:
        """Engine blocks in one chunk."""
        return self.client.chunk_tokens // self.layout.block_tokens

    @property
    def context(self) -> Any:
        """The client's SHM or pickle context."""
        return self.transfer.engine_driven_context  # type: ignore[attr-defined]

    @property
    def uses_shm(self) -> bool:
        """Whether this worker's client maps the pool."""
        return isinstance(self.context, client_shm.EngineDrivenContextShm)

    def register(self) -> None:
        """REGISTER, as at start and after a recovery."""
        blocked = contextlib.nullcontext() if self._maps_pool else pool_that_cannot_be_mapped()
        with blocked:
            self.transfer.register(
                self.instance_id, self.kv, self.model, self.world_size, self.chunk_blocks,
                self.client.mq, CALL_SECONDS, send_request=send_lmcache_request,
            )  # fmt: skip

    def unregister(self) -> None:
        """UNREGISTER this instance."""
        self.client.call(RequestType.UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, self.instance_id)

    def close(self, *, unregister: bool = True) -> None:
        """Shut down as the vLLM adapter does."""
        if unregister:
            self.unregister()
        with contextlib.suppress(BufferError):  # a test may still hold views of the pool
            self.transfer.close()
        self.client.close()

    def key(self, prompt: Prompt, first: int, last: int) -> IPCCacheServerKey:
        """The key of chunks [first, last) of a prompt."""
        return IPCCacheServerKey(
            model_name=self.model,
            world_size=self.world_size,
            worker_id=self.worker_id,
            token_ids=tuple(prompt.tokens),
            start=first * self.client.chunk_tokens,
            end=last * self.client.chunk_tokens,
            request_id=prompt.request_id,
            cache_salt=prompt.salt,
        )

    def take_blocks(self, chunks: int) -> list[int]:
        """Blocks for that many chunks, in no particular order."""
        wanted = chunks * self.chunk_blocks
        assert wanted <= len(self._free), "the worker's KV cache is too small for this test"
        taken, self._free = self._free[:wanted], self._free[wanted:]
        return taken

    def give_blocks(self, blocks: list[int]) -> None:
        """Take blocks back."""
        self._free.extend(blocks)

    def store(self, prompt: Prompt, first: int, last: int) -> bool:
        """Compute chunks [first, last) and store them; what the engine sees as the result."""
        blocks = self.take_blocks(last - first)
        self._write(blocks, self.expected(prompt, first, last))
        stored = self.transfer.submit_store(
            prompt.request_id, self.key(prompt, first, last), self.instance_id, self.kv,
            [blocks], None, self.chunk_blocks,
        ).result(timeout=CALL_SECONDS)  # fmt: skip
        self.give_blocks(blocks)
        return bool(stored)

    def retrieve(self, prompt: Prompt, first: int, last: int) -> bool:
        """Retrieve chunks [first, last); a success with wrong bytes fails the test."""
        blocks = self.take_blocks(last - first)
        self._write(blocks, bytes([0xEE]) * ((last - first) * self.chunk_bytes))
        found = self.transfer.submit_retrieve(
            prompt.request_id, self.key(prompt, first, last), self.instance_id, self.kv,
            [blocks], None, self.chunk_blocks,
        ).result(timeout=CALL_SECONDS)  # fmt: skip
        if found:
            self.assert_bytes(self._read(blocks), self.expected(prompt, first, last))
        self.give_blocks(blocks)
        return bool(found)

    def retrieved_chunks(self, prompt: Prompt, first: int, last: int) -> list[bytes] | None:
        """PREPARE and COMMIT_RETRIEVE only: each chunk's bytes as they came, or None."""
        key = self.key(prompt, first, last)
        tensors = self.context.prepare_retrieve(key, self.instance_id)
        chunks = None
        if tensors is not None:
            chunks = [bytes(tensor.contiguous().view(torch.uint8).numpy()) for tensor in tensors]
        self.context.commit_retrieve(key, self.instance_id)
        return chunks

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk of this rank."""
        return self.layout.chunk_bytes(self.client.chunk_tokens)

    def expected(self, prompt: Prompt, first: int, last: int) -> bytes:
        """The KV of chunks [first, last): by chunk, by layer, in the paged tensors' order."""
        layout = self.layout
        who = (self.model, prompt.salt, self.worker_id, self.world_size, str(layout))
        digest = hashlib.blake2b(repr(who).encode()).digest()
        made = []
        for chunk in range(last):
            tokens = prompt.tokens[chunk * self.client.chunk_tokens :][: self.client.chunk_tokens]
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

    def _chunk_array(self, content: bytes) -> numpy.ndarray:
        layout = self.layout
        planes = () if layout.mla else (2,)
        inner = _byte_shape(layout.block_shape(), layout.dtype)
        shape = (-1, layout.layers, *planes, self.chunk_blocks, *inner)
        return numpy.frombuffer(content, dtype=numpy.uint8).reshape(shape)

    def _paged(self, layer: int) -> numpy.ndarray:
        """A writable byte view of one layer with the blocks in front."""
        view = self.kv[f"layer.{layer}"].view(torch.uint8).numpy()
        return view if self.layout.mla else view.swapaxes(0, 1)

    def _write(self, blocks: list[int], content: bytes) -> None:
        chunks = self._chunk_array(content)
        if not self.layout.mla:
            chunks = chunks.swapaxes(2, 3)
        for layer in range(self.layout.layers):
            by_block = chunks[:, layer].reshape(len(blocks), *chunks.shape[3:])
            self._paged(layer)[blocks] = by_block

    def _read(self, blocks: list[int]) -> bytes:
        layers = []
        for layer in range(self.layout.layers):
            by_block = self._paged(layer)[blocks]
            by_chunk = by_block.reshape(-1, self.chunk_blocks, *by_block.shape[1:])
            layers.append(by_chunk if self.layout.mla else by_chunk.swapaxes(1, 2))
        return numpy.ascontiguousarray(numpy.stack(layers, axis=1)).tobytes()

    @staticmethod
    def assert_bytes(found: bytes, wanted: bytes) -> None:
        """Compare without printing megabytes."""
        assert len(found) == len(wanted)
        if found != wanted:
            different = numpy.frombuffer(found, numpy.uint8) != numpy.frombuffer(
                wanted, numpy.uint8
            )
            places = numpy.flatnonzero(different)
            raise AssertionError(
                f"{len(places)} of {len(wanted)} bytes differ, first at {places[0]}"
            )


class Scheduler:
    """One engine scheduler: lookups and what belongs to them."""

    def __init__(
        self, url: str, *, model: str = "model", world_size: int = 1, tp_size: int | None = None
    ) -> None:
        self.client = Client(url)
        self.model, self.world_size = model, world_size
        self.tp_size = world_size if tp_size is None else tp_size

    def key(self, prompt: Prompt, start: int = 0, end: int | None = None) -> IPCCacheServerKey:
        """A scheduler's key; start and end in tokens."""
        return IPCCacheServerKey(
            model_name=self.model,
            world_size=self.world_size,
            worker_id=None,
            token_ids=tuple(prompt.tokens),
            start=start,
            end=len(prompt.tokens) if end is None else end,
            request_id=prompt.request_id,
            cache_salt=prompt.salt,
        )

    def submit_lookup(self, prompt: Prompt, start: int = 0, end: int | None = None) -> None:
        """LOOKUP alone."""
        answer = self.client.call(RequestType.LOOKUP, self.key(prompt, start, end), self.tp_size)
        assert answer is None

    def query(self, request_id: str) -> int | None:
        """One QUERY_PREFETCH_STATUS."""
        return self.client.call(RequestType.QUERY_PREFETCH_STATUS, request_id)

    def lookup(self, prompt: Prompt) -> int:
        """LOOKUP, then poll as the scheduler does; hits in chunks."""
        self.submit_lookup(prompt)
        deadline = time.monotonic() + CALL_SECONDS
        while (hits := self.query(prompt.request_id)) is None:
            assert time.monotonic() < deadline, "the lookup does not finish"
        return hits

    def hits(self, prompt: Prompt) -> int:
        """How many chunks a fresh request would hit; leaves no lock behind."""
        probe = prompt.again()
        found = self.lookup(probe)
        self.free(probe)
        self.end(probe)
        return found

    def free(self, prompt: Prompt, start: int = 0, end: int | None = None) -> None:
        """FREE_LOOKUP_LOCKS; start and end in tokens."""
        key = self.key(prompt, start, end)
        assert self.client.call(RequestType.FREE_LOOKUP_LOCKS, key, self.tp_size) is None

    def end(self, prompt: Prompt) -> None:
        """END_SESSION."""
        assert self.client.call(RequestType.END_SESSION, prompt.request_id) is None

    def close(self) -> None:
        """Close the connection."""
        self.client.close()
