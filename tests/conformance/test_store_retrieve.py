"""Bytes that one engine stores reach another engine unchanged.

Goal: every transfer that the unmodified 0.5.2 client can make - shared memory, copies, both
against one server - for every dtype, for MLA and not, for one rank and several, for one chunk and
a thousand, alone and many at once.
Method: two servers, one with a shared pool and one with `--shm-name ""`. Workers compute their KV
from the tokens, so each retrieve checks its bytes itself (engines.py).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest
import torch
from children import Child, Reporter
from engines import KvLayout, Prompt, Scheduler, Worker, random_prompt
from larder_server import LarderServer
from polling import until

CHUNK = 8

# The client's own scatter works for these on the CPU; for the rest its objects are compared.
SCATTERED = [torch.bfloat16, torch.float16, torch.float32, torch.uint8, torch.int8]
EVERY_DTYPE = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64,
    torch.complex32, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e4m3fnuz,
    torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2,
]  # fmt: skip

dtype_name = str  # "torch.bfloat16"


@pytest.fixture(scope="module")
def shared_pool() -> Iterator[LarderServer]:
    """A server that offers its pool."""
    with LarderServer(chunk_tokens=CHUNK, pool_mib=24) as server:
        yield server


@pytest.fixture(scope="module")
def private_pool() -> Iterator[LarderServer]:
    """A server without shared memory: copies only."""
    with LarderServer("--shm-name", "", chunk_tokens=CHUNK, pool_mib=24) as server:
        yield server


@pytest.fixture(params=["shm", "copy"])
def server(request: pytest.FixtureRequest) -> LarderServer:
    """Either server."""
    name = {"shm": "shared_pool", "copy": "private_pool"}[request.param]
    return request.getfixturevalue(name)


def close(*parts: Worker | Scheduler) -> None:
    """Shut everything down in order."""
    for part in parts:
        part.close()


@pytest.mark.parametrize("mla", [False, True], ids=["kv", "mla"])
@pytest.mark.parametrize("dtype", SCATTERED, ids=dtype_name)
def test_what_one_engine_stores_another_retrieves(
    server: LarderServer, dtype: torch.dtype, mla: bool
) -> None:
    layout = KvLayout(dtype=dtype, mla=mla)
    writer, reader = Worker(server.url, layout=layout), Worker(server.url, layout=layout)
    scheduler = Scheduler(server.url)
    prompt = random_prompt(5 * CHUNK + 3)
    assert scheduler.hits(prompt) == 0
    assert writer.store(prompt, 0, 5)
    assert scheduler.lookup(prompt) == 5
    assert reader.retrieve(prompt, 0, 5)
    scheduler.end(prompt)
    close(writer, reader, scheduler)


@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=dtype_name)
def test_every_dtype_arrives_as_it_was_stored(server: LarderServer, dtype: torch.dtype) -> None:
    layout = KvLayout(dtype=dtype)
    writer, reader = Worker(server.url, layout=layout), Worker(server.url, layout=layout)
    scheduler = Scheduler(server.url)
    prompt = random_prompt(3 * CHUNK)
    assert writer.store(prompt, 0, 3)
    assert scheduler.lookup(prompt) == 3
    assert reader.retrieved_chunks(prompt, 0, 3) == writer.object_bytes(prompt, 0, 3)
    close(writer, reader, scheduler)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_each_rank_gets_its_own_bytes(server: LarderServer, world_size: int) -> None:
    ranks = [
        Worker(server.url, world_size=world_size, worker_id=rank) for rank in range(world_size)
    ]
    scheduler = Scheduler(server.url, world_size=world_size)
    prompt = random_prompt(4 * CHUNK)
    for done, rank in enumerate(ranks):
        assert scheduler.hits(prompt) == 0, f"a hit after {done} of {world_size} ranks"
        assert rank.store(prompt, 0, 4)
    assert scheduler.lookup(prompt) == 4
    for rank in ranks:
        assert rank.retrieve(prompt, 0, 4)
    close(*ranks, scheduler)


@pytest.mark.parametrize("readers", [2, 4])
def test_all_ranks_of_an_mla_model_read_what_the_first_stored(
    server: LarderServer, readers: int
) -> None:
    """Ranks that never store stay unknown to the server: it must serve them without a guess."""
    layout = KvLayout(mla=True)
    ranks = [Worker(server.url, layout=layout) for _ in range(readers)]
    scheduler = Scheduler(server.url, world_size=1, tp_size=readers)
    for _ in range(3):
        prompt = random_prompt(3 * CHUNK)
        assert ranks[0].store(prompt, 0, 3)
        assert scheduler.lookup(prompt) == 3
        assert all([rank.retrieve(prompt, 0, 3) for rank in ranks])
        scheduler.end(prompt)
    close(*ranks, scheduler)


@pytest.mark.parametrize("chunks", [1, 2, 17, 256, 1024])
def test_prompts_of_any_length(server: LarderServer, chunks: int) -> None:
    layout = KvLayout(dtype=torch.uint8, heads=1, layers=1)
    blocks = chunks * CHUNK // layout.block_tokens
    writer = Worker(server.url, layout=layout, blocks=blocks)
    reader = Worker(server.url, layout=layout, blocks=blocks)
    scheduler = Scheduler(server.url)
    prompt = random_prompt(chunks * CHUNK + CHUNK - 1)
    assert writer.store(prompt, 0, chunks)
    assert scheduler.lookup(prompt) == chunks
    assert reader.retrieve(prompt, 0, chunks)
    close(writer, reader, scheduler)


def test_a_prompt_that_grows_is_stored_piece_by_piece(server: LarderServer) -> None:
    writer, reader = Worker(server.url), Worker(server.url)
    scheduler = Scheduler(server.url)
    whole = random_prompt(6 * CHUNK + 1)
    for first, last in [(0, 1), (1, 3), (3, 4), (4, 6)]:
        assert writer.store(whole.cut(last * CHUNK + 1), first, last)
        assert scheduler.hits(whole) == last
    question = whole.again()
    assert scheduler.lookup(question) == 6
    assert reader.retrieve(question, 0, 6)
    close(writer, reader, scheduler)


def test_a_hole_ends_the_hit_until_it_is_filled(server: LarderServer) -> None:
    writer, reader = Worker(server.url), Worker(server.url)
    scheduler = Scheduler(server.url)
    prompt = random_prompt(5 * CHUNK)
    assert writer.store(prompt, 0, 2)
    assert writer.store(prompt, 3, 5)
    question = prompt.again()
    assert scheduler.lookup(question) == 2
    assert reader.retrieve(question, 0, 2)
    assert writer.store(prompt, 2, 3)
    question = prompt.again()
    assert scheduler.lookup(question) == 5
    assert reader.retrieve(question, 0, 5)
    close(writer, reader, scheduler)


def test_a_store_over_a_hole_writes_only_what_is_missing(shared_pool: LarderServer) -> None:
    writer, scheduler = Worker(shared_pool.url), Scheduler(shared_pool.url)
    prompt = random_prompt(5 * CHUNK)
    assert writer.store(prompt, 0, 1)
    assert writer.store(prompt, 2, 3)
    key = writer.key(prompt, 0, 5)
    tensors, places = writer.context.prepare_store(key, writer.instance_id)
    assert places == [1, 3, 4]
    assert len(tensors) == 3
    objects = writer.object_bytes(prompt, 0, 5)
    for tensor, place in zip(tensors, places, strict=True):
        tensor.view(torch.uint8).flatten().copy_(
            torch.frombuffer(bytearray(objects[place]), dtype=torch.uint8)
        )
    assert writer.context.commit_store(key, writer.instance_id, [])
    question = prompt.again()
    assert scheduler.lookup(question) == 5
    assert writer.retrieve(question, 0, 5)
    assert writer.context.prepare_store(key, writer.instance_id) == ([], [])
    close(writer, scheduler)


def test_a_retrieve_may_start_behind_the_first_chunk(server: LarderServer) -> None:
    worker, scheduler = Worker(server.url), Scheduler(server.url)
    prompt = random_prompt(6 * CHUNK)
    assert worker.store(prompt, 0, 6)
    assert scheduler.lookup(prompt) == 6
    scheduler.free(prompt, 0, 2 * CHUNK)
    assert worker.retrieve(prompt, 2, 6)
    close(worker, scheduler)


def test_storing_again_changes_nothing(server: LarderServer) -> None:
    worker, scheduler = Worker(server.url), Scheduler(server.url)
    prompt = random_prompt(3 * CHUNK)
    for _ in range(3):
        assert worker.store(prompt, 0, 3)
        assert scheduler.lookup(prompt) == 3
        assert worker.retrieve(prompt, 0, 3)
    close(worker, scheduler)


def landed_bytes(server: LarderServer) -> int:
    """What was received in the pool of all that copying clients stored."""
    name = "larder_copy_mode_landed_bytes_total "
    lines = [line for line in server.get("/metrics")[1].splitlines() if line.startswith(name)]
    return int(float(lines[0].removeprefix(name)))


def test_large_objects_of_a_copying_client_are_received_in_the_pool(
    private_pool: LarderServer,
) -> None:
    """Of a size that real models have; over and over, so that the pool is full at the end."""
    layout = KvLayout(layers=4, heads=8, head_size=128)
    object_bytes = 2 * 4 * CHUNK * 8 * 128 * 2
    worker, scheduler = Worker(private_pool.url, layout=layout), Scheduler(private_pool.url)
    before = landed_bytes(private_pool)
    for turn in range(30):
        prompt = random_prompt(8 * CHUNK)
        assert worker.store(prompt, 0, 8)
        if turn == 0:
            assert landed_bytes(private_pool) - before == 8 * object_bytes
        assert scheduler.lookup(prompt) == 8
        assert worker.retrieve(prompt, 0, 8)
        scheduler.end(prompt)
    assert landed_bytes(private_pool) - before > 30 * 8 * object_bytes // 2
    close(worker, scheduler)


def test_salts_are_caches_of_their_own(server: LarderServer) -> None:
    worker, scheduler = Worker(server.url), Scheduler(server.url)
    tokens = random_prompt(2 * CHUNK).tokens
    tenants = [Prompt(tokens, salt) for salt in ("", "tenant-a", "tenant b", "ü" * 128)]
    for tenant in tenants:
        assert scheduler.hits(tenant) == 0
        assert worker.store(tenant, 0, 2)
    for tenant in tenants:
        question = tenant.again()
        assert scheduler.lookup(question) == 2
        assert worker.retrieve(question, 0, 2)
    close(worker, scheduler)


def test_models_are_caches_of_their_own(server: LarderServer) -> None:
    tokens = random_prompt(2 * CHUNK).tokens
    names = ["model/one", "model/two", "modèle-三"]
    workers = [Worker(server.url, model=name) for name in names]
    schedulers = [Scheduler(server.url, model=name) for name in names]
    for worker, scheduler in zip(workers, schedulers, strict=True):
        assert scheduler.hits(Prompt(tokens)) == 0
        assert worker.store(Prompt(tokens), 0, 2)
    for worker, scheduler in zip(workers, schedulers, strict=True):
        question = Prompt(tokens)
        assert scheduler.lookup(question) == 2
        assert worker.retrieve(question, 0, 2)
    close(*workers, *schedulers)


def test_world_sizes_are_caches_of_their_own(server: LarderServer) -> None:
    prompt = random_prompt(2 * CHUNK)
    alone = Worker(server.url, world_size=1)
    pair = [Worker(server.url, world_size=2, worker_id=rank) for rank in range(2)]
    of_one, of_two = Scheduler(server.url, world_size=1), Scheduler(server.url, world_size=2)
    assert alone.store(prompt, 0, 2)
    assert (of_one.hits(prompt), of_two.hits(prompt)) == (2, 0)
    assert all([rank.store(prompt, 0, 2) for rank in pair])
    question = prompt.again()
    assert of_two.lookup(question) == 2
    assert all([rank.retrieve(question, 0, 2) for rank in pair])
    close(alone, *pair, of_one, of_two)


@pytest.mark.parametrize("writer_maps", [True, False], ids=["shm-writer", "copy-writer"])
@pytest.mark.parametrize("reader_maps", [True, False], ids=["shm-reader", "copy-reader"])
@pytest.mark.parametrize("reader_stores", [True, False], ids=["known", "unknown"])
def test_both_kinds_of_clients_share_one_pool(
    shared_pool: LarderServer, writer_maps: bool, reader_maps: bool, reader_stores: bool
) -> None:
    """A client that cannot map the pool says nothing and copies; its bytes are the same."""
    writer = Worker(shared_pool.url, maps_pool=writer_maps)
    reader = Worker(shared_pool.url, maps_pool=reader_maps)
    assert (writer.uses_shm, reader.uses_shm) == (writer_maps, reader_maps)
    scheduler = Scheduler(shared_pool.url)
    if reader_stores:
        assert reader.store(random_prompt(2 * CHUNK), 0, 2)
    for _ in range(2):
        prompt = random_prompt(4 * CHUNK)
        assert writer.store(prompt, 0, 4)
        assert scheduler.lookup(prompt) == 4
        assert reader.retrieve(prompt, 0, 4)
        scheduler.end(prompt)
    close(writer, reader, scheduler)
    assert shared_pool.l1()["write_locked_count"] == 0


def test_an_mla_reader_that_copies_is_served_beside_one_that_maps(
    shared_pool: LarderServer,
) -> None:
    layout = KvLayout(mla=True)
    writer = Worker(shared_pool.url, layout=layout)
    readers = [Worker(shared_pool.url, layout=layout, maps_pool=maps) for maps in (True, False)]
    scheduler = Scheduler(shared_pool.url, tp_size=3)
    for _ in range(3):
        prompt = random_prompt(3 * CHUNK)
        assert writer.store(prompt, 0, 3)
        assert scheduler.lookup(prompt) == 3
        assert all([rank.retrieve(prompt, 0, 3) for rank in (writer, *readers)])
        scheduler.end(prompt)
    close(writer, *readers, scheduler)


def test_a_client_that_registers_again_may_have_lost_its_mapping(
    shared_pool: LarderServer,
) -> None:
    worker, scheduler = Worker(shared_pool.url), Scheduler(shared_pool.url)
    prompt = random_prompt(3 * CHUNK)
    assert worker.uses_shm
    assert worker.store(prompt, 0, 3)
    worker._maps_pool = False
    worker.register()
    assert not worker.uses_shm
    question = prompt.again()
    assert scheduler.lookup(question) == 3
    assert worker.retrieve(question, 0, 3)
    later = random_prompt(2 * CHUNK)
    assert worker.store(later, 0, 2)
    assert scheduler.lookup(later) == 2
    assert worker.retrieve(later, 0, 2)
    close(worker, scheduler)


def use_cache(url: str, model: str, seed: int, rounds: int, maps_pool: bool) -> int:
    """An engine's life: look prompts up, retrieve what hits, store the rest; returns the hits."""
    worker = Worker(url, model=model, maps_pool=maps_pool)
    scheduler = Scheduler(url, model=model)
    source = random.Random(seed)
    total = 0
    for _ in range(rounds):
        chunks = source.randint(1, 6)
        prompt = random_prompt(8 * CHUNK, seed=source.randrange(6)).cut(chunks * CHUNK)
        hits = scheduler.lookup(prompt)
        total += hits
        if hits:
            assert worker.retrieve(prompt, 0, hits), "a promised hit was not kept"
        if hits < chunks:
            assert worker.store(prompt, hits, chunks)
        scheduler.end(prompt)
    worker.close()
    scheduler.close()
    return total


