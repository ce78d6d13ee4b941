"""The vLLM adapters of lmcache 0.5.2, unmodified, against a running server.

Goal: an engine's request from lookup to end of session, its heartbeat, and what happens to a
running engine when the server goes away and comes back: it must recover by itself, and never read
wrong bytes.
Method: the scheduler and worker adapters with CPU tensors and a heartbeat of a fraction of a
second.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from engines import KvLayout, Prompt, context, random_prompt
from larder_server import LarderServer
from lmcache.integration.vllm.vllm_multi_process_adapter import (
    LMCacheMPSchedulerAdapter,
    LMCacheMPWorkerAdapter,
    LoadStoreOp,
    ParallelStrategy,
)
from lmcache.v1.multiprocess.custom_types import BlockAllocationRecord
from lmcache.v1.platform.cpu.stub_cpu_device import StubEvent
from polling import until

CHUNK = 8
HEARTBEAT_SECONDS = 0.3


@pytest.fixture(scope="module")
def server() -> Iterator[LarderServer]:
    """The server of all tests that do not restart it."""
    with LarderServer(chunk_tokens=CHUNK) as shared:
        yield shared


def settings(mq_timeout: float = 20.0) -> dict[str, Any]:
    """What kv_connector_extra_config would hold."""
    return {
        "lmcache.mp.mq_timeout": mq_timeout,
        "lmcache.mp.heartbeat_interval": HEARTBEAT_SECONDS,
        "lmcache.mp.mp_transfer_mode": "engine_driven",
    }


def strategy(rank: int = 0, tp_size: int = 1, mla: bool = False) -> ParallelStrategy:
    """Tensor parallelism only."""
    return ParallelStrategy(
        use_mla=mla, vllm_world_size=tp_size, vllm_worker_id=rank, tp_size=tp_size, pp_size=1,
        n_servers=1,
    )  # fmt: skip


class Engine:
    """A scheduler adapter and one worker adapter per rank, with paged KV on the CPU."""

    BLOCKS = 64

    def __init__(
        self, url: str, *, model: str = "adapter-model", tp_size: int = 1, mla: bool = False
    ) -> None:
        self.layout = KvLayout(mla=mla)
        self.scheduler = LMCacheMPSchedulerAdapter(
            [url], context(), model, self.layout.block_tokens, strategy(0, tp_size, mla),
            extra_config=settings(),
        )  # fmt: skip
        self.workers = [
            LMCacheMPWorkerAdapter(
                url, context(), model, self.layout.block_tokens, strategy(rank, tp_size, mla),
                extra_config=settings(),
            )
            for rank in range(tp_size)
        ]  # fmt: skip
        self.kv = [self.layout.tensors(self.BLOCKS) for _ in self.workers]
        for worker, tensors in zip(self.workers, self.kv, strict=True):
            worker.register_kv_caches(tensors)

    @property
    def worker(self) -> LMCacheMPWorkerAdapter:
        """The first rank."""
        return self.workers[0]

    def blocks(self, chunks: int) -> list[int]:
        """Any blocks, in any order."""
        wanted = chunks * self.worker.num_blocks_per_chunk()
        return random.sample(range(self.BLOCKS), wanted)

    def lookup(self, prompt: Prompt) -> int:
        """Hits in chunks."""
        self.scheduler.maybe_submit_lookup_request(prompt.request_id, prompt.tokens, prompt.salt)
        found = until(
            lambda: (
                [tokens]
                if (tokens := self.scheduler.check_lookup_result(prompt.request_id)) is not None
                else None
            ),
            "the lookup is done",
        )
        assert found is not None and found[0] % CHUNK == 0
        return found[0] // CHUNK

    def fill(self, blocks: list[int], seed: int) -> None:
        """Write every rank's blocks with bytes made from a seed."""
        for rank, tensors in enumerate(self.kv):
            source = torch.Generator().manual_seed(seed if self.layout.mla else seed + rank)
            for tensor in tensors.values():
                area = self._area(tensor, blocks)
                made = torch.randint(0, 256, area.shape, dtype=torch.uint8, generator=source)
                self._put(tensor, blocks, made)

    def content(self, blocks: list[int]) -> list[torch.Tensor]:
        """Every rank's bytes of those blocks, layer after layer."""
        return [
            torch.cat([self._area(tensor, blocks).flatten() for tensor in tensors.values()])
            for tensors in self.kv
        ]

    def _area(self, tensor: torch.Tensor, blocks: list[int]) -> torch.Tensor:
        view = tensor.view(torch.uint8)
        return view[blocks] if self.layout.mla else view[:, blocks]

    def _put(self, tensor: torch.Tensor, blocks: list[int], made: torch.Tensor) -> None:
        view = tensor.view(torch.uint8)
        if self.layout.mla:
            view[blocks] = made
        else:
            view[:, blocks] = made

    def store(self, prompt: Prompt, first: int, last: int, blocks: list[int]) -> None:
        """All ranks store chunks [first, last)."""
        self._submit("submit_store_request", prompt, first, last, blocks)

    def retrieve(self, prompt: Prompt, first: int, last: int, blocks: list[int]) -> None:
        """All ranks retrieve chunks [first, last)."""
        self._submit("submit_retrieve_request", prompt, first, last, blocks)

    def _submit(
        self, method: str, prompt: Prompt, first: int, last: int, blocks: list[int]
    ) -> None:
        operation = LoadStoreOp(
            token_ids=prompt.tokens, block_ids=[blocks], start=first * CHUNK, end=last * CHUNK
        )
        for worker in self.workers:
            event = StubEvent()
            getattr(worker, method)(prompt.request_id, operation, event, prompt.salt)

    def stored(self, prompt: Prompt) -> list[bool]:
        """Each rank's store result, taken as `get_finished` takes it."""
        return [worker.store_futures[prompt.request_id].result(20) for worker in self.workers]

    def loaded(self, prompt: Prompt) -> list[bool]:
        """Each rank's retrieve result."""
        return [worker.retrieve_futures[prompt.request_id][0].result(20) for worker in self.workers]

    def finish(self, prompt: Prompt) -> None:
        """The request leaves the engine: each rank reports it, the scheduler ends its session."""
        for worker in self.workers:
            reported, _ = worker.get_finished({prompt.request_id})
            assert reported == {prompt.request_id}
        self.scheduler.cleanup_lookup_result(prompt.request_id)
        self.scheduler.end_session(prompt.request_id)

    def instance_ids(self) -> list[int]:
        """What the ranks registered as."""
        return [worker.instance_id for worker in self.workers]

    def shutdown(self) -> None:
        """Stop as vLLM does."""
        for worker in self.workers:
            worker.shutdown()
        self.scheduler.shutdown()


