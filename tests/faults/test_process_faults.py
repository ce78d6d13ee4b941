"""Processes that die, and memory and ports that are not there.

Goal: a client killed between PREPARE and COMMIT leaves no data, no lock and no lost memory; a
killed server leaves engines that recover; a full pool and a machine that cannot hold one end in
an answer; starting and stopping tell what happened by exit code and message, and leave nothing in
/dev/shm.
Method: forked processes with the real client classes (children.py), killed with SIGKILL; servers
of the test's own.
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from children import Child, Reporter
from engines import CALL_SECONDS, Client, KvLayout, Prompt, Scheduler, Worker, random_prompt
from larder_server import GIB, MIB, LarderServer, binary, free_port
from lmcache.integration.vllm.vllm_multi_process_adapter import HeartbeatThread
from lmcache.v1.multiprocess.protocol import RequestType
from polling import until

CHUNK = 8
REAP_SECONDS = 60.0

# Chunks of 256 KiB: 64 of them fill a pool of 16 MiB exactly.
LARGE = KvLayout(dtype=torch.uint8, layers=4, heads=8, head_size=512)
LARGE_BYTES = 256 << 10
POOL_CHUNKS = 64


@pytest.fixture(scope="module")
def server() -> Iterator[LarderServer]:
    """A server that gives silent workers up at once."""
    flags = [
        "--worker-reap-timeout-seconds", "1", "--worker-registration-grace-seconds", "1",
    ]  # fmt: skip
    with LarderServer(*flags, chunk_tokens=CHUNK, pool_mib=16) as shared:
        yield shared


@contextlib.contextmanager
def small_pool(*flags: str) -> Iterator[LarderServer]:
    """A server whose pool holds 64 large chunks."""
    with LarderServer(*flags, chunk_tokens=CHUNK, pool_mib=16) as one:
        yield one


def large_worker(server: LarderServer, *, maps_pool: bool = True) -> Worker:
    """A worker of large chunks."""
    worker = Worker(server.url, layout=LARGE, maps_pool=maps_pool)
    assert worker.chunk_bytes == LARGE_BYTES
    return worker


# Clients that die.


def die_while_storing(
    reporter: Reporter, url: str, prompt: Prompt, chunks: int, maps_pool: bool
) -> None:
    """Reserve, write half of it, and wait to be killed."""
    worker = Worker(url, maps_pool=maps_pool)
    prepared = worker.context.prepare_store(worker.key(prompt, 0, chunks), worker.instance_id)
    if prepared is not None:
        for view in prepared[0][: chunks // 2]:
            view.fill_(1.0)
    reporter.report(worker.instance_id)
    reporter.wait()


def die_while_retrieving(
    reporter: Reporter, url: str, prompt: Prompt, chunks: int, maps_pool: bool
) -> None:
    """Look up, open the chunks, and wait to be killed."""
    scheduler, worker = Scheduler(url), Worker(url, maps_pool=maps_pool)
    assert scheduler.lookup(prompt) == chunks
    assert worker.context.prepare_retrieve(worker.key(prompt, 0, chunks), worker.instance_id)
    reporter.report(worker.instance_id)
    reporter.wait()


@contextlib.contextmanager
def heartbeat(url: str, worker: Worker) -> Iterator[None]:
    """Keep a worker alive as its heartbeat would, more often than the server's patience."""
    stop = threading.Event()
    client = Client(url)

    def beat() -> None:
        while not stop.wait(0.1):
            client.call(RequestType.PING, worker.instance_id)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        client.close()


@pytest.fixture
def worker(server: LarderServer) -> Iterator[Worker]:
    """A worker of the impatient server that lives throughout the test."""
    living = Worker(server.url)
    with heartbeat(server.url, living):
        yield living
    living.close()


@pytest.fixture
def scheduler(server: LarderServer) -> Iterator[Scheduler]:
    """A scheduler of the impatient server."""
    one = Scheduler(server.url)
    yield one
    one.close()


@pytest.mark.parametrize("maps_pool", [True, False], ids=["shm", "copy"])
def test_a_store_of_a_killed_client(
    server: LarderServer, worker: Worker, scheduler: Scheduler, maps_pool: bool
) -> None:
    prompt = random_prompt(6 * CHUNK)
    child = Child(die_while_storing, server.url, prompt, 6, maps_pool)
    dead = child.report()
    assert scheduler.hits(prompt) == 0
    child.kill()
    assert scheduler.hits(prompt) == 0, "unwritten bytes are never found"
    assert worker.store(prompt, 0, 6), "somebody else stores the same prompt at once"
    assert found_whole(worker, scheduler, prompt, 6)

    def reaped() -> bool:
        gone = dead not in server.status()["registered_non_cuda_instance_ids"]
        return gone and server.l1()["write_locked_count"] == 0

    until(reaped, "the dead client's registration and reservations are gone", REAP_SECONDS)

    def returned() -> bool:
        state = server.l1()
        return state["memory_used_bytes"] == state["total_object_count"] * 4096

    until(returned, "its memory came back", REAP_SECONDS)
    assert found_whole(worker, scheduler, prompt, 6)


