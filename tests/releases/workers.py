"""Engine workers and schedulers of any release; they run in a driver process (driver.py).

Goal: do over the wire what a vLLM worker and scheduler of that release do, with bytes that
everybody can predict.
Method: the release's own request client and transfer context on paged tensors of kv.py. A retrieve
that succeeds with wrong bytes fails here.
"""

from __future__ import annotations

import contextlib
import random
import time
from typing import Any

from kv import KvLayout, PagedKv, Rank, assert_bytes
from prompts import Prompt
from release_client import (
    CALL_SECONDS,
    KeyFields,
    ReleaseClient,
    pool_that_cannot_be_mapped,
)

# Sizes that differ, so that no two axes can be taken for each other.
LAYOUT = KvLayout(layers=2, heads=3, head_size=8, block_tokens=4)


class Worker:
    """One engine worker: paged tensors, a registration, and the calls of a vLLM worker."""

    def __init__(
        self,
        client: ReleaseClient,
        url: str,
        *,
        model: str = "model",
        layout: KvLayout = LAYOUT,
        world_size: int = 1,
        worker_id: int = 0,
        blocks: int = 64,
        maps_pool: bool = True,
        server_driven: bool = False,
    ) -> None:
        self._client = client
        self.connection = client.connect(url)
        self.chunk_tokens: int = self.connection.call("get_chunk_size")
        self.instance_id = random.SystemRandom().getrandbits(63)
        self.kv = PagedKv(
            Rank(model, world_size, worker_id), layout,
            chunk_tokens=self.chunk_tokens, blocks=blocks, head_major=client.head_major,
        )  # fmt: skip
        self._maps_pool = maps_pool
        mode = client.server_driven if server_driven else client.engine_driven
        self.transfer = client.transfer(self.connection, self.kv, self.instance_id, mode)
        self.register()

    def register(self) -> None:
        """REGISTER, as at start and after a recovery."""
        blocked = contextlib.nullcontext() if self._maps_pool else pool_that_cannot_be_mapped()
        with blocked:
            self.transfer.register()

    def unregister(self) -> None:
        """UNREGISTER this instance."""
        self.transfer.unregister()

    def identity(self) -> int:
        """The instance id."""
        return self.instance_id

    def uses_shm(self) -> bool:
        """Whether the client maps the pool."""
        return self.transfer.uses_shm

    def ping(self) -> bool:
        """One heartbeat."""
        payloads = self._client.ping_payloads(self.instance_id)
        answer = self.connection.call("ping", *payloads)
        assert isinstance(answer, bool)
        return answer

    def key(self, prompt: Prompt, first: int, last: int) -> Any:
        """The key of chunks [first, last) of a prompt."""
        rank = self.kv.rank
        return self._client.key(
            KeyFields(
                rank.model, rank.world_size, rank.worker_id, tuple(prompt.tokens),
                first * self.chunk_tokens, last * self.chunk_tokens,
                prompt.request_id, prompt.salt,
            )
        )  # fmt: skip

    def store(self, prompt: Prompt, first: int, last: int) -> bool:
        """Compute chunks [first, last) and store them; what the engine sees as the result."""
        blocks = self.kv.take_blocks(last - first)
        self.kv.write(blocks, self.kv.expected(prompt, first, last))
        key = self.key(prompt, first, last)
        stored = self.transfer.store(prompt.request_id, key, blocks).result(timeout=CALL_SECONDS)
        self.kv.give_blocks(blocks)
        return bool(stored)

    def retrieve(self, prompt: Prompt, first: int, last: int) -> bool:
        """Retrieve chunks [first, last); a success with wrong bytes fails the test."""
        blocks = self.kv.take_blocks(last - first)
        self.kv.spoil(blocks)
        key = self.key(prompt, first, last)
        future = self.transfer.retrieve(prompt.request_id, key, blocks)
        found = future.result(timeout=CALL_SECONDS)
        if found:
            assert_bytes(self.kv.read(blocks), self.kv.expected(prompt, first, last))
        self.kv.give_blocks(blocks)
        return bool(found)

    def open_retrieve(self, prompt: Prompt, first: int, last: int) -> bool:
        """PREPARE_RETRIEVE alone; whether the chunks came."""
        key = self.key(prompt, first, last)
        return self.transfer.data_path.prepare_retrieve(key, self.instance_id) is not None

    def open_store(self, prompt: Prompt, first: int, last: int) -> None:
        """PREPARE_STORE alone."""
        key = self.key(prompt, first, last)
        self.transfer.data_path.prepare_store(key, self.instance_id)

    def leave(self, *, unregister: bool = True) -> None:
        """Shut down as the vLLM adapter does, or, without unregistering, as a killed one."""
        if unregister:
            self.unregister()
        with contextlib.suppress(BufferError):  # an open transfer may still hold views of the pool
            self.transfer.close()
        self.connection.close()


