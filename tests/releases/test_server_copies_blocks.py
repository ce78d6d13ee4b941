"""LMCACHE_MP_TRANSFER_MODE=lmcache_driven: engines share their KV memory and the server copies blocks.

Goal: what is retrieved is what was stored, in every form of KV tensor, with several kinds of layers
and windows, and no other block of the engine is ever touched.
Method: the real clients of three releases on tensors in shared memory; after every retrieve the driver
compares all blocks of all layers with what the prompt's tokens say (paged_layers.py). The engines of
the CPU clients before 0.5.5 keep heads outside tokens, that of 0.5.6 inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driver_process import Driver, Drivers, RemoteMemoryWorker, RemoteScheduler
from larder_server import LarderServer
from polling import until
from prompts import Prompt, random_prompt
from server_state import CHUNK, assert_nothing_is_held, wait_until_all_have_gone

RELEASES = ("0.5.2", "0.5.4", "0.5.6")
PAIRS = [(writer, reader) for writer in RELEASES for reader in RELEASES if writer != reader]
every_release = pytest.mark.parametrize("release", RELEASES)
newest_and_oldest = pytest.mark.parametrize("release", ["0.5.2", "0.5.6"])

REAP_SOON = ["--worker-reap-timeout-seconds", "3", "--worker-registration-grace-seconds", "3"]

FORMS: dict[str, list[dict[str, Any]]] = {
    "kv_first": [{"form": "kv_first"}] * 3,
    "blocks_first": [{"form": "blocks_first"}] * 3,
    "fused": [{"form": "fused"}] * 3,
    "mla": [{"form": "mla", "head_size": 24}] * 3,
    "float32": [{"form": "kv_first", "dtype": "float32", "block_tokens": 8}] * 2,
    "bytes": [{"form": "fused", "dtype": "uint8", "head_size": 5}] * 2,
}

# Full attention, a window of two chunks, and one of half a chunk, each with blocks of its own.
HYBRID: list[dict[str, Any]] = [
    {"form": "kv_first", "group": 0},
    {"form": "kv_first", "group": 0},
    {"form": "fused", "group": 1, "window": 2 * CHUNK, "block_tokens": 2},
    {"form": "kv_first", "group": 2, "window": CHUNK // 2, "heads": 2},
]


def parts(
    client: Driver, server: LarderServer, **options: Any
) -> tuple[RemoteMemoryWorker, RemoteScheduler]:
    """A worker and a scheduler of one engine."""
    model = options.setdefault("model", "model")
    world_size = options.get("world_size", 1)
    return (
        client.memory_worker(server.url, **options),
        client.scheduler(server.url, model=model, world_size=world_size),
    )


@every_release
@pytest.mark.parametrize("form", FORMS)
def test_blocks_come_back_as_they_were(
    client: Driver, shared_pool: LarderServer, form: str
) -> None:
    worker, scheduler = parts(client, shared_pool, model=form, layers=FORMS[form])
    prompt = random_prompt(4 * CHUNK + 3)
    assert scheduler.lookup(prompt) == 0
    assert worker.store(prompt, 0, 4)
    scheduler.end(prompt)
    question = prompt.again()
    assert scheduler.lookup(question) == 4
    assert worker.retrieve(question, 0, 4)
    scheduler.end(question)
    assert worker.store(prompt.again(), 0, 4), "what is there already is no failure"
    assert_nothing_is_held(shared_pool)


@every_release
def test_a_stored_chunk_is_a_hit_as_soon_as_the_answer_is_there(
    client: Driver, shared_pool: LarderServer
) -> None:
    worker, scheduler = parts(client, shared_pool)
    for _ in range(20):
        prompt = random_prompt(CHUNK)
        assert worker.store(prompt, 0, 1)
        assert scheduler.hits(prompt) == 1


@every_release
def test_a_prompt_grows_chunk_by_chunk(client: Driver, shared_pool: LarderServer) -> None:
    worker, scheduler = parts(client, shared_pool)
    prompt = random_prompt(5 * CHUNK)
    assert worker.store(prompt, 0, 2)
    assert scheduler.hits(prompt) == 2
    assert worker.store(prompt, 2, 5)
    assert scheduler.lookup(question := prompt.again()) == 5
    scheduler.free(question, 0, 3 * CHUNK)
    assert worker.retrieve(question, 3, 5)
    assert_nothing_is_held(shared_pool)


@every_release
@pytest.mark.parametrize("skip", [0, 3, 4, CHUNK, CHUNK + 5, 4 * CHUNK, 1000])
def test_skipped_tokens_are_not_written(
    client: Driver, shared_pool: LarderServer, skip: int
) -> None:
    """Whole blocks only: one that is skipped in part is written."""
    worker, scheduler = parts(client, shared_pool, model="skip")
    prompt = random_prompt(4 * CHUNK)
    assert worker.store(prompt, 0, 4)
    assert scheduler.lookup(question := prompt.again()) == 4
    assert worker.retrieve(question, 0, 4, skip)
    assert_nothing_is_held(shared_pool)


@every_release
@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_a_hybrid_model_reads_only_its_windows(
    client: Driver, shared_pool: LarderServer, chunks: int
) -> None:
    worker, scheduler = parts(client, shared_pool, model="hybrid", layers=HYBRID)
    prompt = random_prompt(chunks * CHUNK)
    assert worker.store(prompt, 0, chunks)
    assert scheduler.lookup(question := prompt.again()) == chunks
    needed = chunks + min(chunks, 2) + 1
    assert shared_pool.l1()["read_locked_count"] == needed, "of a window only the last chunks"
    assert worker.retrieve(question, 0, chunks)
    assert_nothing_is_held(shared_pool)
    assert scheduler.lookup(question := prompt.again()) == chunks
    assert worker.retrieve(question, 0, chunks, CHUNK + 3)
    assert_nothing_is_held(shared_pool)


@every_release
def test_blocks_that_slid_out_of_a_window_are_not_stored(
    client: Driver, shared_pool: LarderServer
) -> None:
    """vLLM names its null block for them; what lies there is nobody's KV."""
    worker, scheduler = parts(client, shared_pool, model="slid", layers=HYBRID)
    prompt = random_prompt(4 * CHUNK)
    # Two blocks of the null block: half of a chunk in one group, a whole chunk in the other.
    assert worker.store(prompt, 0, 4, vacate=2)
    assert scheduler.hits(prompt) == 4, "the window's last chunks are there"
    assert scheduler.lookup(question := prompt.again()) == 4
    assert worker.retrieve(question, 0, 4)
    shorter = Prompt(prompt.tokens[:CHUNK])
    assert scheduler.hits(shorter) == 0, "its window would hold what was never computed"


