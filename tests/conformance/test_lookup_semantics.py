"""What LOOKUP promises, how its result is asked for, and how locks come and go.

Goal: the counts and life cycles an engine's scheduler depends on: the job of a lookup, one lock
unit per object and reader, what FREE, END_SESSION and CLEAR give back, which registrations count,
and PING's word to re-register.
Method: real client classes for requests, /status for the counts. Where release 0.5.2 is known to
be wrong (locks that leak, hits that break, request ids that collide) the right behaviour is
asserted.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import msgspec
import pytest
import torch
import wire
from engines import Client, KvLayout, Prompt, Scheduler, Worker, random_prompt
from larder_server import LarderServer
from lmcache.v1.multiprocess.custom_types import BlockAllocationRecord
from lmcache.v1.multiprocess.protocol import RequestType

CHUNK = 8
_models = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[LarderServer]:
    """One server for all tests; each uses a model of its own."""
    with LarderServer(chunk_tokens=CHUNK, pool_mib=24) as shared:
        yield shared


@pytest.fixture
def model(server: LarderServer) -> Iterator[str]:
    """A model name nobody used, on an empty pool; the test must leave no lock behind."""
    with wire.RawConnection(server.port) as connection:
        connection.ask(wire.Op.CLEAR)
    yield f"lookup-{next(_models)}"
    state = server.l1()
    assert state["write_locked_count"] == 0
    assert state["read_locked_count"] == 0


def locked(server: LarderServer) -> int:
    """Objects with a live read lock."""
    return server.l1()["read_locked_count"]


def unknown_id() -> str:
    """A request id nobody used."""
    return f"nobody-{random.getrandbits(64)}"


class Pair:
    """One worker and one scheduler of a model."""

    def __init__(self, server: LarderServer, model: str) -> None:
        self.worker = Worker(server.url, model=model)
        self.scheduler = Scheduler(server.url, model=model)

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.close()
        self.scheduler.close()


# The job of a lookup.


def test_an_unknown_request_has_no_hits(server: LarderServer) -> None:
    client = Client(server.url)
    assert client.call(RequestType.QUERY_PREFETCH_STATUS, unknown_id()) == 0
    assert client.call(RequestType.WAIT_PREFETCH_STATUS, unknown_id(), 5.0) == 0
    assert client.call(RequestType.QUERY_PREFETCH_LOOKUP_HITS, unknown_id()) == 0
    client.close()


def test_a_result_is_handed_out_once(server: LarderServer, model: str) -> None:
    with Pair(server, model) as pair:
        prompt = random_prompt(3 * CHUNK)
        assert pair.worker.store(prompt, 0, 3)
        assert pair.scheduler.lookup(prompt) == 3
        assert pair.scheduler.query(prompt.request_id) == 0
        pair.scheduler.end(prompt)


def test_asking_for_the_hits_keeps_the_result(server: LarderServer, model: str) -> None:
    with Pair(server, model) as pair:
        prompt = random_prompt(3 * CHUNK)
        assert pair.worker.store(prompt, 0, 3)
        pair.scheduler.submit_lookup(prompt)
        for _ in range(3):
            hits = pair.scheduler.client.call(
                RequestType.QUERY_PREFETCH_LOOKUP_HITS, prompt.request_id
            )
            assert hits == 3
        assert pair.scheduler.query(prompt.request_id) == 3
        pair.scheduler.end(prompt)


@pytest.mark.parametrize("timeout", [5.0, 0.0, -1.0, math.nan, math.inf, 1e300])
def test_waiting_for_a_finished_lookup_returns_at_once(
    server: LarderServer, model: str, timeout: float
) -> None:
    with Pair(server, model) as pair:
        prompt = random_prompt(2 * CHUNK)
        assert pair.worker.store(prompt, 0, 2)
        pair.scheduler.submit_lookup(prompt)
        wait = RequestType.WAIT_PREFETCH_STATUS
        assert pair.scheduler.client.call(wait, prompt.request_id, timeout) == 2
        assert pair.scheduler.client.call(wait, prompt.request_id, timeout) == 0
        pair.scheduler.end(prompt)


def test_a_lookup_of_a_model_nobody_registered_finds_nothing(server: LarderServer) -> None:
    scheduler = Scheduler(server.url, model="nobody-serves-this")
    prompt = random_prompt(3 * CHUNK)
    scheduler.submit_lookup(prompt)
    hits = RequestType.QUERY_PREFETCH_LOOKUP_HITS
    assert scheduler.client.call(hits, prompt.request_id) == 0
    assert scheduler.query(prompt.request_id) == 0
    scheduler.free(prompt)
    scheduler.end(prompt)
    scheduler.close()


def test_less_than_a_chunk_is_no_hit(server: LarderServer, model: str) -> None:
    with Pair(server, model) as pair:
        for tokens in (0, 1, CHUNK - 1):
            assert pair.scheduler.lookup(random_prompt(tokens)) == 0


def test_lookup_ignores_start_and_end(server: LarderServer, model: str) -> None:
    with Pair(server, model) as pair:
        prompt = random_prompt(4 * CHUNK + 1)
        assert pair.worker.store(prompt, 0, 4)
        for start, end in [(0, 0), (0, CHUNK), (2 * CHUNK, 3 * CHUNK), (5, 3), (0, 1 << 40)]:
            question = prompt.again()
            pair.scheduler.submit_lookup(question, start, end)
            assert pair.scheduler.query(question.request_id) == 4, (start, end)
            pair.scheduler.end(question)


def test_a_longer_prompt_hits_what_it_shares(server: LarderServer, model: str) -> None:
    with Pair(server, model) as pair:
        stored = random_prompt(3 * CHUNK)
        assert pair.worker.store(stored, 0, 3)
        tail = random_prompt(4 * CHUNK).tokens
        assert pair.scheduler.hits(Prompt(stored.tokens + tail)) == 3
        assert pair.scheduler.hits(Prompt(stored.tokens[: 2 * CHUNK] + tail)) == 2
        assert pair.scheduler.hits(Prompt(stored.tokens[CHUNK:])) == 0


def test_a_job_is_replaced_by_the_next_lookup_of_its_request(
    server: LarderServer, model: str
) -> None:
    with Pair(server, model) as pair:
        long, short = random_prompt(4 * CHUNK), random_prompt(2 * CHUNK)
        assert pair.worker.store(long, 0, 4)
        assert pair.worker.store(short, 0, 2)
        pair.scheduler.submit_lookup(long)
        again = Prompt(short.tokens, request_id=long.request_id)
        pair.scheduler.submit_lookup(again)
        assert pair.scheduler.query(long.request_id) == 2
        assert pair.scheduler.query(long.request_id) == 0
        assert locked(server) == 2
        pair.scheduler.end(again)


# Locks.


def test_a_hit_is_locked_until_it_is_retrieved(server: LarderServer, model: str) -> None:
    with Pair(server, model) as pair:
        prompt = random_prompt(3 * CHUNK)
        assert pair.worker.store(prompt, 0, 3)
        assert pair.scheduler.lookup(prompt) == 3
        assert locked(server) == 3
        assert pair.worker.retrieve(prompt, 0, 3)
        assert locked(server) == 0


def test_free_gives_back_whole_chunks_of_its_range(server: LarderServer, model: str) -> None:
    """A start inside a chunk is rounded up, an end inside a chunk down."""
    with Pair(server, model) as pair:
        prompt = random_prompt(5 * CHUNK)
        assert pair.worker.store(prompt, 0, 5)
        assert pair.scheduler.lookup(prompt) == 5
        pair.scheduler.free(prompt, 1, 2 * CHUNK + 3)
        assert locked(server) == 4
        pair.scheduler.free(prompt, 3 * CHUNK, 2 * CHUNK)
        assert locked(server) == 4
        pair.scheduler.free(prompt, 0, CHUNK)
        assert locked(server) == 3
        pair.scheduler.free(prompt, 0, 1 << 40)
        assert locked(server) == 0


def test_freeing_too_often_takes_no_lock_of_anybody_else(server: LarderServer, model: str) -> None:
    with Pair(server, model) as pair:
        mine = random_prompt(3 * CHUNK)
        theirs = mine.again()
        assert pair.worker.store(mine, 0, 3)
        assert pair.scheduler.lookup(mine) == 3
        assert pair.scheduler.lookup(theirs) == 3
        for _ in range(4):
            pair.scheduler.free(mine)
        pair.scheduler.free(mine.again())
        assert locked(server) == 3
        assert pair.worker.retrieve(theirs, 0, 3)
        assert locked(server) == 0


@pytest.mark.parametrize("readers", [2, 3, 4])
def test_every_rank_of_an_mla_model_has_a_unit(
    server: LarderServer, model: str, readers: int
) -> None:
    layout = KvLayout(mla=True)
    workers = [Worker(server.url, model=model, layout=layout) for _ in range(readers)]
    scheduler = Scheduler(server.url, model=model, world_size=1, tp_size=readers)
    prompt = random_prompt(3 * CHUNK)
    assert workers[0].store(prompt, 0, 3)
    assert scheduler.lookup(prompt) == 3
    for number, worker in enumerate(workers):
        assert locked(server) == 3, f"locks after {number} of {readers} readers"
        assert worker.retrieve(prompt, 0, 3)
    assert locked(server) == 0
    question = prompt.again()
    assert scheduler.lookup(question) == 3
    scheduler.free(question)
    assert locked(server) == 0, "FREE gives back the units of all readers"
    for worker in workers:
        worker.close()
    scheduler.close()


@pytest.mark.parametrize("tp_size", [0, 1, 2])
def test_each_rank_has_its_own_objects_and_units(
    server: LarderServer, model: str, tp_size: int
) -> None:
    ranks = [Worker(server.url, model=model, world_size=2, worker_id=rank) for rank in range(2)]
    scheduler = Scheduler(server.url, model=model, world_size=2, tp_size=tp_size)
    prompt = random_prompt(3 * CHUNK)
    assert all([rank.store(prompt, 0, 3) for rank in ranks])
    assert scheduler.lookup(prompt) == 3
    assert locked(server) == 6
    assert ranks[0].retrieve(prompt, 0, 3)
    assert locked(server) == 3
    assert ranks[1].retrieve(prompt, 0, 3)
    assert locked(server) == 0
    for rank in ranks:
        rank.close()
    scheduler.close()


def test_a_chunk_counts_when_all_ranks_have_it(server: LarderServer, model: str) -> None:
    """What one rank has more is no hit, and stays unlocked."""
    ranks = [Worker(server.url, model=model, world_size=2, worker_id=rank) for rank in range(2)]
    scheduler = Scheduler(server.url, model=model, world_size=2)
    prompt = random_prompt(4 * CHUNK)
    assert ranks[0].store(prompt, 0, 4)
    assert ranks[1].store(prompt, 0, 3)
    assert scheduler.lookup(prompt) == 3
    assert locked(server) == 6
    scheduler.free(prompt, 0, 3 * CHUNK)
    assert locked(server) == 0
    for rank in ranks:
        rank.close()
    scheduler.close()


def test_looking_up_twice_takes_no_second_unit(server: LarderServer, model: str) -> None:
    with Pair(server, model) as pair:
        prompt = random_prompt(2 * CHUNK)
        assert pair.worker.store(prompt, 0, 2)
        for _ in range(3):
            assert pair.scheduler.lookup(prompt) == 2
        pair.scheduler.free(prompt)
        assert locked(server) == 0


def test_the_end_of_a_session_gives_back_its_locks(server: LarderServer, model: str) -> None:
    """An aborted request sends END_SESSION and nothing else."""
    with Pair(server, model) as pair:
        prompt = random_prompt(3 * CHUNK)
        assert pair.worker.store(prompt, 0, 3)
        pair.scheduler.submit_lookup(prompt)
        assert locked(server) == 3
        pair.scheduler.end(prompt)
        assert locked(server) == 0
        assert pair.scheduler.query(prompt.request_id) == 0


def test_the_end_of_a_session_leaves_a_running_transfer_alone(
    server: LarderServer, model: str
) -> None:
    with Pair(server, model) as pair:
        worker, prompt = pair.worker, random_prompt(3 * CHUNK)
        assert worker.store(prompt, 0, 3)
        assert pair.scheduler.lookup(prompt) == 3
        key = worker.key(prompt, 0, 3)
        views = worker.context.prepare_retrieve(key, worker.instance_id)
        pair.scheduler.end(prompt)
        pair.scheduler.client.call(RequestType.CLEAR)
        assert worker.store(random_prompt(3 * CHUNK), 0, 3), "new objects must not take the slots"
        found = [bytes(view.view(torch.uint8).numpy()) for view in views]
        del views
        assert found == worker.object_bytes(prompt, 0, 3)
        assert worker.context.commit_retrieve(key, worker.instance_id)


def test_each_commit_ends_one_retrieve(server: LarderServer, model: str) -> None:
    with Pair(server, model) as pair:
        worker, prompt = pair.worker, random_prompt(2 * CHUNK)
        assert worker.store(prompt, 0, 2)
        key = worker.key(prompt, 0, 2)
        requests = [prompt.again(), prompt.again()]
        for request in requests:
            assert pair.scheduler.lookup(request) == 2
        keys = [worker.key(request, 0, 2) for request in requests]
        assert all([worker.context.prepare_retrieve(key, worker.instance_id) for key in keys])
        for key, left in zip(keys, (2, 0), strict=True):
            assert worker.context.commit_retrieve(key, worker.instance_id)
            assert locked(server) == left
        assert worker.context.commit_retrieve(key, worker.instance_id), (
            "nothing pending: still true"
        )
        assert locked(server) == 0


# Stores.


def test_nothing_is_found_before_its_commit(server: LarderServer, model: str) -> None:
    with Pair(server, model) as pair:
        worker, prompt = pair.worker, random_prompt(2 * CHUNK)
        key = worker.key(prompt, 0, 2)
        views, places = worker.context.prepare_store(key, worker.instance_id)
        assert places == [0, 1]
        assert pair.scheduler.hits(prompt) == 0
        assert server.l1()["write_locked_count"] == 2
        second = worker.context.prepare_store(key, worker.instance_id)
        assert second == ([], []), "this instance is writing them already"
        for view, content in zip(views, worker.object_bytes(prompt, 0, 2), strict=True):
            view.view(torch.uint8).flatten().numpy()[:] = list(content)
        del views
        assert worker.context.commit_store(key, worker.instance_id, [])
        question = prompt.again()
        assert pair.scheduler.lookup(question) == 2
        assert worker.retrieve(question, 0, 2)


def test_a_commit_of_nothing_fails(server: LarderServer, model: str) -> None:
    with Pair(server, model) as pair:
        worker, prompt = pair.worker, random_prompt(2 * CHUNK)
        key = worker.key(prompt, 0, 2)
        assert not worker.context.commit_store(key, worker.instance_id, [])
        worker.context.prepare_store(key, worker.instance_id)
        stranger = Worker(server.url, model=model)
        assert not stranger.context.commit_store(key, stranger.instance_id, [])
        worker.unregister()
        worker.register()
        assert not worker.context.commit_store(key, worker.instance_id, []), "it was discarded"
        assert pair.scheduler.hits(prompt) == 0
        stranger.close()


def test_two_writers_of_one_prompt(server: LarderServer, model: str) -> None:
    """Both succeed as far as they can see, and what is found is right and whole."""
    first, second = Worker(server.url, model=model), Worker(server.url, model=model)
    scheduler = Scheduler(server.url, model=model)
    prompt = random_prompt(3 * CHUNK)
    key = first.key(prompt, 0, 3)
    views, _ = first.context.prepare_store(key, first.instance_id)
    assert second.store(prompt, 0, 3)
    for view, content in zip(views, first.object_bytes(prompt, 0, 3), strict=True):
        view.view(torch.uint8).flatten().numpy()[:] = list(content)
    del views
    assert first.context.commit_store(key, first.instance_id, [])
    assert scheduler.lookup(prompt) == 3
    assert second.retrieve(prompt, 0, 3)
    for part in (first, second, scheduler):
        part.close()


# Registrations.


def test_two_layouts_of_one_model_hit_what_both_have(server: LarderServer, model: str) -> None:
    """A scheduler does not say which of them asks, so a hit must be one for either."""
    ours = Worker(server.url, model=model, layout=KvLayout(dtype=torch.bfloat16))
    theirs = Worker(server.url, model=model, layout=KvLayout(dtype=torch.float32))
    scheduler = Scheduler(server.url, model=model)
    prompt = random_prompt(3 * CHUNK)
    assert ours.store(prompt, 0, 3)
    assert scheduler.hits(prompt) == 0
    assert theirs.store(prompt, 0, 2)
    question = prompt.again()
    assert scheduler.lookup(question) == 2
    assert ours.retrieve(question, 0, 2)
    question = prompt.again()
    assert scheduler.lookup(question) == 2
    assert theirs.retrieve(question, 0, 2)
    scheduler.end(question)
    theirs.close()
    assert scheduler.hits(prompt) == 3
    ours.close()
    scheduler.close()


def refused_registration(model: str) -> list[bytes]:
    """REGISTER_KV_CACHE payloads of a tensor handle that leads nowhere."""
    handle = msgspec.msgpack.Ext(1, b"\x80\x04N.")
    values = [77_000_001, [handle], model, 1, "vllm", {}, []]
    return [wire.encode(value) for value in values]


def test_a_refused_engine_is_never_promised_a_hit(server: LarderServer, model: str) -> None:
    with Pair(server, model) as pair, wire.RawConnection(server.port) as engine:
        prompt = random_prompt(2 * CHUNK)
        assert pair.worker.store(prompt, 0, 2)
        assert pair.scheduler.hits(prompt) == 2
        answer = engine.ask_frames(wire.Op.REGISTER_KV_CACHE, *refused_registration(model))
        assert answer is wire.ABSENT
        assert pair.scheduler.hits(prompt) == 0
        assert engine.ask(wire.Op.UNREGISTER_KV_CACHE, 77_000_001) is wire.ABSENT
        assert pair.scheduler.hits(prompt) == 2


def test_data_outlives_the_registration_of_its_writer(server: LarderServer, model: str) -> None:
    writer, scheduler = Worker(server.url, model=model), Scheduler(server.url, model=model)
    prompt = random_prompt(2 * CHUNK)
    assert writer.store(prompt, 0, 2)
    writer.close()
    assert scheduler.hits(prompt) == 0, "no engine of this model is registered"
    reader = Worker(server.url, model=model)
    assert scheduler.lookup(prompt) == 2
    assert reader.retrieve(prompt, 0, 2)
    reader.close()
    scheduler.close()


def test_registering_again_keeps_the_pool(server: LarderServer, model: str) -> None:
    with Pair(server, model) as pair:
        name = pair.worker.context._shm_name
        assert name.lstrip("/").startswith("lmcache_l1_pool_")
        assert pair.worker.context._pool_size == server.pool_bytes
        for _ in range(3):
            pair.worker.register()
            assert pair.worker.context._shm_name == name
        client = pair.worker.client
        unregister = RequestType.UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT
        assert client.call(RequestType.UNREGISTER_KV_CACHE, pair.worker.instance_id) is None
        assert pair.worker.store(random_prompt(CHUNK), 0, 1), "the other UNREGISTER is not for it"
        assert client.call(unregister, 123_456_789) is None, "unknown ids are fine"


# Request ids.


def test_one_request_id_of_two_engines(server: LarderServer, model: str) -> None:
    """Engines count their requests from 0: neither may end, free or take the other's lookup."""
    worker = Worker(server.url, model=model)
    here, there = Scheduler(server.url, model=model), Scheduler(server.url, model=model)
    long, short = random_prompt(4 * CHUNK), random_prompt(2 * CHUNK)
    ours = Prompt(long.tokens, request_id="0")
    theirs = Prompt(short.tokens, request_id="0")
    assert worker.store(long, 0, 4)
    assert worker.store(short, 0, 2)
    here.submit_lookup(ours)
    there.submit_lookup(theirs)
    assert here.query("0") == 4
    assert there.query("0") == 2
    assert locked(server) == 6
    there.end(theirs)
    assert locked(server) == 4
    assert worker.retrieve(ours, 0, 4)
    here.end(ours)
    worker.close()
    here.close()
    there.close()


