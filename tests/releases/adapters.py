"""A vLLM engine without vLLM: the scheduler and worker adapters of a release, unmodified, with CPU
tensors.

They run in a driver process (driver.py). Their heartbeats are theirs; it is with them that an
engine finds out that its server was restarted.
"""

from __future__ import annotations

import random
from typing import Any

from kv import PagedKv, Rank, assert_bytes
from lmcache.integration.vllm.vllm_multi_process_adapter import LoadStoreOp
from polling import until
from prompts import Prompt
from release_client import CALL_SECONDS, Engine, ReleaseClient
from workers import LAYOUT

HEARTBEAT_SECONDS = 0.3


class AdapterEngine:
    """One scheduler and one worker."""

    def __init__(self, client: ReleaseClient, url: str, *, model: str = "adapter-model") -> None:
        self._client = client
        engine = Engine(url, model, LAYOUT.block_tokens)
        self.scheduler = client.scheduler_adapter(engine, HEARTBEAT_SECONDS)
        self.worker = client.worker_adapter(engine, HEARTBEAT_SECONDS)
        self.chunk_tokens: int = self.worker.lmcache_tokens_per_chunk
        self.kv = PagedKv(
            Rank(model), LAYOUT,
            chunk_tokens=self.chunk_tokens, blocks=64, head_major=client.head_major,
        )  # fmt: skip
        client.register_adapter(self.worker, self.kv)

    def identity(self) -> int:
        """The worker's instance id."""
        identity: int = self.worker.instance_id
        return identity

    def healthy(self) -> bool:
        """Whether both heartbeats say so."""
        return bool(self.worker.is_healthy and self.scheduler.is_healthy)

    def experimental(self) -> list[str]:
        """What the worker took from GET_EXPERIMENTAL."""
        return sorted(self.worker.experimental)

    def lookup(self, prompt: Prompt) -> int:
        """Hits in chunks, as the scheduler gets them step by step."""
        self.scheduler.maybe_submit_lookup_request(prompt.request_id, prompt.tokens, prompt.salt)

        def answer() -> list[int]:
            tokens = self.scheduler.check_lookup_result(prompt.request_id)
            return [] if tokens is None else [tokens]

        tokens = until(answer, "the lookup is done", CALL_SECONDS)[0]
        assert tokens % self.chunk_tokens == 0
        return tokens // self.chunk_tokens

    def store(self, prompt: Prompt, first: int, last: int) -> bool:
        """Store chunks [first, last); what the worker reports."""
        blocks = self.kv.take_blocks(last - first)
        self.kv.write(blocks, self.kv.expected(prompt, first, last))
        self.worker.submit_store_request(
            prompt.request_id, self._operation(prompt, first, last, blocks), None, prompt.salt
        )
        future = self.worker.store_futures.get(prompt.request_id)
        self.kv.give_blocks(blocks)
        return future is not None and bool(future.result(CALL_SECONDS))

    def retrieve(self, prompt: Prompt, first: int, last: int) -> bool:
        """Retrieve chunks [first, last); a success with wrong bytes fails the test."""
        blocks = self.kv.take_blocks(last - first)
        self.kv.spoil(blocks)
        self.worker.submit_retrieve_request(
            prompt.request_id, self._operation(prompt, first, last, blocks), None, prompt.salt
        )
        entry = self.worker.retrieve_futures.get(prompt.request_id)
        found = entry is not None and bool(entry[0].result(CALL_SECONDS))
        if found:
            assert_bytes(self.kv.read(blocks), self.kv.expected(prompt, first, last))
        self.kv.give_blocks(blocks)
        return found

    def _operation(self, prompt: Prompt, first: int, last: int, blocks: list[int]) -> Any:
        return LoadStoreOp(
            token_ids=prompt.tokens, block_ids=[blocks],
            start=first * self.chunk_tokens, end=last * self.chunk_tokens,
        )  # fmt: skip

    def free(self, prompt: Prompt, start: int, end: int) -> None:
        """FREE_LOOKUP_LOCKS without waiting; places in tokens."""
        self.scheduler.free_lookup_locks(prompt.tokens, start, end, prompt.request_id, prompt.salt)

    def finish(self, prompt: Prompt) -> None:
        """The request leaves the engine: the worker reports it, the scheduler ends its session."""
        reported, _ = self.worker.get_finished({prompt.request_id})
        assert reported == {prompt.request_id}
        self.scheduler.cleanup_lookup_result(prompt.request_id)
        self.scheduler.end_session(prompt.request_id)

    def round_trip(self, prompt: Prompt, chunks: int) -> None:
        """Store a prompt and get it back into other blocks, as two requests."""
        assert self.store(prompt, 0, chunks)
        question = prompt.again()
        assert self.lookup(question) == chunks
        assert self.retrieve(question, 0, chunks)
        for request in random.sample([prompt, question], 2):
            self.finish(request)

    def leave(self) -> None:
        """Stop as vLLM does."""
        self.worker.shutdown()
        self._client.stop_scheduler(self.scheduler)