@every_release
def test_longer_block_lists_are_accepted(client: Driver, shared_pool: LarderServer) -> None:
    worker, scheduler = parts(client, shared_pool)
    prompt = random_prompt(2 * CHUNK)
    assert worker.store(prompt, 0, 2, extra=3)
    assert scheduler.lookup(question := prompt.again()) == 2
    assert worker.retrieve(question, 0, 2)


WRONG_LISTS = {
    "no list": [],
    "two lists": [[1, 2, 3, 4], [1, 2, 3, 4]],
    "short": [[1, 2, 3]],
    "empty": [[]],
    "negative": [[1, 2, -1, 4]],
    "beyond the tensor": [[1, 2, 80, 4]],
    "far beyond": [[1, 2, 2**62, 4]],
}


@every_release
@pytest.mark.parametrize("lists", WRONG_LISTS.values(), ids=WRONG_LISTS)
def test_wrong_block_lists_fail_at_once_and_touch_nothing(
    client: Driver, shared_pool: LarderServer, lists: list[list[int]]
) -> None:
    worker, scheduler = parts(client, shared_pool)
    prompt, stored = random_prompt(2 * CHUNK), random_prompt(2 * CHUNK)
    assert not worker.submit_store(prompt, 0, 2, lists)
    assert scheduler.hits(prompt) == 0
    assert worker.store(stored, 0, 2)
    assert scheduler.lookup(question := stored.again()) == 2
    assert worker.miss(question, 0, 2, lists)
    scheduler.end(question)
    assert worker.store(prompt, 0, 2)
    assert_nothing_is_held(shared_pool)


