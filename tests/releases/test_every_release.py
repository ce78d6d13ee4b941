"""Every release on its own: whatever its unmodified client asks, it gets an answer that it
understands.

Goal: the ticks of the compatibility table in README.md; each names a test here.
Method: one client process per release (driver_process.py), two servers: one that offers its pool as
shared memory, one with copies only. Workers compute their KV from the tokens, so that a retrieve
checks its bytes itself.
"""

from __future__ import annotations

from typing import Any

import pytest
from driver_process import RELEASES, Driver, RemoteScheduler, RemoteWorker
from larder_server import LarderServer
from polling import until
from prompts import Prompt, random_prompt
from server_state import CHUNK, assert_nothing_is_held, instances, wait_until_all_have_gone

every_release = pytest.mark.parametrize("release", RELEASES)


def releases(*named: str) -> pytest.MarkDecorator:
    """For what only some releases have."""
    assert set(named) <= set(RELEASES)
    return pytest.mark.parametrize("release", named)


def parts(
    client: Driver, server: LarderServer, **options: Any
) -> tuple[RemoteWorker, RemoteScheduler]:
    """A worker and a scheduler of one engine."""
    return client.worker(server.url, **options), client.scheduler(server.url)


# Lookups.


@every_release
def test_lookup_cold_and_warm(client: Driver, shared_pool: LarderServer) -> None:
    worker, scheduler = parts(client, shared_pool)
    prompt = random_prompt(3 * CHUNK + 2)
    assert scheduler.lookup(prompt) == 0
    assert scheduler.query(prompt.request_id) == 0, "a result is given once"
    assert worker.store(prompt, 0, 3)
    scheduler.end(prompt)
    question = prompt.again()
    assert scheduler.lookup(question) == 3
    scheduler.free(question)
    scheduler.end(question)
    assert scheduler.query("nobody") == 0
    assert_nothing_is_held(shared_pool)


@every_release
def test_lookup_of_a_partial_hit(client: Driver, shared_pool: LarderServer) -> None:
    worker, scheduler = parts(client, shared_pool)
    prompt = random_prompt(5 * CHUNK)
    assert worker.store(prompt, 0, 2)
    assert worker.store(prompt, 3, 5)
    question = prompt.again()
    assert scheduler.lookup(question) == 2, "a hole ends the prefix"
    assert worker.retrieve(question, 0, 2)
    assert worker.store(question, 2, 3)
    scheduler.end(question)
    assert scheduler.lookup(later := prompt.again()) == 5
    assert worker.retrieve(later, 0, 5)
    other = Prompt([*prompt.tokens[: 4 * CHUNK], *random_prompt(CHUNK).tokens])
    assert scheduler.hits(other) == 4, "what two prompts share is shared"
    assert_nothing_is_held(shared_pool)


@every_release
def test_lookup_keeps_salts_apart(client: Driver, shared_pool: LarderServer) -> None:
    worker, scheduler = parts(client, shared_pool)
    tokens = random_prompt(2 * CHUNK).tokens
    tenants = [Prompt(tokens, salt) for salt in ("", "tenant", "ü" * 128)]
    for tenant in tenants:
        assert scheduler.hits(tenant) == 0
        assert worker.store(tenant, 0, 2)
    for tenant in tenants:
        assert scheduler.lookup(question := tenant.again()) == 2
        assert worker.retrieve(question, 0, 2)


@releases("0.5.6")
def test_lookup_ends_where_its_key_ends(client: Driver, shared_pool: LarderServer) -> None:
    """This release's scheduler may hold the last token back to compute at least that one."""
    worker, scheduler = parts(client, shared_pool)
    prompt = random_prompt(4 * CHUNK)
    assert worker.store(prompt, 0, 4)
    question = prompt.again()
    assert scheduler.lookup(question, end=3 * CHUNK) == 3
    assert shared_pool.l1()["read_locked_count"] == 3
    assert worker.retrieve(question, 0, 3)
    scheduler.end(question)
    assert_nothing_is_held(shared_pool)


@releases("0.5.2", "0.5.4", "0.5.6")
def test_lookup_can_be_waited_for(client: Driver, shared_pool: LarderServer) -> None:
    worker, scheduler = parts(client, shared_pool)
    prompt = random_prompt(2 * CHUNK)
    assert worker.store(prompt, 0, 2)
    question = prompt.again()
    scheduler.submit_lookup(question)
    assert scheduler.wait(question.request_id, 5) == 2, "an int for a float"
    assert scheduler.wait(question.request_id, 0.01) == 0
    assert worker.retrieve(question, 0, 2)


