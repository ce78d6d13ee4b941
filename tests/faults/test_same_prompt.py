"""Many requests with the same tokens, interleaved at every step of their transfers.

Goal: each request has pins and reservations of its own: no step of one takes anything from another,
every byte is right at every moment until its COMMIT_RETRIEVE, and nothing is held at the end.
Method: each request is a generator that stops between its wire requests; a random scheduler chooses
who goes on next, with other prompts pressing on a small pool. Once with the real client of 0.5.2 by
shared memory and by copies, once with frames by hand, where even the request ids and keys are the
same. The seed is printed, and taken from LARDER_TEST_SEED.
"""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import wire
from engines import KvLayout, Prompt, Scheduler, Worker, random_prompt
from larder_server import LarderServer
from polling import until
from wire import ABSENT, Op, RawConnection

CHUNK = 8
CHUNKS = 4

# Objects of 128 KiB: a pool of 16 MiB holds 128 of them.
LAYOUT = KvLayout(dtype=torch.bfloat16, layers=4, heads=4, head_size=256)
FILLER_CHUNKS = 24

Steps = Generator[None, None, None]


@pytest.fixture(scope="module")
def server() -> Iterator[LarderServer]:
    """One server for all; at the end of each test nothing may be held."""
    with LarderServer(chunk_tokens=CHUNK, pool_mib=16) as shared:
        yield shared


@pytest.fixture
def source() -> random.Random:
    """The order of events."""
    seed = int(os.environ.get("LARDER_TEST_SEED", "") or random.SystemRandom().getrandbits(32))
    print(f"LARDER_TEST_SEED={seed}")
    return random.Random(seed)


def assert_nothing_is_held(server: LarderServer) -> None:
    """No lock, no reservation, no session."""
    l1 = server.l1()
    assert (l1["read_locked_count"], l1["write_locked_count"]) == (0, 0)
    assert server.status()["active_sessions"] == 0


def interleave(source: random.Random, requests: list[Steps]) -> None:
    """One step of one request at a time, in random order, until all have ended."""
    while requests:
        request = source.choice(requests)
        try:
            next(request)
        except StopIteration:
            requests.remove(request)


# With the real client.


class Engine:
    """A scheduler and a worker."""

    def __init__(self, server: LarderServer, source: random.Random, *, maps_pool: bool) -> None:
        self.worker = Worker(server.url, layout=LAYOUT, maps_pool=maps_pool)
        self.scheduler = Scheduler(server.url)
        self._source = source

    def store(self, prompt: Prompt) -> Steps:
        """PREPARE_STORE, the copy in two parts, COMMIT_STORE."""
        worker = self.worker
        key = worker.key(prompt, 0, CHUNKS)
        objects = worker.object_bytes(prompt, 0, CHUNKS)
        prepared = worker.context.prepare_store(key, worker.instance_id)
        yield
        if prepared is None:
            chunks = [as_tensor(content) for content in objects]
            assert worker.context.commit_store(key, worker.instance_id, chunks)
            return
        views, places = prepared
        if not views:
            return
        for view, place in zip(views, places, strict=True):
            view.view(torch.uint8).flatten().copy_(
                torch.frombuffer(bytearray(objects[place]), dtype=torch.uint8)
            )
            yield
        del views, view, prepared
        assert worker.context.commit_store(key, worker.instance_id, [])

    def retrieve(self, prompt: Prompt) -> Steps:
        """LOOKUP, PREPARE_RETRIEVE, two looks at the bytes, COMMIT_RETRIEVE, END_SESSION."""
        worker, scheduler = self.worker, self.scheduler
        hits = scheduler.lookup(prompt)
        yield
        if hits:
            key = worker.key(prompt, 0, hits)
            tensors = worker.context.prepare_retrieve(key, worker.instance_id)
            assert tensors is not None, "a promised hit was not kept"
            for _ in range(2):
                yield
                found = [tensor.contiguous().view(torch.uint8).numpy() for tensor in tensors]
                assert [bytes(each) for each in found] == worker.object_bytes(prompt, 0, hits)
            del tensors, found
            assert worker.context.commit_retrieve(key, worker.instance_id)
            yield
        if self._source.random() < 0.5:
            scheduler.free(prompt)
            yield
        scheduler.end(prompt)

    def fill(self) -> Steps:
        """Another prompt, which takes what nobody holds."""
        assert self.worker.store(random_prompt(FILLER_CHUNKS * CHUNK), 0, FILLER_CHUNKS)
        yield

    def close(self) -> None:
        """Leave."""
        self.worker.close()
        self.scheduler.close()


def as_tensor(content: bytes) -> torch.Tensor:
    """An object as the client's pickle holds it."""
    shape = (2, LAYOUT.layers, CHUNK, LAYOUT.heads * LAYOUT.head_size)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(LAYOUT.dtype).view(shape)


