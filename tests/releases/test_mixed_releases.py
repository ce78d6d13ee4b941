"""Clients of all releases at one server: what one stored, another gets byte for byte.

Goal: engines and server are upgraded one after the other, and all the while share one cache.
Method: one client process per release. The releases are given paged tensors of different order
(kv.py), as their engines would have; the retrieving one computes what must come from the tokens
alone.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from driver_process import RELEASES, Driver, Drivers
from larder_server import LarderServer
from polling import until
from prompts import Prompt, random_prompt
from server_state import CHUNK, assert_nothing_is_held, instances, wait_until_all_have_gone

PAIRS = [(writer, reader) for writer in RELEASES for reader in RELEASES if writer != reader]
pairs = pytest.mark.parametrize(
    ("writer", "reader"), PAIRS, ids=[f"{writer}-to-{reader}" for writer, reader in PAIRS]
)

# Whether the writer and the reader map the pool.
MODES = {
    "shared_memory": (True, True),
    "copies_to_shared_memory": (False, True),
    "shared_memory_to_copies": (True, False),
}


def assert_round_trip(
    writing: Driver, reading: Driver, server: LarderServer, maps: tuple[bool, bool]
) -> None:
    """What one stores, the other is promised and gets."""
    writer = writing.worker(server.url, maps_pool=maps[0])
    reader = reading.worker(server.url, maps_pool=maps[1])
    scheduler = reading.scheduler(server.url)
    prompt = random_prompt(4 * CHUNK + 1, salt="mixed")
    assert scheduler.hits(prompt) == 0
    assert writer.store(prompt, 0, 4)
    assert scheduler.lookup(question := prompt.again()) == 4
    assert reader.retrieve(question, 0, 4)
    scheduler.end(question)
    assert_nothing_is_held(server)


@pairs
@pytest.mark.parametrize("mode", MODES)
def test_one_release_reads_what_another_stored(
    drivers: Drivers, shared_pool: LarderServer, writer: str, reader: str, mode: str
) -> None:
    assert_round_trip(drivers.of(writer), drivers.of(reader), shared_pool, MODES[mode])


@pairs
def test_one_release_reads_copies_that_another_stored(
    drivers: Drivers, private_pool: LarderServer, writer: str, reader: str
) -> None:
    assert_round_trip(drivers.of(writer), drivers.of(reader), private_pool, (True, True))


@pairs
def test_ranks_of_one_model_may_be_of_two_releases(
    drivers: Drivers, shared_pool: LarderServer, writer: str, reader: str
) -> None:
    """In the middle of an upgrade: rank 1 and the scheduler are of another release than rank 0."""
    older, newer = drivers.of(writer), drivers.of(reader)
    ranks = [
        older.worker(shared_pool.url, model="ranks", world_size=2, worker_id=0),
        newer.worker(shared_pool.url, model="ranks", world_size=2, worker_id=1),
    ]
    scheduler = newer.scheduler(shared_pool.url, model="ranks", world_size=2)
    prompt = random_prompt(3 * CHUNK)
    assert all([rank.store(prompt, 0, 3) for rank in ranks])
    assert scheduler.lookup(question := prompt.again()) == 3
    assert all([rank.retrieve(question, 0, 3) for rank in ranks])
    assert_nothing_is_held(shared_pool)


@pairs
def test_readers_of_one_latent_cache_may_be_of_two_releases(
    drivers: Drivers, shared_pool: LarderServer, writer: str, reader: str
) -> None:
    """The lookup of either release promises the bytes to as many readers as it names."""
    layout = {"mla": True, "head_size": 8}
    storing = drivers.of(writer).worker(shared_pool.url, model="latent", layout=layout)
    reading = drivers.of(reader).worker(shared_pool.url, model="latent", layout=layout)
    for asking in (drivers.of(writer), drivers.of(reader)):
        scheduler = asking.scheduler(shared_pool.url, model="latent", tp_size=2)
        prompt = random_prompt(2 * CHUNK)
        assert storing.store(prompt, 0, 2)
        assert scheduler.lookup(question := prompt.again()) == 2
        assert storing.retrieve(question, 0, 2)
        assert shared_pool.l1()["read_locked_count"] == 2
        assert reading.retrieve(question, 0, 2)
        assert_nothing_is_held(shared_pool)


def test_a_prompt_grows_under_all_releases_in_turn(
    drivers: Drivers, shared_pool: LarderServer
) -> None:
    whole = random_prompt(2 * len(RELEASES) * CHUNK)
    for turn, release in enumerate([*RELEASES, *reversed(RELEASES)]):
        driver = drivers.of(release)
        worker, scheduler = driver.worker(shared_pool.url), driver.scheduler(shared_pool.url)
        prompt = Prompt(whole.tokens[: (turn + 1) * CHUNK])
        assert scheduler.lookup(prompt) == turn
        if turn:
            assert worker.retrieve(prompt, 0, turn)
        assert worker.store(prompt, turn, turn + 1)
        scheduler.end(prompt)
    assert_nothing_is_held(shared_pool)


def use_cache(driver: Driver, url: str, seed: int, rounds: int) -> int:
    """An engine's life: look prompts up, retrieve what hits, store the rest; the hits."""
    source = random.Random(seed)
    worker = driver.worker(url, model="crowd", maps_pool=seed % 2 == 0)
    scheduler = driver.scheduler(url, model="crowd")
    total = 0
    for _ in range(rounds):
        chunks = source.randint(1, 6)
        prompt = random_prompt(8 * CHUNK, seed=source.randrange(6)).again().cut(chunks * CHUNK)
        hits = scheduler.lookup(prompt)
        total += hits
        if hits:
            assert worker.retrieve(prompt, 0, hits), "a promised hit was not kept"
        if hits < chunks:
            assert worker.store(prompt, hits, chunks)
        scheduler.end(prompt)
    worker.leave()
    scheduler.leave()
    return total