def round_trip(engine: Engine, prompt: Prompt, chunks: int, seed: int) -> None:
    """Store a prompt and get it back into other blocks."""
    source, target = engine.blocks(chunks), engine.blocks(chunks)
    engine.fill(source, seed)
    wanted = engine.content(source)
    engine.store(prompt, 0, chunks, source)
    question = prompt.again()
    assert engine.lookup(question) == chunks
    engine.fill(target, seed + 1000)
    engine.retrieve(question, 0, chunks, target)
    assert all(engine.loaded(question))
    for found, rank in zip(engine.content(target), wanted, strict=True):
        assert torch.equal(found, rank)
    engine.finish(question)


def test_a_request_from_lookup_to_end_of_session(server: LarderServer) -> None:
    engine = Engine(server.url)
    prompt = random_prompt(4 * CHUNK + 2)
    assert engine.lookup(prompt) == 0
    source = engine.blocks(4)
    engine.fill(source, 1)
    wanted = engine.content(source)
    engine.store(prompt, 0, 4, source)
    assert engine.stored(prompt) == [True]
    engine.finish(prompt)

    question = prompt.again()
    assert engine.lookup(question) == 4
    target = engine.blocks(4)
    engine.fill(target, 2)
    engine.retrieve(question, 0, 4, target)
    assert engine.loaded(question) == [True]
    assert engine.worker.get_finished(set())[1] == {question.request_id}
    assert torch.equal(engine.content(target)[0], wanted[0])
    assert not engine.worker.get_block_ids_with_load_errors()
    engine.shutdown()


def test_tokens_the_engine_has_already_are_given_back(server: LarderServer) -> None:
    engine = Engine(server.url)
    prompt = random_prompt(4 * CHUNK)
    blocks = engine.blocks(4)
    engine.store(prompt, 0, 4, blocks)
    question = prompt.again()
    assert engine.lookup(question) == 4
    assert server.l1()["read_locked_count"] == 4
    engine.scheduler.free_lookup_locks(question.tokens, 0, 3 * CHUNK, question.request_id)
    until(lambda: server.l1()["read_locked_count"] == 1, "three locks are given back")
    engine.retrieve(question, 3, 4, engine.blocks(1))
    assert engine.loaded(question) == [True]
    until(lambda: server.l1()["read_locked_count"] == 0, "the last lock is used up")
    engine.shutdown()