def found_whole(worker: Worker, scheduler: Scheduler, prompt: Prompt, chunks: int) -> bool:
    """Whether a new request for the prompt hits all of it and gets the right bytes."""
    question = prompt.again()
    found = scheduler.lookup(question) == chunks and worker.retrieve(question, 0, chunks)
    scheduler.end(question)
    return found


@pytest.mark.parametrize("maps_pool", [True, False], ids=["shm", "copy"])
def test_a_retrieve_of_a_killed_client(
    server: LarderServer, worker: Worker, scheduler: Scheduler, maps_pool: bool
) -> None:
    prompt = random_prompt(4 * CHUNK)
    assert worker.store(prompt, 0, 4)
    child = Child(die_while_retrieving, server.url, prompt.again(), 4, maps_pool)
    child.report()
    child.kill()
    until(lambda: server.l1()["read_locked_count"] == 0, "its locks are gone", REAP_SECONDS)
    assert found_whole(worker, scheduler, prompt, 4)


def test_a_client_that_was_only_slow(
    server: LarderServer, worker: Worker, scheduler: Scheduler
) -> None:
    """Its reservation is given up: the commit is refused, and its late bytes hit nobody."""
    slow = Worker(server.url)
    prompt = random_prompt(3 * CHUNK)
    key = slow.key(prompt, 0, 3)
    views, _ = slow.context.prepare_store(key, slow.instance_id)

    def reaped() -> bool:
        return slow.instance_id not in server.status()["registered_non_cuda_instance_ids"]

    until(reaped, "the silent worker is given up", REAP_SECONDS)
    assert worker.store(prompt, 0, 3)
    for view in views:
        view.fill_(3.0)
    del views
    assert slow.context.commit_store(key, slow.instance_id, []) is False
    assert found_whole(worker, scheduler, prompt, 3), "the late writes went elsewhere"
    assert slow.client.call(RequestType.PING, slow.instance_id) is False, "told to register again"
    slow.register()
    with heartbeat(server.url, slow):
        assert slow.store(random_prompt(CHUNK), 0, 1)
    slow.close()


def reserve_everything(reporter: Reporter, url: str) -> None:
    """Take the whole pool for a store that never comes."""
    worker = Worker(url, layout=LARGE)
    prompt = random_prompt(POOL_CHUNKS * CHUNK)
    key = worker.key(prompt, 0, POOL_CHUNKS)
    _, places = worker.context.prepare_store(key, worker.instance_id)
    reporter.report(len(places))
    reporter.wait()


