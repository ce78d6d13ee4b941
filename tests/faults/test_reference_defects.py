"""Defects of the release's own server, each as a promise that larder keeps.

Goal: docs/reliability.md names for every known defect a test that fails on a server which has it;
these are the tests that no other file has. They are about memory that nobody finished writing,
locks that belong to somebody, and times that run out.
Method: the real client of 0.5.2 and frames by hand, against servers whose times are one second.
What has to pass is waited for by its effect, never slept for.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import wire
from engines import Client, KvLayout, Scheduler, Worker, random_prompt
from larder_server import LarderServer, binary
from lmcache.v1.multiprocess.protocol import RequestType
from polling import until
from wire import ABSENT, Op, RawConnection, encode

CHUNK = 8

# Chunks of 256 KiB: 64 of them fill a pool of 16 MiB exactly.
LARGE = KvLayout(dtype=torch.uint8, layers=4, heads=8, head_size=512)
POOL_CHUNKS = 64

# Often enough for a sanitizer to see a registration go between an answer and its encoding.
RACES = 600

_models = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[LarderServer]:
    """A server on which unfinished stores and unused lookups end after a second."""
    flags = ["--l1-write-ttl-seconds", "1", "--l1-read-ttl-seconds", "1"]
    with LarderServer(*flags, chunk_tokens=CHUNK, pool_mib=16) as shared:
        yield shared


@pytest.fixture
def model(server: LarderServer) -> Iterator[str]:
    """A model of the test's own on an empty pool; nothing may stay held."""
    with RawConnection(server.port) as connection:
        connection.ask(Op.CLEAR)
    yield f"defects-{next(_models)}"
    until(lambda: held(server) == (0, 0), "the test's locks and reservations are gone")


@pytest.fixture
def parts() -> Iterator[list[Any]]:
    """What is closed at the end of the test."""
    opened: list[Any] = []
    yield opened
    for part in reversed(opened):
        part.close()


def held(server: LarderServer) -> tuple[int, int]:
    """Locked and reserved objects."""
    l1 = server.l1()
    return l1["read_locked_count"], l1["write_locked_count"]


def locked(server: LarderServer) -> int:
    """Objects that are pinned or promised."""
    return held(server)[0]


def fill(views: list[torch.Tensor], contents: list[bytes]) -> None:
    """What a worker's copy does."""
    for view, content in zip(views, contents, strict=True):
        flat = view.view(torch.uint8).flatten()
        flat.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))


def contents(views: list[torch.Tensor]) -> list[bytes]:
    """What a worker reads."""
    return [view.view(torch.uint8).numpy().tobytes() for view in views]


# Memory that nobody finished writing.


def test_an_expired_reservation_is_never_found(
    server: LarderServer, model: str, parts: list[Any]
) -> None:
    slow, quick = Worker(server.url, model=model), Worker(server.url, model=model)
    scheduler = Scheduler(server.url, model=model)
    parts += [slow, quick, scheduler]
    prompt = random_prompt(3 * CHUNK)
    key = slow.key(prompt, 0, 3)
    views, _ = slow.context.prepare_store(key, slow.instance_id)
    fill(views, [bytes([0xEE]) * slow.chunk_bytes] * 3)
    until(lambda: held(server) == (0, 0), "the reservation expires")
    assert scheduler.hits(prompt) == 0
    assert quick.store(prompt, 0, 3), "the key is free"
    fill(views, [bytes([0xDD]) * slow.chunk_bytes] * 3)
    del views
    assert slow.context.commit_store(key, slow.instance_id, []) is False
    question = prompt.again()
    assert scheduler.lookup(question) == 3
    assert quick.retrieve(question, 0, 3), "the late writes went elsewhere"