@releases("0.4.7", "0.5.2", "0.5.4")
def test_lookup_tells_its_hits_beforehand(client: Driver, shared_pool: LarderServer) -> None:
    worker, scheduler = parts(client, shared_pool)
    prompt = random_prompt(2 * CHUNK)
    assert worker.store(prompt, 0, 2)
    question = prompt.again()
    scheduler.submit_lookup(question)
    assert scheduler.expected_hits(question.request_id) == 2
    assert scheduler.expected_hits("nobody") == 0
    assert scheduler.query(question.request_id) == 2
    assert worker.retrieve(question, 0, 2)


# Transfers.


@every_release
def test_shared_memory(client: Driver, shared_pool: LarderServer) -> None:
    writer, scheduler = parts(client, shared_pool)
    reader = client.worker(shared_pool.url)
    assert writer.uses_shm and reader.uses_shm
    prompt = random_prompt(5 * CHUNK + 3)
    assert writer.store(prompt, 0, 5)
    assert scheduler.lookup(prompt) == 5
    assert reader.retrieve(prompt, 0, 5)
    scheduler.end(prompt)
    assert_nothing_is_held(shared_pool)


@every_release
def test_copy_mode(client: Driver, private_pool: LarderServer) -> None:
    writer, scheduler = parts(client, private_pool)
    reader = client.worker(private_pool.url)
    assert not writer.uses_shm and not reader.uses_shm
    prompt = random_prompt(5 * CHUNK + 3)
    assert writer.store(prompt, 0, 5)
    assert scheduler.lookup(prompt) == 5
    assert reader.retrieve(prompt, 0, 5)
    scheduler.end(prompt)
    assert_nothing_is_held(private_pool)


@every_release
def test_copy_mode_where_the_pool_cannot_be_mapped(
    client: Driver, shared_pool: LarderServer
) -> None:
    worker, scheduler = parts(client, shared_pool, maps_pool=False)
    neighbour = client.worker(shared_pool.url)
    assert not worker.uses_shm and neighbour.uses_shm
    for writer, reader in ((worker, neighbour), (neighbour, worker), (worker, worker)):
        prompt = random_prompt(3 * CHUNK)
        assert writer.store(prompt, 0, 3)
        assert scheduler.lookup(prompt) == 3
        assert reader.retrieve(prompt, 0, 3)
    assert_nothing_is_held(shared_pool)


@every_release
@pytest.mark.parametrize("mla", [False, True], ids=["kv", "mla"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "uint8", "int8"])
def test_every_dtype(client: Driver, shared_pool: LarderServer, dtype: str, mla: bool) -> None:
    layout = {"dtype": dtype, "mla": mla, "heads": 3, "head_size": 8}
    worker = client.worker(shared_pool.url, layout=layout, model=f"model-{dtype}-{mla}")
    scheduler = client.scheduler(shared_pool.url, model=f"model-{dtype}-{mla}")
    prompt = random_prompt(3 * CHUNK)
    assert worker.store(prompt, 0, 3)
    assert scheduler.lookup(prompt) == 3
    assert worker.retrieve(prompt, 0, 3)


@every_release
def test_ranks_have_bytes_of_their_own(client: Driver, shared_pool: LarderServer) -> None:
    ranks = [client.worker(shared_pool.url, world_size=2, worker_id=rank) for rank in range(2)]
    scheduler = client.scheduler(shared_pool.url, world_size=2)
    prompt = random_prompt(3 * CHUNK)
    assert ranks[0].store(prompt, 0, 3)
    assert scheduler.hits(prompt) == 0, "one rank is missing"
    assert ranks[1].store(prompt, 0, 3)
    assert scheduler.lookup(question := prompt.again()) == 3
    assert all([rank.retrieve(question, 0, 3) for rank in ranks])
    assert_nothing_is_held(shared_pool)


@every_release
@pytest.mark.parametrize("mode", ["shared_memory", "copy_mode"])
def test_readers_of_one_latent_cache(
    client: Driver, shared_pool: LarderServer, private_pool: LarderServer, mode: str
) -> None:
    """All ranks of an MLA model read what the first stored; the lookup counts on all of them."""
    server = shared_pool if mode == "shared_memory" else private_pool
    layout = {"mla": True, "head_size": 8}
    ranks = [client.worker(server.url, layout=layout, model="latent") for _ in range(3)]
    scheduler = client.scheduler(server.url, model="latent", tp_size=3)
    prompt = random_prompt(2 * CHUNK)
    assert ranks[0].store(prompt, 0, 2)
    assert scheduler.lookup(question := prompt.again()) == 2
    for number, rank in enumerate(ranks):
        assert server.l1()["read_locked_count"] == 2, f"after {number} of 3 readers"
        assert rank.retrieve(question, 0, 2)
    assert_nothing_is_held(server)
    assert scheduler.lookup(question := prompt.again()) == 2
    scheduler.free(question)
    assert_nothing_is_held(server)