@pytest.mark.parametrize("kinds", ["shm", "copy", "mixed"])
@pytest.mark.parametrize("instances", [1, 3])
@pytest.mark.parametrize("ids", ["own", "shared"])
def test_requests_of_one_prompt_leave_each_other_alone(
    server: LarderServer, source: random.Random, instances: int, kinds: str, ids: str
) -> None:
    """With `shared` ids every engine counts its requests 0, 1, ... like the others."""
    maps = {"shm": [True], "copy": [False], "mixed": [True, False]}[kinds]
    engines = [
        Engine(server, source, maps_pool=maps[number % len(maps)]) for number in range(instances)
    ]
    tokens = random_prompt(CHUNKS * CHUNK).tokens
    for _ in range(2):
        requests: list[Steps] = []
        for engine in engines:
            for number in range(10 // instances + 2):
                prompt = Prompt(tokens, request_id=f"{number}") if ids == "shared" else None
                prompt = prompt or Prompt(tokens)
                requests.append(engine.retrieve(prompt))
                requests.append(engine.store(Prompt(tokens)))
            requests += [engine.fill() for _ in range(6 // instances)]
        interleave(source, requests)
        assert_nothing_is_held(server)
    for engine in engines:
        engine.close()


# With frames by hand.

HIDDEN = 2048
OBJECT_BYTES = 2 * 2 * CHUNK * HIDDEN * 2
MODEL = "same-prompt"


@dataclass
class Slot:
    """A place in the pool, and which chunk it is for."""

    offset: int
    chunk: int


@dataclass
class RawEngine:
    """An instance over a connection of its own, and what it has open."""

    connection: RawConnection
    instance: int
    pool: mmap.mmap
    tokens: list[int]
    storing: list[Slot] = field(default_factory=list)
    retrieving: list[list[Slot]] = field(default_factory=list)

    def __post_init__(self) -> None:
        told = wire.registration(self.instance, model_name=MODEL, hidden_dim_size=HIDDEN)
        self.connection.ask(Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, told)

    def key(self, tokens: list[int] | None = None) -> dict[str, Any]:
        """The one key of everybody, unless other tokens are given."""
        return wire.key(tokens or self.tokens, worker_id=0, request_id="same", model_name=MODEL)

    def prepare_store(self) -> None:
        """Again before the commit: no slots."""
        slots = self.prepared(self.key())
        assert not (self.storing and slots)
        self.storing = self.storing or slots

    def prepared(self, key: dict[str, Any]) -> list[Slot]:
        """What a PREPARE_STORE reserves."""
        answer = self.connection.ask(Op.PREPARE_STORE, key, self.instance)["context"]
        return [
            Slot(slot["offset"], chunk)
            for slot, chunk in zip(answer["slots"], answer["chunk_indices"], strict=True)
        ]

    def write(self, source: random.Random) -> None:
        """The bytes of one slot, sometimes more than once."""
        if self.storing:
            slot = source.choice(self.storing)
            self.pool[slot.offset : slot.offset + OBJECT_BYTES] = content(slot.chunk)

    def commit_store(self) -> None:
        """Ends the reservation, if there is one."""
        for slot in self.storing:
            self.pool[slot.offset : slot.offset + OBJECT_BYTES] = content(slot.chunk)
        answer = self.connection.ask(Op.COMMIT_STORE, self.key(), self.instance, b"")
        assert answer is bool(self.storing)
        self.storing = []

    def prepare_retrieve(self) -> None:
        """Each that is served is one more transfer."""
        answer = self.connection.ask(Op.PREPARE_RETRIEVE, self.key(), self.instance)
        if answer["success"]:
            slots = answer["context"]["slots"]
            assert len(slots) == CHUNKS
            self.retrieving.append(
                [Slot(slot["offset"], chunk) for chunk, slot in enumerate(slots)]
            )

    def check(self) -> None:
        """All that is open is right."""
        for slots in self.retrieving:
            for slot in slots:
                found = self.pool[slot.offset : slot.offset + OBJECT_BYTES]
                assert found == content(slot.chunk), f"chunk {slot.chunk} changed under a reader"

    def commit_retrieve(self) -> None:
        """Ends one of them, or nothing."""
        if self.retrieving:
            self.retrieving.pop(0)
        assert self.connection.ask(Op.COMMIT_RETRIEVE, self.key(), self.instance) is True

    def press(self, source: random.Random) -> None:
        """Others' prompts take what nobody holds."""
        tokens = [source.getrandbits(32) for _ in range(FILLER_CHUNKS * CHUNK)]
        self.prepared(self.key(tokens))
        self.connection.ask(Op.COMMIT_STORE, self.key(tokens), self.instance, b"")

    def leave(self) -> None:
        """Without ending anything first."""
        answer = self.connection.ask(Op.UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, self.instance)
        assert answer is ABSENT
        self.connection.close()


def content(chunk: int) -> bytes:
    """What everybody writes into a chunk."""
    return bytes([chunk + 1]) * OBJECT_BYTES


def map_pool(server: LarderServer) -> mmap.mmap:
    """The segment as a client maps it."""
    (segment,) = server.segments()
    with Path(segment).open("r+b") as file:
        return mmap.mmap(file.fileno(), server.pool_bytes)


@pytest.mark.parametrize("instances", [1, 4])
def test_transfers_of_one_key_are_counted(
    server: LarderServer, source: random.Random, instances: int
) -> None:
    """The same request id, the same key, the four operations in any order."""
    pool = map_pool(server)
    tokens = [source.getrandbits(32) for _ in range(CHUNKS * CHUNK)]
    engines = [
        RawEngine(RawConnection(server.port), 7000 + number, pool, tokens)
        for number in range(instances)
    ]
    for _ in range(600):
        engine = source.choice(engines)
        step = source.choices(range(6), (4, 4, 3, 4, 3, 1))[0]
        if step == 0:
            engine.prepare_store()
        elif step == 1:
            engine.write(source)
        elif step == 2:
            engine.commit_store()
        elif step == 3:
            engine.prepare_retrieve()
        elif step == 4:
            engine.commit_retrieve()
        else:
            engine.press(source)
        for each in engines:
            each.check()
        reading = any(each.retrieving for each in engines)
        assert (server.l1()["read_locked_count"] > 0) is reading
    for engine in engines:
        engine.leave()
    until(lambda: server.l1()["read_locked_count"] == 0, "no pin is left")
    until(lambda: server.l1()["quarantined_count"] == 0, "nothing rests any more")
    assert_nothing_is_held(server)
    pool.close()


def test_a_store_prepared_again_gets_no_slots(server: LarderServer) -> None:
    """What a COMMIT publishes must be what was written, though the range lacks other chunks now."""
    pool = map_pool(server)
    tokens = list(range(CHUNKS * CHUNK))
    engine = RawEngine(RawConnection(server.port), 7100, pool, tokens)
    other = RawEngine(RawConnection(server.port), 7101, pool, tokens)
    key = wire.key(tokens, worker_id=0, request_id="twice", model_name=MODEL)
    half = {**key, "token_ids": tokens[: 2 * CHUNK], "end": 2 * CHUNK}
    # The first two chunks are there, so the first answer is about the others.
    slots = other.prepared({**half, "request_id": "half"})
    for slot in slots:
        pool[slot.offset : slot.offset + OBJECT_BYTES] = content(slot.chunk)
    assert other.connection.ask(Op.COMMIT_STORE, {**half, "request_id": "half"}, 7101, b"") is True
    assert [slot.chunk for slot in engine.prepared(key)] == [2, 3]
    other.connection.ask(Op.CLEAR)
    assert engine.prepared(key) == [], "now it would be about the first two"
    assert engine.connection.ask(Op.COMMIT_STORE, key, 7100, b"") is False, "cleared meanwhile"
    assert hits(other, tokens) == 0
    assert [slot.chunk for slot in engine.prepared(key)] == [0, 1, 2, 3]
    engine.leave()
    other.leave()
    until(lambda: server.l1()["quarantined_count"] == 0, "nothing rests any more")
    assert_nothing_is_held(server)
    pool.close()


def test_a_commit_after_a_miss_ends_nobodys_retrieve(server: LarderServer) -> None:
    """Real clients commit a retrieve that missed, too."""
    pool = map_pool(server)
    tokens = list(range(5000, 5000 + CHUNKS * CHUNK))
    engine = RawEngine(RawConnection(server.port), 7102, pool, tokens)
    engine.prepare_store()
    engine.commit_store()
    engine.prepare_retrieve()
    assert engine.retrieving
    engine.connection.ask(Op.CLEAR)
    second = {**engine.key(), "request_id": "another"}
    assert engine.connection.ask(Op.PREPARE_RETRIEVE, second, 7102)["success"] is False
    assert engine.connection.ask(Op.COMMIT_RETRIEVE, second, 7102) is True
    assert server.l1()["read_locked_count"] == CHUNKS
    for number in range(8):
        fresh = list(range(10_000 * (number + 1), 10_000 * (number + 1) + FILLER_CHUNKS * CHUNK))
        for slot in engine.prepared(engine.key(fresh)):
            pool[slot.offset : slot.offset + OBJECT_BYTES] = bytes(OBJECT_BYTES)
        engine.connection.ask(Op.COMMIT_STORE, engine.key(fresh), 7102, b"")
        engine.check()
    engine.commit_retrieve()
    engine.leave()
    assert_nothing_is_held(server)
    pool.close()


def hits(engine: RawEngine, tokens: list[int]) -> int:
    """Chunks that a lookup finds."""
    question = wire.key(tokens, request_id="question", model_name=MODEL)
    engine.connection.ask(Op.LOOKUP, question, 1)
    found = engine.connection.ask(Op.QUERY_PREFETCH_STATUS, "question")
    engine.connection.ask(Op.END_SESSION, "question")
    return int(found)