def test_a_late_commit_publishes_nothing_of_another_request(
    server: LarderServer, model: str, parts: list[Any]
) -> None:
    """Two requests of one worker store the same prompt; the first one's reservation expired."""
    worker, scheduler = Worker(server.url, model=model), Scheduler(server.url, model=model)
    parts += [worker, scheduler]
    late = random_prompt(3 * CHUNK)
    second = late.again()
    late_key, second_key = worker.key(late, 0, 3), worker.key(second, 0, 3)
    worker.context.prepare_store(late_key, worker.instance_id)
    until(lambda: held(server) == (0, 0), "the reservation expires")
    views, _ = worker.context.prepare_store(second_key, worker.instance_id)
    assert worker.context.commit_store(late_key, worker.instance_id, []) is False
    assert scheduler.hits(late) == 0, "the second has not written its slots yet"
    fill(views, worker.object_bytes(second, 0, 3))
    del views
    # It is published, or, on a machine that was slow just now, it has expired too.
    if worker.context.commit_store(second_key, worker.instance_id, []):
        question = late.again()
        assert scheduler.lookup(question) == 3
        assert worker.retrieve(question, 0, 3)


def test_unwritten_slots_of_a_worker_that_left_are_never_found(
    server: LarderServer, model: str, parts: list[Any]
) -> None:
    leaving, other = Worker(server.url, model=model), Worker(server.url, model=model)
    scheduler = Scheduler(server.url, model=model)
    parts += [leaving, other, scheduler]
    prompt = random_prompt(3 * CHUNK)
    key = leaving.key(prompt, 0, 3)
    leaving.context.prepare_store(key, leaving.instance_id)
    leaving.unregister()
    assert scheduler.hits(prompt) == 0
    assert leaving.context.commit_store(key, leaving.instance_id, []) is False
    assert other.store(prompt, 0, 3)
    assert scheduler.hits(prompt) == 3