@pytest.mark.parametrize("maps_pool", [True, False], ids=["shm", "copy"])
def test_a_request_id_used_again_with_other_tokens(
    server: LarderServer, model: str, maps_pool: bool
) -> None:
    """Wrong bytes under a valid hash are the one thing that must not happen."""
    worker = Worker(server.url, model=model, maps_pool=maps_pool)
    scheduler = Scheduler(server.url, model=model)
    prompts = [Prompt(random_prompt(3 * CHUNK).tokens, request_id="again") for _ in range(4)]
    for prompt in prompts:
        assert scheduler.lookup(prompt) == 0
        assert worker.store(prompt, 0, 3)
    for prompt in prompts:
        assert scheduler.lookup(prompt) == 3
        assert worker.retrieve(prompt, 0, 3)
    worker.close()
    scheduler.close()


def test_generated_tokens_extend_a_request(server: LarderServer, model: str) -> None:
    with Pair(server, model) as pair:
        whole = random_prompt(4 * CHUNK)
        assert pair.scheduler.lookup(whole.cut(2 * CHUNK)) == 0
        assert pair.worker.store(whole.cut(2 * CHUNK), 0, 2)
        assert pair.worker.store(whole.cut(3 * CHUNK), 2, 3)
        pair.scheduler.end(whole)
        assert pair.worker.store(whole, 3, 4), "a last store may come after END_SESSION"
        question = whole.again()
        assert pair.scheduler.lookup(question) == 4
        assert pair.worker.retrieve(question, 0, 4)