@pytest.mark.parametrize("mla", [False, True], ids=["kv", "mla"])
def test_two_ranks(server: LarderServer, mla: bool) -> None:
    engine = Engine(server.url, model=f"two-ranks-{mla}", tp_size=2, mla=mla)
    for seed in range(3):
        round_trip(engine, random_prompt(3 * CHUNK), 3, seed)
    engine.shutdown()
    assert server.l1()["read_locked_count"] == 0


def test_a_batch_of_requests(server: LarderServer) -> None:
    engine = Engine(server.url)
    prompts = [random_prompt(2 * CHUNK, salt=f"user-{number}") for number in range(5)]
    blocks = [engine.blocks(2) for _ in prompts]
    operations = [
        LoadStoreOp(token_ids=prompt.tokens, block_ids=[taken], start=0, end=2 * CHUNK)
        for prompt, taken in zip(prompts, blocks, strict=True)
    ]
    ids, salts = [p.request_id for p in prompts], [p.salt for p in prompts]
    event = StubEvent()
    engine.worker.batched_submit_store_requests(ids, operations, event, salts)
    for prompt in prompts:
        assert engine.stored(prompt) == [True]
    assert engine.worker.get_finished(set(ids))[0] == set(ids)
    assert engine.worker.get_finished(set(ids))[0] == set(), "each is reported once"
    assert [engine.lookup(prompt.again()) for prompt in prompts] == [2] * 5
    engine.shutdown()


def test_block_allocations_are_reported_without_waiting(server: LarderServer) -> None:
    engine = Engine(server.url)
    records = [BlockAllocationRecord("request", [1, 2, 3], list(range(12)))] * 3
    engine.scheduler.report_block_allocations(records)
    prompt = random_prompt(CHUNK)
    assert engine.lookup(prompt) == 0
    engine.shutdown()


def test_shutdown_unregisters(server: LarderServer) -> None:
    engine = Engine(server.url, tp_size=2)
    known = server.status()["registered_non_cuda_instance_ids"]
    assert set(engine.instance_ids()) <= set(known)
    engine.shutdown()
    known = server.status()["registered_non_cuda_instance_ids"]
    assert not set(engine.instance_ids()) & set(known)


def restart(server: LarderServer, *, hard: bool) -> LarderServer:
    """Replace a server by a new one on the same ports."""
    if hard:
        server.kill()
    else:
        server.stop()
    return LarderServer(
        chunk_tokens=server.chunk_tokens, port=server.port, http_port=server.http_port
    ).start()


@pytest.mark.parametrize("hard", [False, True], ids=["sigterm", "sigkill"])
def test_an_engine_recovers_when_its_server_was_restarted(hard: bool) -> None:
    """The new server knows nobody: one PING answered false makes each worker register again."""
    first = LarderServer(chunk_tokens=CHUNK).start()
    engine = Engine(first.url, tp_size=2)
    prompt = random_prompt(3 * CHUNK)
    round_trip(engine, prompt, 3, seed=1)
    with_new = restart(first, hard=hard)
    try:
        wanted = set(engine.instance_ids())
        until(
            lambda: wanted <= set(with_new.status()["registered_non_cuda_instance_ids"]),
            "both workers registered again by themselves",
        )
        until(lambda: all(worker.is_healthy for worker in engine.workers), "both are healthy")
        assert engine.lookup(prompt.again()) == 0, "the new server's cache is empty"
        round_trip(engine, random_prompt(3 * CHUNK), 3, seed=2)
        engine.shutdown()
        with_new.stop()
    finally:
        if with_new.alive():
            with_new.kill()
        with_new.forget_log()
        first.forget_log()


def test_an_engine_runs_on_without_its_server() -> None:
    """While the server is away, retrieves report their blocks as not loaded."""
    server = LarderServer(chunk_tokens=CHUNK).start()
    engine = Engine(server.url)
    prompt = random_prompt(2 * CHUNK)
    round_trip(engine, prompt, 2, seed=3)
    server.stop()
    until(lambda: not engine.worker.is_healthy, "the heartbeat notices")
    blocks = engine.blocks(2)
    later = prompt.again()
    engine.retrieve(later, 0, 2, blocks)
    assert engine.worker.get_finished(set())[1] == {later.request_id}
    assert engine.worker.get_block_ids_with_load_errors() == set(blocks)
    again = LarderServer(chunk_tokens=CHUNK, port=server.port, http_port=server.http_port)
    with again:
        until(lambda: engine.worker.is_healthy, "the heartbeat finds the new server")
        round_trip(engine, random_prompt(2 * CHUNK), 2, seed=4)
        engine.shutdown()
    server.forget_log()