def test_many_engines_at_once_in_one_process(shared_pool: LarderServer) -> None:
    """Threads share the client's receive loop, as the parts of an engine do."""
    results: list[int | BaseException] = []

    def live(number: int) -> None:
        try:
            results.append(use_cache(shared_pool.url, f"crowd-{number % 2}", number, 25, True))
        except BaseException as error:
            results.append(error)

    threads = [threading.Thread(target=live, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(results) == 6
    assert not [result for result in results if isinstance(result, BaseException)], results
    assert sum(results) > 0  # type: ignore[arg-type]


def child_engine(reporter: Reporter, url: str, seed: int, maps_pool: bool) -> None:
    """One engine process."""
    reporter.report(use_cache(url, "processes", seed, 30, maps_pool))


def test_many_engines_at_once_in_processes_of_their_own(shared_pool: LarderServer) -> None:
    children = [
        Child(child_engine, shared_pool.url, number, number % 2 == 0) for number in range(4)
    ]
    assert sum(child.report() for child in children) > 0
    for child in children:
        child.join()
    until(
        lambda: not shared_pool.status()["registered_non_cuda_instance_ids"],
        "all children are unregistered",
    )


def test_nothing_is_left_locked(shared_pool: LarderServer, private_pool: LarderServer) -> None:
    """After all of the above: no staging, and read locks only of requests that never ended."""
    for server in (shared_pool, private_pool):
        assert server.l1()["write_locked_count"] == 0
        assert server.status()["registered_non_cuda_instance_ids"] == []