# Small requests.


def test_small_requests(server: LarderServer) -> None:
    client = Client(server.url)
    assert client.chunk_tokens == CHUNK
    assert client.call(RequestType.NOOP) == "OK"
    assert client.call(RequestType.PING, None) is True
    client.close()


def test_an_unknown_instance_is_told_once_to_register(server: LarderServer, model: str) -> None:
    client = Client(server.url)
    stranger = random.getrandbits(63)
    answers = [client.call(RequestType.PING, stranger) for _ in range(4)]
    assert answers == [False, True, True, True]
    assert client.call(RequestType.PING, None) is True
    worker = Worker(server.url, model=model)
    for _ in range(3):
        assert client.call(RequestType.PING, worker.instance_id) is True
    worker.close()
    client.close()


def test_block_allocations_are_acknowledged(server: LarderServer) -> None:
    client = Client(server.url)
    records = [BlockAllocationRecord("r", [3, 1, 2], [9, 8, 7]), BlockAllocationRecord("s", [], [])]
    for report in ([], records):
        answer = client.call(RequestType.REPORT_BLOCK_ALLOCATION, 4711, "model", report)
        assert answer is None
    client.close()


# CLEAR.


def test_clear_forgets_objects_and_nothing_else(server: LarderServer, model: str) -> None:
    with Pair(server, model) as pair:
        prompt, pending = random_prompt(3 * CHUNK), random_prompt(2 * CHUNK)
        assert pair.worker.store(prompt, 0, 3)
        key = pair.worker.key(pending, 0, 2)
        pair.worker.context.prepare_store(key, pair.worker.instance_id)
        looked_up = prompt.again()
        pair.scheduler.submit_lookup(looked_up)
        assert pair.scheduler.client.call(RequestType.CLEAR) is None
        assert pair.scheduler.query(looked_up.request_id) == 0, "a promise from before"
        assert pair.scheduler.hits(prompt) == 0
        assert not pair.worker.context.commit_store(key, pair.worker.instance_id, [])
        assert pair.scheduler.hits(pending) == 0
        state = server.l1()
        assert (state["total_object_count"], state["memory_used_bytes"]) == (0, 0)
        assert pair.worker.store(prompt, 0, 3), "the registration stays"
        question = prompt.again()
        assert pair.scheduler.lookup(question) == 3
        assert pair.worker.retrieve(question, 0, 3)