@releases("0.4.7")
def test_memory_that_cannot_be_read_is_refused_and_the_engine_lives(
    client: Driver, shared_pool: LarderServer
) -> None:
    """That release shares CUDA memory only; where there is none, its worker is told so in a way
    that it survives."""
    model = f"server-driven-{client.release}"
    refused = client.worker(shared_pool.url, model=model, server_driven=True)
    scheduler = client.scheduler(shared_pool.url, model=model)
    prompt = random_prompt(2 * CHUNK)
    assert not refused.store(prompt, 0, 2)
    assert scheduler.lookup(prompt) == 0
    assert not refused.retrieve(prompt, 0, 2)
    refused.ping()
    worker, scheduler = parts(client, shared_pool)
    assert worker.store(prompt, 0, 2)
    assert scheduler.lookup(again := prompt.again()) == 2
    assert worker.retrieve(again, 0, 2)


# Locks and sessions.


@every_release
def test_free_gives_back_what_is_not_needed(client: Driver, shared_pool: LarderServer) -> None:
    worker, scheduler = parts(client, shared_pool)
    prompt = random_prompt(4 * CHUNK)
    assert worker.store(prompt, 0, 4)
    question = prompt.again()
    assert scheduler.lookup(question) == 4
    assert shared_pool.l1()["read_locked_count"] == 4
    scheduler.free(question, 0, 3 * CHUNK)
    assert shared_pool.l1()["read_locked_count"] == 1
    assert worker.retrieve(question, 3, 4)
    scheduler.end(question)
    assert_nothing_is_held(shared_pool)


@every_release
def test_end_session_leaves_nothing_locked(client: Driver, shared_pool: LarderServer) -> None:
    worker, scheduler = parts(client, shared_pool)
    prompt = random_prompt(3 * CHUNK)
    assert worker.store(prompt, 0, 3)
    aborted, never_asked = prompt.again(), prompt.again()
    assert scheduler.lookup(aborted) == 3
    scheduler.submit_lookup(never_asked)
    assert shared_pool.l1()["read_locked_count"] == 3
    for request in (prompt, aborted, never_asked):
        scheduler.end(request)
    assert_nothing_is_held(shared_pool)
    assert scheduler.query(never_asked.request_id) == 0, "its answer went with the session"


@every_release
def test_a_client_that_vanishes_leaves_nothing_locked(
    client: Driver, shared_pool: LarderServer
) -> None:
    worker, scheduler = parts(client, shared_pool)
    prompt = random_prompt(3 * CHUNK)
    assert worker.store(prompt, 0, 3)
    vanishing = client.worker(shared_pool.url)
    asking = client.scheduler(shared_pool.url)
    assert asking.lookup(question := prompt.again()) == 3
    assert vanishing.open_retrieve(question, 0, 3)
    vanishing.open_store(random_prompt(2 * CHUNK), 0, 2)
    vanishing.leave()
    asking.end(question)
    asking.leave()
    until(
        lambda: (
            shared_pool.l1()["write_locked_count"] == 0
            and shared_pool.l1()["read_locked_count"] == 0
        ),
        "nothing is locked",
    )
    assert scheduler.lookup(again := prompt.again()) == 3
    assert worker.retrieve(again, 0, 3)


# Connections.


@every_release
def test_simple_requests(client: Driver, shared_pool: LarderServer) -> None:
    worker, scheduler = parts(client, shared_pool)
    assert scheduler.noop() == "OK"
    assert scheduler.ping() is True
    assert worker.ping() is True
    scheduler.report_blocks()
    assert scheduler.noop() == "OK"


@every_release
def test_unregister_and_register_again(client: Driver, shared_pool: LarderServer) -> None:
    worker, scheduler = parts(client, shared_pool)
    identity = worker.instance_id
    assert identity in instances(shared_pool)
    worker.unregister()
    assert identity not in instances(shared_pool)
    worker.register()
    worker.register()
    assert instances(shared_pool).count(identity) == 1
    prompt = random_prompt(2 * CHUNK)
    assert worker.store(prompt, 0, 2)
    assert scheduler.lookup(prompt) == 2
    assert worker.retrieve(prompt, 0, 2)
    worker.leave()
    assert identity not in instances(shared_pool)


def restarted(server: LarderServer) -> LarderServer:
    """A new server on the ports of one that is killed here."""
    server.kill()
    return LarderServer(
        chunk_tokens=server.chunk_tokens, port=server.port, http_port=server.http_port, pool_mib=16
    ).start()