class Scheduler:
    """One engine scheduler: lookups and what belongs to them; places in tokens, hits in chunks."""

    def __init__(
        self,
        client: ReleaseClient,
        url: str,
        *,
        model: str = "model",
        world_size: int = 1,
        tp_size: int | None = None,
    ) -> None:
        self._client = client
        self.connection = client.connect(url)
        self.chunk_tokens: int = self.connection.call("get_chunk_size")
        self.model, self.world_size = model, world_size
        self.tp_size = world_size if tp_size is None else tp_size

    def _key(self, prompt: Prompt, start: int = 0, end: int | None = None) -> Any:
        whole = len(prompt.tokens) // self.chunk_tokens * self.chunk_tokens
        return self._client.key(
            KeyFields(
                self.model, self.world_size, None, tuple(prompt.tokens),
                start, whole if end is None else end, prompt.request_id, prompt.salt,
                readers=max(1, self.tp_size // self.world_size),
            )
        )  # fmt: skip

    def submit_lookup(self, prompt: Prompt, end: int | None = None) -> None:
        """LOOKUP alone."""
        answer = self.connection.call("lookup", self._key(prompt, 0, end), self.tp_size)
        assert answer is None

    def query(self, request_id: str) -> int | None:
        """One QUERY_PREFETCH_STATUS."""
        answer: int | None = self.connection.call("query_prefetch_status", request_id)
        return answer

    def wait(self, request_id: str, seconds: float) -> int | None:
        """WAIT_PREFETCH_STATUS."""
        answer: int | None = self.connection.call("wait_prefetch_status", request_id, seconds)
        return answer

    def expected_hits(self, request_id: str) -> int | None:
        """QUERY_PREFETCH_LOOKUP_HITS."""
        answer: int | None = self.connection.call("query_prefetch_lookup_hits", request_id)
        return answer

    def lookup(self, prompt: Prompt, end: int | None = None) -> int:
        """LOOKUP, then poll as the scheduler does."""
        self.submit_lookup(prompt, end)
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
        """FREE_LOOKUP_LOCKS."""
        key = self._key(prompt, start, end)
        assert self.connection.call("free_lookup_locks", key, self.tp_size) is None

    def end(self, prompt: Prompt) -> None:
        """END_SESSION."""
        assert self.connection.call("end_session", prompt.request_id) is None

    def ping(self) -> bool:
        """A heartbeat that names nobody."""
        answer = self.connection.call("ping", *self._client.ping_payloads(None))
        assert isinstance(answer, bool)
        return answer

    def clear(self, force: bool = False) -> None:
        """CLEAR."""
        answer = self.connection.call("clear", *self._client.clear_payloads(force))
        assert answer is None

    def noop(self) -> str:
        """NOOP."""
        answer: str = self.connection.call("noop")
        return answer

    def experimental(self) -> list[str]:
        """GET_EXPERIMENTAL."""
        return list(self.connection.call("get_experimental"))

    def report_blocks(self) -> None:
        """REPORT_BLOCK_ALLOCATION."""
        from lmcache.v1.multiprocess.custom_types import BlockAllocationRecord

        records = [BlockAllocationRecord("request", [1, 2], [3, 4, 5])]
        answer = self.connection.call("report_block_allocation", 1, self.model, records)
        assert answer is None

    def blend_coverage(self, prompt: Prompt) -> dict[str, Any]:
        """CB_UNIFIED_LOOKUP; the fields of its answer."""
        answer = self.connection.call("cb_unified_lookup", self._key(prompt), self.tp_size)
        return {name: getattr(answer, name) for name in answer.__dataclass_fields__}

    def blend_handshake(self, version: int) -> list[Any]:
        """CB_PROTOCOL_HANDSHAKE."""
        return list(self.connection.call("cb_protocol_handshake", version))

    def subscribe(self) -> list[Any]:
        """SUBSCRIBE_KV_EVENTS: every batch until the server ends the stream."""
        return list(self.connection.submit("subscribe_kv_events", 1, self.model, 0, 16))

    def call_module(self, method: str) -> dict[str, Any]:
        """SERVER_MODULE_CALL."""
        from lmcache.v1.multiprocess.protocols.server_module import ServerModuleCallRequest

        request = ServerModuleCallRequest(method=method, payload=b"payload")
        answer = self.connection.call("server_module_call", request)
        return {"success": answer.success, "payload": answer.payload.hex(), "error": answer.error}

    def leave(self) -> None:
        """Close the connection."""
        self.connection.close()
