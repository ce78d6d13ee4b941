"""Engine workers and schedulers made of the real, unmodified client classes of lmcache 0.5.2.

Goal: do what a vLLM worker and scheduler do over the wire, with KV bytes that everybody can
predict.
Method: paged KV tensors on the CPU (kv.py), the client's own request client and transfer contexts.
Without an accelerator this client reads tensors of five dimensions head-major.
"""

from __future__ import annotations

import contextlib
import random
import time
import types
from collections.abc import Iterator
from typing import Any

import torch
import zmq
from kv import KvLayout, PagedKv, Rank, assert_bytes
from lmcache.integration.vllm.vllm_multi_process_adapter import send_lmcache_request
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.mq import MessageQueueClient
from lmcache.v1.multiprocess.protocol import RequestType, get_response_class
from lmcache.v1.multiprocess.transfer_context import create_transfer_context
from lmcache.v1.multiprocess.transfer_context import shm as client_shm
from prompts import Prompt, random_prompt

__all__ = ["CALL_SECONDS", "Client", "KvLayout", "Prompt", "Scheduler", "Worker", "random_prompt"]

CALL_SECONDS = 20.0


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
        self.kv = PagedKv(
            Rank(model, world_size, worker_id), layout,
            chunk_tokens=self.client.chunk_tokens, blocks=blocks,
        )  # fmt: skip
        self._maps_pool = maps_pool
        self.transfer = create_transfer_context(self.kv.tensors, mode="engine_driven")
        self.register()

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
                self.instance_id, self.kv.tensors, self.model, self.world_size,
                self.kv.chunk_blocks, self.client.mq, CALL_SECONDS,
                send_request=send_lmcache_request,
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

    def store(self, prompt: Prompt, first: int, last: int) -> bool:
        """Compute chunks [first, last) and store them; what the engine sees as the result."""
        blocks = self.kv.take_blocks(last - first)
        self.kv.write(blocks, self.kv.expected(prompt, first, last))
        stored = self.transfer.submit_store(
            prompt.request_id, self.key(prompt, first, last), self.instance_id, self.kv.tensors,
            [blocks], None, self.kv.chunk_blocks,
        ).result(timeout=CALL_SECONDS)  # fmt: skip
        self.kv.give_blocks(blocks)
        return bool(stored)

    def retrieve(self, prompt: Prompt, first: int, last: int) -> bool:
        """Retrieve chunks [first, last); a success with wrong bytes fails the test."""
        blocks = self.kv.take_blocks(last - first)
        self.kv.spoil(blocks)
        found = self.transfer.submit_retrieve(
            prompt.request_id, self.key(prompt, first, last), self.instance_id, self.kv.tensors,
            [blocks], None, self.kv.chunk_blocks,
        ).result(timeout=CALL_SECONDS)  # fmt: skip
        if found:
            assert_bytes(self.kv.read(blocks), self.kv.expected(prompt, first, last))
        self.kv.give_blocks(blocks)
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

    def object_bytes(self, prompt: Prompt, first: int, last: int) -> list[bytes]:
        """The objects that the client makes of chunks [first, last)."""
        return self.kv.object_bytes(prompt, first, last)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk of this rank."""
        return self.kv.chunk_bytes


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