@every_release
def test_restart_under_the_running_client(client: Driver, release: str) -> None:
    """Nobody says a word of the release again: the new server must know it by what comes."""
    first = LarderServer(chunk_tokens=CHUNK, pool_mib=16).start()
    second = None
    try:
        worker, scheduler = parts(client, first)
        prompt = random_prompt(2 * CHUNK)
        assert worker.store(prompt, 0, 2)
        second = restarted(first)
        known = worker.ping()
        if release != "0.4.7":  # whose PING names nobody
            assert known is False, "the new server does not know this worker"
        assert worker.ping() is True
        worker.register()
        assert scheduler.lookup(prompt.again()) == 0, "the new server's cache is empty"
        assert worker.store(prompt, 0, 2)
        assert scheduler.lookup(question := prompt.again()) == 2
        assert worker.retrieve(question, 0, 2)
        client.reset()
        wait_until_all_have_gone(second)
        second.stop()
    finally:
        for server in (first, second):
            if server is not None:
                if server.alive():
                    server.kill()
                server.forget_log()


@every_release
def test_clear(client: Driver, shared_pool: LarderServer) -> None:
    worker, scheduler = parts(client, shared_pool)
    prompt = random_prompt(3 * CHUNK)
    assert worker.store(prompt, 0, 3)
    scheduler.clear()
    assert shared_pool.l1()["total_object_count"] == 0
    assert scheduler.hits(prompt) == 0
    assert worker.store(prompt, 0, 3)
    assert scheduler.hits(prompt) == 3


@releases("0.5.6")
def test_clear_keeps_what_is_promised_unless_forced(
    client: Driver, shared_pool: LarderServer
) -> None:
    worker, scheduler = parts(client, shared_pool)
    prompt, promised = random_prompt(3 * CHUNK), random_prompt(2 * CHUNK)
    assert worker.store(prompt, 0, 3)
    assert worker.store(promised, 0, 2)
    assert scheduler.lookup(question := promised.again()) == 2
    scheduler.clear()
    assert scheduler.hits(prompt) == 0
    assert worker.retrieve(question, 0, 2)
    scheduler.end(question)
    scheduler.clear(force=True)
    assert shared_pool.l1()["total_object_count"] == 0


@releases("0.5.4", "0.5.6")
def test_experimental_list_is_empty(client: Driver, shared_pool: LarderServer) -> None:
    assert client.scheduler(shared_pool.url).experimental() == []


@releases("0.5.6")
def test_event_subscription_is_ended_at_once(client: Driver, shared_pool: LarderServer) -> None:
    scheduler = client.scheduler(shared_pool.url)
    assert scheduler.subscribe() == []
    assert scheduler.noop() == "OK", "the connection lives on"
    assert scheduler.subscribe() == []


@releases("0.5.6")
def test_server_module_call_is_answered_no(client: Driver, shared_pool: LarderServer) -> None:
    answer = client.scheduler(shared_pool.url).call_module("anything")
    assert answer["success"] is False
    assert answer["payload"] == ""
    assert answer["error"], "a reason is given"


@every_release
def test_blend_lookup_finds_nothing(client: Driver, shared_pool: LarderServer) -> None:
    """Blending is not served; its client must not wait for it."""
    worker, scheduler = parts(client, shared_pool)
    prompt = random_prompt(2 * CHUNK)
    assert worker.store(prompt, 0, 2)
    answer = scheduler.blend_coverage(prompt.again())
    assert answer.pop("prefix_coverage_tokens") == 0
    assert all(segments == [] for segments in answer.values()), answer
    assert_nothing_is_held(shared_pool)


@releases("0.5.6")
def test_blend_handshake_is_answered_no(client: Driver, shared_pool: LarderServer) -> None:
    scheduler = client.scheduler(shared_pool.url)
    for version in (1, 2):
        assert scheduler.blend_handshake(version)[1] is False, "nothing here is compatible"


@every_release
def test_status_names_the_release(client: Driver, shared_pool: LarderServer, release: str) -> None:
    worker, scheduler = parts(client, shared_pool)
    prompt = random_prompt(CHUNK)
    assert worker.store(prompt, 0, 1)
    assert scheduler.hits(prompt) == 1

    def named() -> list[str]:
        return [entry["release"] for entry in shared_pool.status()["client_connections"]]

    def spoken() -> bool:
        return len(named()) == 2 and all(includes(name, release) for name in named())

    until(spoken, f"both connections are said to speak {release}")


def includes(named: str, release: str) -> bool:
    """Whether a name such as 0.5.0-0.5.2 or 0.4.7 covers a release."""
    first, _, last = named.partition("-")
    return version(first) <= version(release) <= version(last or first)


def version(text: str) -> tuple[int, ...]:
    """Comparable."""
    return tuple(int(part) for part in text.split("."))