@every_release
def test_what_is_not_stored_is_a_miss_that_writes_nothing(
    client: Driver, shared_pool: LarderServer
) -> None:
    worker, scheduler = parts(client, shared_pool)
    prompt = random_prompt(3 * CHUNK)
    assert worker.store(prompt, 0, 2)
    assert scheduler.lookup(question := prompt.again()) == 2
    assert not worker.retrieve(question, 0, 3), "all or nothing"
    assert not worker.retrieve(random_prompt(CHUNK), 0, 1)
    assert worker.retrieve(question, 0, 2)
    scheduler.end(question)
    assert_nothing_is_held(shared_pool)


@every_release
def test_a_retrieve_without_a_lookup_is_served(client: Driver, shared_pool: LarderServer) -> None:
    worker, _ = parts(client, shared_pool)
    prompt = random_prompt(2 * CHUNK)
    assert worker.store(prompt, 0, 2)
    assert worker.retrieve(prompt.again(), 0, 2)
    assert_nothing_is_held(shared_pool)


@every_release
def test_engines_of_one_model_share(client: Driver, shared_pool: LarderServer) -> None:
    writer, scheduler = parts(client, shared_pool, model="shared", layers=HYBRID)
    reader, _ = parts(client, shared_pool, model="shared", layers=HYBRID)
    prompt = random_prompt(3 * CHUNK)
    assert writer.store(prompt, 0, 3)
    writer.leave()
    assert scheduler.lookup(question := prompt.again()) == 3
    assert reader.retrieve(question, 0, 3)
    assert_nothing_is_held(shared_pool)


@pytest.mark.parametrize(
    ("writer", "reader"), PAIRS, ids=[f"{writer}-to-{reader}" for writer, reader in PAIRS]
)
@pytest.mark.parametrize("form", ["kv_first", "blocks_first", "fused", "mla"])
def test_engines_of_two_releases_share(
    drivers: Drivers, shared_pool: LarderServer, writer: str, reader: str, form: str
) -> None:
    """With one head, as then all releases see the same order in a block."""
    layers = [{"form": form, "heads": 1, "head_size": 16}] * 2
    model = f"two-releases-{form}"
    writing = drivers.of(writer).memory_worker(shared_pool.url, model=model, layers=layers)
    reading, scheduler = parts(drivers.of(reader), shared_pool, model=model, layers=layers)
    prompt = random_prompt(3 * CHUNK)
    assert writing.store(prompt, 0, 3)
    assert scheduler.lookup(question := prompt.again()) == 3
    assert reading.retrieve(question, 0, 3)
    assert_nothing_is_held(shared_pool)


@every_release
def test_ranks_store_and_read_their_own(client: Driver, shared_pool: LarderServer) -> None:
    ranks = [
        client.memory_worker(shared_pool.url, model="ranks-m", world_size=2, worker_id=rank)
        for rank in range(2)
    ]
    scheduler = client.scheduler(shared_pool.url, model="ranks-m", world_size=2)
    prompt = random_prompt(2 * CHUNK)
    assert ranks[0].store(prompt, 0, 2)
    assert scheduler.hits(prompt) == 0
    assert ranks[1].store(prompt, 0, 2)
    assert scheduler.lookup(question := prompt.again()) == 2
    assert all([rank.retrieve(question, 0, 2) for rank in ranks])
    assert_nothing_is_held(shared_pool)