def test_a_killed_client_that_held_the_whole_pool(
    server: LarderServer, scheduler: Scheduler
) -> None:
    child = Child(reserve_everything, server.url)
    assert child.report() > 0
    child.kill()
    large = large_worker(server)

    def stored() -> bool:
        prompt = random_prompt(POOL_CHUNKS // 2 * CHUNK)
        large.store(prompt, 0, POOL_CHUNKS // 2)
        return scheduler.hits(prompt) == POOL_CHUNKS // 2

    with heartbeat(server.url, large):
        until(stored, "half of the pool can be used again", REAP_SECONDS)
    large.close()


def test_ten_engines_die_at_once(server: LarderServer, worker: Worker) -> None:
    prompts = [random_prompt(4 * CHUNK) for _ in range(5)]
    for prompt in prompts:
        assert worker.store(prompt, 0, 4)
    children = [Child(die_while_retrieving, server.url, p.again(), 4, True) for p in prompts]
    children += [
        Child(die_while_storing, server.url, random_prompt(4 * CHUNK), 4, True) for _ in prompts
    ]
    for child in children:
        child.report()
    for child in children:
        child.kill()

    def clean() -> bool:
        state = server.l1()
        return (state["write_locked_count"], state["read_locked_count"]) == (0, 0)

    until(clean, "locks and reservations of ten dead engines are gone", REAP_SECONDS)


# Servers that die.


def test_an_engine_outlives_a_killed_server() -> None:
    """The old mapping stays usable; the heartbeat registers again; the cache starts empty."""
    first = LarderServer(chunk_tokens=CHUNK).start()
    worker, scheduler = Worker(first.url), Scheduler(first.url)
    prompt = random_prompt(3 * CHUNK)
    assert worker.store(prompt, 0, 3)
    pending = worker.key(random_prompt(2 * CHUNK), 0, 2)
    views, _ = worker.context.prepare_store(pending, worker.instance_id)
    first.kill()
    with LarderServer(chunk_tokens=CHUNK, port=first.port, http_port=first.http_port):
        for view in views:
            view.fill_(2.0)
        del views
        assert worker.context.commit_store(pending, worker.instance_id, []) is False
        assert scheduler.lookup(prompt.again()) == 0
        health = recover(worker)
        assert health == [False, True], (
            "one PING is answered false, the next leads to a registration"
        )
        assert worker.uses_shm
        assert worker.store(prompt, 0, 3)
        question = prompt.again()
        assert scheduler.lookup(question) == 3
        assert worker.retrieve(question, 0, 3)
        worker.close()
        scheduler.close()
    first.forget_log()


def recover(worker: Worker) -> list[bool]:
    """Run the real heartbeat's cycles by hand until it has recovered; the health after each."""
    healthy = threading.Event()
    healthy.set()
    heartbeat = HeartbeatThread(worker.client.mq, healthy, CALL_SECONDS, worker.instance_id)

    def register() -> bool:
        worker.register()
        return True

    heartbeat.register_recover_callback(register)
    seen: list[bool] = []
    while len(seen) < 2:
        heartbeat._execute()
        seen.append(healthy.is_set())
    return seen


def test_a_killed_servers_segment_is_swept_by_the_next_start() -> None:
    first = LarderServer(chunk_tokens=CHUNK).start()
    left = first.segments()
    assert left
    first.kill()
    with LarderServer(chunk_tokens=CHUNK):
        assert not any(path.exists() for path in left)
    first.forget_log()


def test_two_servers_leave_each_other_alone() -> None:
    with LarderServer(chunk_tokens=CHUNK) as first:
        worker, scheduler = Worker(first.url), Scheduler(first.url)
        prompt = random_prompt(3 * CHUNK)
        assert worker.store(prompt, 0, 3)
        with LarderServer(chunk_tokens=CHUNK) as second:
            assert not set(first.segments()) & set(second.segments())
            assert all(path.exists() for path in first.segments())
            other, elsewhere = Worker(second.url), Scheduler(second.url)
            assert elsewhere.hits(prompt) == 0
            assert other.store(prompt, 0, 2)
            assert (scheduler.hits(prompt), elsewhere.hits(prompt)) == (3, 2)
            other.close()
            elsewhere.close()
        question = prompt.again()
        assert scheduler.lookup(question) == 3
        assert worker.retrieve(question, 0, 3)
        worker.close()
        scheduler.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_server_in_order(number: signal.Signals) -> None:
    """Also with engines connected, a reservation open and a lookup locked."""
    server = LarderServer(chunk_tokens=CHUNK).start()
    worker, scheduler = Worker(server.url), Scheduler(server.url)
    prompt = random_prompt(2 * CHUNK)
    assert worker.store(prompt, 0, 2)
    assert scheduler.lookup(prompt) == 2
    worker.context.prepare_store(worker.key(random_prompt(CHUNK), 0, 1), worker.instance_id)
    server.stop(number)
    worker.close(unregister=False)
    scheduler.close()
    server.forget_log()


# A full pool.


@pytest.mark.parametrize("maps_pool", [True, False], ids=["shm", "copy"])
def test_a_full_pool_keeps_the_leading_chunks_that_fit(maps_pool: bool) -> None:
    """Everything else is promised to a reader, so nothing may be evicted."""
    with small_pool() as server:
        worker, scheduler = large_worker(server, maps_pool=maps_pool), Scheduler(server.url)
        held = random_prompt(48 * CHUNK)
        assert worker.store(held, 0, 48)
        assert scheduler.lookup(held) == 48
        late = random_prompt(32 * CHUNK)
        stored = worker.store(late, 0, 32)
        hits = scheduler.hits(late)
        assert hits == 16 or (not maps_pool and hits == 0)
        assert stored is maps_pool, "dropped data is a failed store where the client can be told"
        assert worker.retrieve(held, 0, 48), "a promised hit is kept"
        assert server.l1()["memory_used_bytes"] <= server.pool_bytes
        worker.close()
        scheduler.close()


def test_eviction_takes_the_tail_of_a_prompt_before_its_head() -> None:
    with small_pool() as server:
        worker, scheduler = large_worker(server), Scheduler(server.url)
        old, new = random_prompt(40 * CHUNK), random_prompt(40 * CHUNK)
        assert worker.store(old, 0, 40)
        assert scheduler.hits(old) == 40
        assert worker.store(new, 0, 40)
        assert scheduler.hits(new) == 40, "there was room to be made"
        question = old.again()
        left = scheduler.lookup(question)
        assert 0 < left < 40
        assert worker.retrieve(question, 0, left)
        worker.close()
        scheduler.close()


def test_a_pool_in_steady_turnover() -> None:
    """Prompts of three times the pool's size pass through; what hits is right."""
    with small_pool() as server:
        worker, scheduler = large_worker(server), Scheduler(server.url)
        prompts = [random_prompt(12 * CHUNK) for _ in range(16)]
        for prompt in prompts:
            assert worker.store(prompt, 0, 12)
            assert scheduler.hits(prompt) == 12
        found = 0
        for prompt in prompts:
            question = prompt.again()
            hits = scheduler.lookup(question)
            if hits:
                assert worker.retrieve(question, 0, hits)
            scheduler.end(question)
            found += hits
        assert 0 < found <= POOL_CHUNKS
        worker.close()
        scheduler.close()


@pytest.mark.parametrize("maps_pool", [True, False], ids=["shm", "copy"])
def test_an_object_larger_than_the_pool(maps_pool: bool) -> None:
    giant = KvLayout(dtype=torch.uint8, layers=8, heads=16, head_size=16384)
    with small_pool() as server:
        worker = Worker(server.url, layout=giant, blocks=4, maps_pool=maps_pool)
        assert worker.chunk_bytes > server.pool_bytes
        scheduler = Scheduler(server.url)
        prompt = random_prompt(CHUNK)
        assert worker.store(prompt, 0, 1) is maps_pool
        assert scheduler.hits(prompt) == 0
        assert server.l1()["total_object_count"] == 0
        worker.close()
        scheduler.close()


# Starts that must fail.


def failed_start(
    *flags: str, port: int | None = None, http_port: int | None = None
) -> tuple[int, str]:
    """Exit code and output of a server that does not come up."""
    server = LarderServer(*flags, chunk_tokens=CHUNK, port=port, http_port=http_port).launch()
    code = server.wait_end()
    text = server.log_text()
    server.forget_log()
    return code, text


def test_a_pool_that_dev_shm_cannot_hold() -> None:
    name = f"too_large_{free_port()}"
    code, text = failed_start("--l1-size-gb", "4000", "--shm-name", name)
    assert code == 1
    assert "--l1-size-gb" in text
    assert "/dev/shm" in text
    assert re.search(r"4000|4294967296000", text), "names what was wanted"
    assert "free" in text.lower() or "available" in text.lower()
    assert not Path(f"/dev/shm/lmcache_l1_pool_{name}").exists()


def test_a_request_port_that_is_taken() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        code, text = failed_start(port=port)
    assert code == 3
    assert str(port) in text


def test_an_http_port_that_is_taken() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        code, text = failed_start(http_port=port)
    assert code == 3
    assert str(port) in text


def test_a_second_server_on_the_same_port_harms_nothing() -> None:
    with LarderServer(chunk_tokens=CHUNK) as first:
        worker, scheduler = Worker(first.url), Scheduler(first.url)
        prompt = random_prompt(2 * CHUNK)
        assert worker.store(prompt, 0, 2)
        code, _ = failed_start(port=first.port)
        assert code == 3
        assert all(path.exists() for path in first.segments())
        assert scheduler.lookup(prompt) == 2
        assert worker.retrieve(prompt, 0, 2)
        worker.close()
        scheduler.close()


def test_a_segment_name_that_a_live_server_holds() -> None:
    name = f"conformance_{free_port()}"
    with LarderServer("--shm-name", name, chunk_tokens=CHUNK) as first:
        worker = Worker(first.url)
        assert worker.context._shm_name.lstrip("/") == f"lmcache_l1_pool_{name}"
        code, text = failed_start("--shm-name", name)
        assert code not in (0, 2)
        assert name in text
        assert worker.store(random_prompt(CHUNK), 0, 1)
        worker.close()


def refused_flags(*flags: str) -> tuple[int, str]:
    """Exit code and standard error of a command line that must not start anything."""
    ended = subprocess.run(
        [binary(), "serve", *flags], capture_output=True, text=True, timeout=60, check=False
    )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    ("flag", "meant"),
    [("--chunk-sise", "--chunk-size"), ("--l1-size-bg", "--l1-size-gb"), ("--prot", "--port")],
)
def test_a_misspelt_flag_is_answered_with_the_right_one(flag: str, meant: str) -> None:
    code, text = refused_flags(flag, "8")
    assert code == 2
    assert flag in text
    assert meant in text


@pytest.mark.parametrize("flag", ["--port", "--chunk-size", "--l1-size-gb"])
@pytest.mark.parametrize("value", ["-5", "nonsense", "1e99"])
def test_an_impossible_value_names_its_flag(flag: str, value: str) -> None:
    code, text = refused_flags(f"{flag}={value}")
    assert code in (1, 2)
    assert flag in text


def test_the_pool_is_as_large_as_asked_for() -> None:
    with small_pool() as server:
        sizes = [path.stat().st_size for path in server.segments()]
        assert sizes == [16 * MIB]
        assert server.pool_bytes / GIB == 0.015625
        modes = [path.stat().st_mode & 0o777 for path in server.segments()]
        assert modes == [0o600]