def test_all_releases_at_once(drivers: Drivers, shared_pool: LarderServer) -> None:
    with ThreadPoolExecutor(len(RELEASES)) as crowd:
        lives = [
            crowd.submit(use_cache, drivers.of(release), shared_pool.url, seed, 30)
            for seed, release in enumerate(RELEASES)
        ]
    assert all(life.result() > 0 for life in lives)
    until(
        lambda: not instances(shared_pool),
        "all workers have left",
    )
    assert_nothing_is_held(shared_pool)


def test_clear_of_one_release_is_seen_by_all(drivers: Drivers, shared_pool: LarderServer) -> None:
    schedulers = [drivers.of(release).scheduler(shared_pool.url) for release in RELEASES]
    workers = [drivers.of(release).worker(shared_pool.url) for release in RELEASES]
    for clearing in schedulers:
        prompts = [random_prompt(CHUNK) for _ in RELEASES]
        for worker, prompt in zip(workers, prompts, strict=True):
            assert worker.store(prompt, 0, 1)
        assert [scheduler.hits(prompt) for prompt in prompts for scheduler in schedulers] == [
            1
        ] * len(RELEASES) ** 2
        clearing.clear()
        assert [schedulers[0].hits(prompt) for prompt in prompts] == [0] * len(RELEASES)


def test_restart_under_running_clients_of_all_releases(drivers: Drivers) -> None:
    """Each goes on in its own dialect, though the new server hears none from its beginning."""
    first = LarderServer(chunk_tokens=CHUNK, pool_mib=16).start()
    second = None
    try:
        workers = [drivers.of(release).worker(first.url) for release in RELEASES]
        schedulers = [drivers.of(release).scheduler(first.url) for release in RELEASES]
        prompt = random_prompt(2 * CHUNK)
        for worker, scheduler in zip(workers, schedulers, strict=True):
            assert worker.store(prompt, 0, 2)
            assert scheduler.hits(prompt) == 2
        first.kill()
        second = LarderServer(
            chunk_tokens=CHUNK, port=first.port, http_port=first.http_port, pool_mib=16
        ).start()
        for worker in workers:
            worker.ping()
            assert worker.ping() is True
            worker.register()
        assert [scheduler.hits(prompt) for scheduler in schedulers] == [0] * len(RELEASES)
        assert workers[0].store(prompt, 0, 2)
        for worker, scheduler in zip(workers, schedulers, strict=True):
            assert scheduler.lookup(question := prompt.again()) == 2
            assert worker.retrieve(question, 0, 2)
        drivers.reset()
        wait_until_all_have_gone(second)
        second.stop()
    finally:
        for server in (first, second):
            if server is not None:
                if server.alive():
                    server.kill()
                server.forget_log()


@pytest.mark.parametrize("release", RELEASES)
def test_a_killed_client_leaves_nothing_for_the_others(drivers: Drivers, release: str) -> None:
    """kill -9 in the middle of a store and of a retrieve; the others go on, and are not held up."""
    flags = ["--worker-reap-timeout-seconds", "3", "--worker-registration-grace-seconds", "3"]
    with LarderServer(*flags, chunk_tokens=CHUNK, pool_mib=16) as server:
        dying = Driver(release)
        dying.wait_ready()
        worker, scheduler = dying.worker(server.url), dying.scheduler(server.url)
        prompt = random_prompt(3 * CHUNK)
        assert worker.store(prompt, 0, 3)
        assert scheduler.lookup(question := prompt.again()) == 3
        assert worker.open_retrieve(question, 0, 3)
        worker.open_store(random_prompt(2 * CHUNK), 0, 2)
        dying.kill()
        for other in RELEASES:
            living = drivers.of(other)
            reader, asking = living.worker(server.url), living.scheduler(server.url)
            assert asking.lookup(question := prompt.again()) == 3
            assert reader.retrieve(question, 0, 3)
            reader.leave()
            asking.leave()
        until(
            lambda: not instances(server),
            "the dead worker is given up",
            seconds=60,
        )
        until(lambda: server.l1()["write_locked_count"] == 0, "its store is dropped")
        wait_until_all_have_gone(server)