@every_release
def test_the_two_ways_of_copying_are_not_confused(
    client: Driver, shared_pool: LarderServer
) -> None:
    """An engine that copies its own blocks never gets what the server copied, nor the reverse."""
    model = f"both-ways-{client.release}"
    memory, scheduler = parts(client, shared_pool, model=model)
    prompt, other = random_prompt(2 * CHUNK), random_prompt(2 * CHUNK)
    assert memory.store(prompt, 0, 2)
    assert scheduler.hits(prompt) == 2
    own = client.worker(shared_pool.url, model=model)
    assert scheduler.hits(prompt) == 0, "not every engine of the model could read it"
    assert not own.retrieve(prompt.again(), 0, 2)
    assert own.store(other, 0, 2)
    assert not memory.retrieve(other.again(), 0, 2)
    own.leave()
    assert scheduler.hits(prompt) == 2
    assert memory.retrieve(prompt.again(), 0, 2)


@every_release
def test_a_new_registration_reads_into_the_new_tensors(
    client: Driver, shared_pool: LarderServer
) -> None:
    """An engine that comes back under its old id with other memory; the reference goes on with the
    old."""
    before, scheduler = parts(client, shared_pool)
    prompt = random_prompt(2 * CHUNK)
    assert before.store(prompt, 0, 2)
    after = client.memory_worker(shared_pool.url, instance_id=before.instance_id)
    assert after.retrieve(prompt.again(), 0, 2)
    assert not after.has_only(0)
    assert not before.has_only(0)
    second = random_prompt(2 * CHUNK)
    assert after.store(second, 0, 2)
    assert after.retrieve(second.again(), 0, 2)
    assert scheduler.hits(second) == 2


def mappings(server: LarderServer) -> int:
    """How many segments of engines the server has mapped."""
    maps = Path(f"/proc/{server.pid}/maps").read_text()
    return sum("lmcache_kv" in line for line in maps.splitlines())


@every_release
def test_memory_is_unmapped_when_its_engine_leaves(
    client: Driver, shared_pool: LarderServer
) -> None:
    mapped = mappings(shared_pool)
    worker, _ = parts(client, shared_pool)
    assert mappings(shared_pool) == mapped + 2
    worker.register()
    assert mappings(shared_pool) == mapped + 2
    worker.leave()
    assert mappings(shared_pool) == mapped




@every_release
def test_a_killed_engine_is_forgotten(drivers: Drivers, release: str) -> None:
    """Its mapping goes, its segments stay as it left them: they are not the server's."""
    survivor = drivers.of(release)
    with LarderServer(
        *REAP_SOON, chunk_tokens=CHUNK, pool_mib=16
    ) as server:
        killed = Driver(release)
        killed.wait_ready()
        before = set(Path("/dev/shm").glob("lmcache_kv_*"))
        worker = killed.memory_worker(server.url, model="killed")
        segments = set(Path("/dev/shm").glob("lmcache_kv_*")) - before
        prompt = random_prompt(2 * CHUNK)
        assert worker.store(prompt, 0, 2)
        killed.kill()
        assert segments and all(segment.exists() for segment in segments)
        for segment in segments:
            segment.unlink()
        reader, scheduler = parts(survivor, server, model="killed")
        assert scheduler.lookup(question := prompt.again()) == 2
        assert reader.retrieve(question, 0, 2)
        until(lambda: mappings(server) <= 2, "the dead engine's memory is unmapped", seconds=60)
        assert_nothing_is_held(server)
        survivor.reset()
        wait_until_all_have_gone(server)


@newest_and_oldest
def test_an_engine_registers_again_with_a_new_server(drivers: Drivers, release: str) -> None:
    client = drivers.of(release)
    with LarderServer(chunk_tokens=CHUNK, pool_mib=16) as server:
        worker, scheduler = parts(client, server)
        prompt = random_prompt(2 * CHUNK)
        assert worker.store(prompt, 0, 2)
        server.kill()
        server.start()
        assert not worker.store(prompt, 0, 2), "unknown, and answered at once"
        assert not worker.retrieve(prompt.again(), 0, 2)
        assert [worker.ping(), worker.ping()] == [False, True]
        worker.register()
        assert worker.store(prompt, 0, 2)
        assert scheduler.hits(prompt) == 2
        client.reset()
        wait_until_all_have_gone(server)