def test_expired_reservations_give_their_memory_back(
    server: LarderServer, model: str, parts: list[Any]
) -> None:
    """Also when the pool holds nothing else that could be evicted."""
    hoarder = Worker(server.url, model=model, layout=LARGE)
    other, scheduler = (
        Worker(server.url, model=model, layout=LARGE),
        Scheduler(server.url, model=model),
    )
    parts += [hoarder, other, scheduler]
    everything = random_prompt(POOL_CHUNKS * CHUNK)
    _, places = hoarder.context.prepare_store(
        hoarder.key(everything, 0, POOL_CHUNKS), hoarder.instance_id
    )
    assert len(places) > POOL_CHUNKS // 2
    until(lambda: held(server) == (0, 0), "the reservation expires")
    hoarder.unregister()
    prompt = random_prompt(POOL_CHUNKS // 2 * CHUNK)

    def stored() -> bool:
        return other.store(prompt, 0, 32) and scheduler.hits(prompt) == 32

    until(stored, "half of the pool can be used again")


def test_slots_are_backed_by_memory_before_they_are_handed_out(
    server: LarderServer, model: str, parts: list[Any]
) -> None:
    """A sparse segment kills whoever touches it once the directory is full."""
    worker = Worker(server.url, model=model)
    parts.append(worker)
    (segment,) = server.segments()
    until(lambda: segment.stat().st_blocks * 512 >= server.pool_bytes, "all pages are reserved")


# Locks that belong to somebody.


def test_a_retrieve_takes_no_other_requests_lock(
    server: LarderServer, model: str, parts: list[Any]
) -> None:
    """Nobody looked up for it; it is served all the same."""
    worker, scheduler = Worker(server.url, model=model), Scheduler(server.url, model=model)
    parts += [worker, scheduler]
    prompt = random_prompt(3 * CHUNK)
    assert worker.store(prompt, 0, 3)
    promised = prompt.again()
    assert scheduler.lookup(promised) == 3
    for _ in range(3):
        assert worker.retrieve(prompt.again(), 0, 3)
    assert locked(server) == 3, "the promise of the other request stands"
    assert worker.retrieve(promised, 0, 3)
    assert locked(server) == 0


def test_a_retrieve_that_fails_takes_no_lock(
    server: LarderServer, model: str, parts: list[Any]
) -> None:
    worker, scheduler = Worker(server.url, model=model), Scheduler(server.url, model=model)
    parts += [worker, scheduler]
    prompt = random_prompt(4 * CHUNK)
    assert worker.store(prompt, 0, 3)
    promised = prompt.again()
    assert scheduler.lookup(promised) == 3
    assert not worker.retrieve(prompt.again(), 0, 4), "one chunk is missing"
    assert locked(server) == 3
    assert worker.retrieve(promised, 0, 3)
    assert locked(server) == 0


@pytest.mark.parametrize("leaves", [True, False], ids=["unregisters", "commits"])
def test_retrieves_that_are_opened_again_are_counted(
    server: LarderServer, model: str, parts: list[Any], leaves: bool
) -> None:
    """Each has a pin of its own, and none survives its worker."""
    worker, scheduler = Worker(server.url, model=model), Scheduler(server.url, model=model)
    parts += [worker, scheduler]
    prompt = random_prompt(3 * CHUNK)
    assert worker.store(prompt, 0, 3)
    key = worker.key(prompt, 0, 3)
    for _ in range(5):
        assert worker.context.prepare_retrieve(key, worker.instance_id) is not None
    for _ in range(4):
        assert worker.context.commit_retrieve(key, worker.instance_id)
        assert locked(server) == 3
    if leaves:
        worker.unregister()
    else:
        assert worker.context.commit_retrieve(key, worker.instance_id)
    until(lambda: locked(server) == 0, "the last pin is gone")


def test_more_readers_than_a_lookup_knew_of_are_served(
    server: LarderServer, model: str, parts: list[Any]
) -> None:
    """Pipeline and tensor parallelism of MLA: the lookup names two readers of what four read."""
    layout = KvLayout(mla=True)
    workers = [
        Worker(server.url, model=model, layout=layout, world_size=2, worker_id=rank // 2)
        for rank in range(4)
    ]
    scheduler = Scheduler(server.url, model=model, world_size=2, tp_size=2)
    parts += [*workers, scheduler]
    prompt = random_prompt(3 * CHUNK)
    assert workers[0].store(prompt, 0, 3)
    assert workers[2].store(prompt, 0, 3)
    assert scheduler.lookup(prompt) == 3
    for worker in workers:
        assert worker.retrieve(prompt, 0, 3)
    scheduler.end(prompt)


def test_a_store_after_the_end_of_its_request_leaves_no_session(
    server: LarderServer, model: str, parts: list[Any]
) -> None:
    """The last store of a request usually comes after its END_SESSION."""
    worker, scheduler = Worker(server.url, model=model), Scheduler(server.url, model=model)
    parts += [worker, scheduler]
    for _ in range(5):
        prompt = random_prompt(3 * CHUNK)
        assert scheduler.lookup(prompt) == 0
        scheduler.end(prompt)
        assert worker.store(prompt, 0, 3)
    assert server.status()["active_sessions"] == 0


def test_stores_that_race_with_an_unregistration_leave_nothing(
    server: LarderServer, model: str
) -> None:
    """Whichever comes first, no reservation is owned by nobody, and each answer is whole."""
    instance = 4711
    told = encode(wire.registration(instance, model_name=model))

    def transfer(number: int) -> int:
        with RawConnection(server.port) as engine:
            for turn in range(RACES):
                key = wire.key([number, turn] * (CHUNK // 2), worker_id=0, model_name=model)
                stored = engine.ask(Op.PREPARE_STORE, key, instance)["context"]["slots"]
                assert [slot["shape"] for slot in stored] in ([], [[2, 2, CHUNK, 8]])
                engine.ask(Op.PREPARE_RETRIEVE, key, instance)
            return number

    with RawConnection(server.port) as other, ThreadPoolExecutor(3) as engines:
        racing = [engines.submit(transfer, number) for number in range(3)]
        while not all(each.done() for each in racing):
            other.ask_frames(Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, told)
            assert other.ask(Op.UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, instance) is ABSENT
        assert [each.result() for each in racing] == [0, 1, 2]
        assert held(server) == (0, 0)


# Times that run out.


def pressure(worker: Worker) -> None:
    """Everything that may be evicted is evicted."""
    for _ in range(2):
        assert worker.store(random_prompt(POOL_CHUNKS * CHUNK), 0, POOL_CHUNKS)


def test_a_retrieve_outlives_the_time_of_its_lookup(
    server: LarderServer, model: str, parts: list[Any]
) -> None:
    """What is being read stays, under pressure and through a CLEAR."""
    worker = Worker(server.url, model=model, layout=LARGE)
    writer = Worker(server.url, model=model, layout=LARGE, blocks=2 * POOL_CHUNKS)
    scheduler = Scheduler(server.url, model=model)
    parts += [worker, writer, scheduler]
    prompt, witness = random_prompt(4 * CHUNK), random_prompt(CHUNK)
    assert worker.store(prompt, 0, 4)
    assert worker.store(witness, 0, 1)
    assert scheduler.lookup(prompt) == 4
    key = worker.key(prompt, 0, 4)
    views = worker.context.prepare_retrieve(key, worker.instance_id)
    assert scheduler.lookup(witness) == 1
    until(lambda: locked(server) == 4, "a lookup of later has run out of time")
    pressure(writer)
    assert contents(views) == worker.object_bytes(prompt, 0, 4)
    with RawConnection(server.port) as connection:
        connection.ask(Op.CLEAR)
    pressure(writer)
    assert contents(views) == worker.object_bytes(prompt, 0, 4)
    del views
    assert worker.context.commit_retrieve(key, worker.instance_id)


def test_a_hit_whose_time_is_over_is_served_while_it_is_there(
    server: LarderServer, model: str, parts: list[Any]
) -> None:
    worker, scheduler = Worker(server.url, model=model), Scheduler(server.url, model=model)
    parts += [worker, scheduler]
    prompt = random_prompt(3 * CHUNK)
    assert worker.store(prompt, 0, 3)
    assert scheduler.lookup(prompt) == 3
    until(lambda: locked(server) == 0, "the lookup's time is over")
    assert worker.retrieve(prompt, 0, 3)


def test_a_lookup_that_nobody_asks_for_ends(
    server: LarderServer, model: str, parts: list[Any]
) -> None:
    worker, scheduler = Worker(server.url, model=model), Scheduler(server.url, model=model)
    parts += [worker, scheduler]
    prompt = random_prompt(3 * CHUNK)
    assert worker.store(prompt, 0, 3)
    for _ in range(3):
        scheduler.submit_lookup(prompt.again())
    until(lambda: locked(server) == 0, "their time is over")
    until(lambda: server.status()["active_prefetch_jobs"] == 0, "so are they")
    assert server.status()["active_sessions"] == 0


# Threads, names, layouts.


def test_waiting_requests_hold_up_nobody() -> None:
    """One worker of each kind; WAITs with a timeout of days, and a heartbeat beside them."""
    with LarderServer("--max-workers", "1", chunk_tokens=CHUNK, pool_mib=16) as server:
        worker, scheduler = Worker(server.url), Scheduler(server.url)
        prompts = [random_prompt(2 * CHUNK) for _ in range(20)]
        for prompt in prompts:
            assert worker.store(prompt, 0, 2)
        with RawConnection(server.port) as waiting, RawConnection(server.port) as beating:
            for number, prompt in enumerate(prompts):
                key = wire.key(prompt.tokens, request_id=f"{number}", model_name="model")
                waiting.send(Op.LOOKUP, encode(key), encode(1))
                for name in (f"{number}", f"{number}", "nobody"):
                    waiting.send(Op.WAIT_PREFETCH_STATUS, encode(name), encode(1e6))
            for _ in range(20):
                assert beating.ask(Op.PING, None) is True
                assert scheduler.hits(prompts[0]) == 2
        worker.close()
        scheduler.close()


def test_a_worker_that_registers_with_another_dtype_gets_slots_of_it(
    server: LarderServer, model: str
) -> None:
    """And is promised nothing of what it stored before."""
    tokens = list(range(2 * CHUNK))
    register = Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT
    with RawConnection(server.port) as engine:
        for number, dtype in enumerate(("bfloat16", "float32", "uint8")):
            told = wire.registration(815, model_name=model, dtype_str=dtype)
            assert engine.ask(register, told)["pool_size"] == server.pool_bytes
            looked_up = wire.key(tokens, request_id=f"{number}", model_name=model)
            engine.ask(Op.LOOKUP, looked_up, 1)
            assert engine.ask(Op.QUERY_PREFETCH_STATUS, f"{number}") == 0
            key = wire.key(tokens, worker_id=0, request_id=f"{number}", model_name=model)
            slots = engine.ask(Op.PREPARE_STORE, key, 815)["context"]["slots"]
            assert [slot["dtype"] for slot in slots] == [dtype] * 2
            itemsize = getattr(torch, dtype).itemsize
            assert [slot["length"] for slot in slots] == [2 * 2 * CHUNK * 8 * itemsize] * 2
            assert engine.ask(Op.COMMIT_STORE, key, 815, b"") is True
        assert engine.ask(Op.UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, 815) is ABSENT


@pytest.mark.parametrize("name", ["builtin", "sha256_cbor", "sha256", "blake4", ""])
def test_a_hash_that_processes_do_not_share_is_refused_at_start(name: str) -> None:
    ended = subprocess.run(
        [binary(), "serve", f"--hash-algorithm={name}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "--hash-algorithm" in ended.stderr
    assert "blake3" in ended.stderr, "says what to use"


@pytest.mark.parametrize("policy", ["LRU", "IsolatedLRU", "ARC"])
@pytest.mark.parametrize("watermark", [None, "0.6"], ids=["on-demand", "watermark"])
def test_a_policy_is_refused_or_goes_on_evicting(policy: str, watermark: str | None) -> None:
    """No policy stops at the first eviction and leaves a full pool behind."""
    flags = ["--eviction-policy", policy]
    if watermark is not None:
        flags += ["--eviction-trigger-watermark", watermark]
    server = LarderServer(*flags, chunk_tokens=CHUNK, pool_mib=16).launch()
    if not starts(server):
        return
    with_salts = ["", "tenant-a", "tenant-b"]
    worker, scheduler = Worker(server.url, layout=LARGE), Scheduler(server.url)
    for turn in range(4 * POOL_CHUNKS // 12):
        prompt = random_prompt(12 * CHUNK, with_salts[turn % 3])
        assert worker.store(prompt, 0, 12)
        assert scheduler.hits(prompt) == 12, f"there is no room in turn {turn}"
    assert server.status()["storage_manager"]["l1_eviction_controller"]["thread_alive"] is True
    worker.close()
    scheduler.close()
    server.stop()
    server.forget_log()


def starts(server: LarderServer) -> bool:
    """Whether the server came up; if not, it said why and ended with 1."""
    try:
        server.wait_ready()
    except AssertionError:
        assert server.wait_end() == 1
        assert "--eviction-policy" in server.log_text()
        server.forget_log()
        return False
    return True


def test_a_client_learns_of_a_refused_registration_and_runs_on(
    server: LarderServer, model: str
) -> None:
    """No name of the wire is looked up in any module."""
    client = Client(server.url)
    for name in ("__import__", "os.system", "torch.bfloat16", "Tensor", "load", "__class__"):
        with RawConnection(server.port) as engine:
            told = wire.registration(99, model_name=model, dtype_str=name)
            answer = engine.ask(Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, told)
            assert answer == {"shm_name": "", "pool_size": 0}
        assert client.call(RequestType.NOOP) == "OK"
    client.close()


def test_a_refused_registration_is_promised_nothing(server: LarderServer, model: str) -> None:
    """Its client takes the answer for a registration, looks up, and would compute on nothing."""
    told = wire.registration(1, model_name=model)
    dtype = {"dtype_str": "uint4"}
    tokens = list(range(2 * CHUNK))
    question = wire.key(tokens, request_id="q", model_name=model)
    ours = wire.key(tokens, request_id="r", worker_id=0, model_name=model)
    register = Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT

    def found(engine: RawConnection) -> int:
        engine.ask(Op.LOOKUP, question, 1)
        chunks = engine.ask(Op.QUERY_PREFETCH_STATUS, "q")
        engine.ask(Op.END_SESSION, "q")
        return int(chunks)

    with RawConnection(server.port) as engine, RawConnection(server.port) as other:
        engine.ask(register, told)
        assert engine.ask(Op.PREPARE_STORE, ours, 1)["context"]["slots"]
        assert engine.ask(Op.COMMIT_STORE, ours, 1, b"") is True
        assert found(other) == 2
        other.ask(register, wire.registration(2, model_name=model, **dtype))
        assert found(other) == 0
        other.ask(Op.UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, 2)
        assert found(other) == 2
        broken = wire.registration(3, model_name=model, num_layers="two")
        other.ask(register, broken)
        assert found(other) == 0
        other.ask(Op.UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, 3)
        engine.ask(register, {**told, **dtype})
        assert engine.ask(Op.PREPARE_RETRIEVE, {**ours, "request_id": "s"}, 1)["success"] is False
        engine.ask(Op.UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, 1)