@newest_and_oldest
def test_a_server_that_only_serves_the_other_way_says_so(drivers: Drivers, release: str) -> None:
    client = drivers.of(release)
    with LarderServer(
        "--supported-transfer-mode", "engine_driven", chunk_tokens=CHUNK, pool_mib=16
    ) as server:
        worker, scheduler = parts(client, server)
        prompt = random_prompt(2 * CHUNK)
        assert not worker.store(prompt, 0, 2)
        assert not worker.retrieve(prompt, 0, 2)
        assert scheduler.lookup(prompt) == 0
        assert "LMCACHE_MP_TRANSFER_MODE=engine_driven" in server.log_text()
        client.reset()
        wait_until_all_have_gone(server)


@newest_and_oldest
def test_all_layers_can_be_stored_as_one_object(drivers: Drivers, release: str) -> None:
    client = drivers.of(release)
    with LarderServer(
        "--no-separate-object-groups", chunk_tokens=CHUNK, pool_mib=16
    ) as server:
        full = [{**layer, "window": -1} for layer in HYBRID]
        worker, scheduler = parts(client, server, layers=full)
        prompt = random_prompt(3 * CHUNK)
        assert worker.store(prompt, 0, 3)
        assert server.l1()["total_object_count"] == 3
        assert scheduler.lookup(question := prompt.again()) == 3
        assert worker.retrieve(question, 0, 3)
        client.reset()
        wait_until_all_have_gone(server)


@newest_and_oldest
def test_a_full_pool_evicts_for_a_store(drivers: Drivers, release: str) -> None:
    client = drivers.of(release)
    with LarderServer(chunk_tokens=CHUNK, pool_mib=4) as server:
        layers = [{"heads": 16, "head_size": 256}] * 4
        worker, scheduler = parts(client, server, layers=layers, blocks=40)
        prompts = [random_prompt(4 * CHUNK) for _ in range(6)]
        for prompt in prompts:
            assert worker.store(prompt, 0, 4)
        kept = [scheduler.hits(prompt) for prompt in prompts]
        assert kept[-1] > 0
        assert sum(kept) < 24, "the pool holds less than was stored"
        for prompt, hits in zip(prompts, kept, strict=True):
            if hits > 0:
                assert worker.retrieve(prompt.again(), 0, hits)
        assert_nothing_is_held(server)
        client.reset()
        wait_until_all_have_gone(server)


@newest_and_oldest
def test_a_changed_byte_is_copied_to_nobody(drivers: Drivers, release: str) -> None:
    """With --l1-verify, stored bytes that change by themselves are a miss that touches no block."""
    client = drivers.of(release)
    with LarderServer("--l1-verify", "always", chunk_tokens=CHUNK, pool_mib=16) as server:
        worker, scheduler = parts(client, server)
        prompt = random_prompt(3 * CHUNK)
        assert worker.store(prompt, 0, 3)
        assert scheduler.lookup(question := prompt.again()) == 3
        (pool,) = [path for path in server.segments() if "lmcache_l1_pool" in path.name]
        with pool.open("r+b") as file:
            content = file.read()
            place = next(at for at, byte in enumerate(content) if byte)
            file.seek(place)
            file.write(bytes([content[place] ^ 1]))
        assert not worker.retrieve(question, 0, 3)
        assert server.l1()["corrupted_count"] == 1
        again = prompt.again()
        assert worker.store(again, 0, 3)
        assert scheduler.lookup(again) == 3
        assert worker.retrieve(again, 0, 3)
        assert_nothing_is_held(server)
        client.reset()
        wait_until_all_have_gone(server)
