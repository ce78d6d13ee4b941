"""The vLLM adapters of every release: an engine's request from lookup to end of session, and
restarts of the server.

Goal: engines of any release recover by their own heartbeat, and never read wrong bytes.
Method: the release's scheduler and worker adapters, unmodified, on CPU tensors in its client
process (adapters.py), with a heartbeat of a fraction of a second.
"""

from __future__ import annotations

import pytest
from driver_process import RELEASES, Driver, Drivers
from larder_server import LarderServer
from polling import until
from prompts import random_prompt
from server_state import CHUNK, instances, wait_until_all_have_gone

every_release = pytest.mark.parametrize("release", RELEASES)


@every_release
def test_a_request_from_lookup_to_end_of_session(client: Driver, shared_pool: LarderServer) -> None:
    engine = client.adapter_engine(shared_pool.url)
    prompt = random_prompt(4 * CHUNK + 2)
    assert engine.lookup(prompt) == 0
    assert engine.store(prompt, 0, 4)
    engine.finish(prompt)
    question = prompt.again()
    assert engine.lookup(question) == 4
    engine.free(question, 0, CHUNK)
    assert engine.retrieve(question, 1, 4)
    engine.finish(question)
    until(lambda: shared_pool.l1()["read_locked_count"] == 0, "nothing is locked")
    until(lambda: shared_pool.status()["active_sessions"] == 0, "no session is left")


@every_release
def test_shutdown_unregisters(client: Driver, shared_pool: LarderServer) -> None:
    engine = client.adapter_engine(shared_pool.url)
    identity = engine.instance_id
    assert identity in instances(shared_pool)
    engine.leave()
    assert identity not in instances(shared_pool)


@pytest.mark.parametrize("release", ["0.5.4", "0.5.6"])
def test_the_worker_is_told_of_no_experiments(client: Driver, shared_pool: LarderServer) -> None:
    assert client.adapter_engine(shared_pool.url).experimental() == []


def successor(server: LarderServer) -> LarderServer:
    """A server for the same ports, not started yet."""
    return LarderServer(
        chunk_tokens=CHUNK, port=server.port, http_port=server.http_port, pool_mib=16
    )


@every_release
@pytest.mark.parametrize("noticed", [True, False], ids=["after_a_while", "at_once"])
def test_an_engine_recovers_when_its_server_was_restarted(
    client: Driver, release: str, noticed: bool
) -> None:
    """Its heartbeat finds out, whether or not a PING was lost meanwhile."""
    first = LarderServer(chunk_tokens=CHUNK, pool_mib=16).start()
    second = successor(first)
    try:
        engine = client.adapter_engine(first.url)
        engine.round_trip(random_prompt(3 * CHUNK), 3)
        first.kill()
        if noticed:
            until(lambda: not engine.healthy, "the heartbeats notice")
        second.start()
        until(
            lambda: engine.instance_id in instances(second), "the worker registered again by itself"
        )
        until(lambda: engine.healthy, "both are healthy")
        engine.round_trip(random_prompt(3 * CHUNK), 3)
        client.reset()
        wait_until_all_have_gone(second)
        second.stop()
    finally:
        for server in (first, second):
            if server.alive():
                server.kill()
            server.forget_log()


def wait_until_a_silent_worker_is_given_up(client: Driver, server: LarderServer) -> None:
    """A measure of the server's patience."""
    silent = client.worker(server.url).instance_id
    until(lambda: silent not in instances(server), "a worker without a heartbeat is given up")


@every_release
def test_an_idle_worker_is_not_given_up(client: Driver) -> None:
    """Its heartbeat keeps it registered, also where PING does not say whose it is."""
    flags = ["--worker-reap-timeout-seconds", "2", "--worker-registration-grace-seconds", "2"]
    with LarderServer(*flags, chunk_tokens=CHUNK, pool_mib=16) as server:
        engine = client.adapter_engine(server.url)
        engine.round_trip(random_prompt(CHUNK), 1)
        wait_until_a_silent_worker_is_given_up(client, server)
        assert engine.instance_id in instances(server)
        engine.round_trip(random_prompt(CHUNK), 1)
        client.reset()
        wait_until_all_have_gone(server)


def test_engines_of_all_releases_share_a_prompt(
    drivers: Drivers, shared_pool: LarderServer
) -> None:
    engines = [drivers.of(release).adapter_engine(shared_pool.url) for release in RELEASES]
    for writing in engines:
        prompt = random_prompt(3 * CHUNK)
        assert writing.store(prompt, 0, 3)
        for reading in engines:
            question = prompt.again()
            assert reading.lookup(question) == 3
            assert reading.retrieve(question, 0, 3)
            reading.finish(question)
        writing.finish(prompt)
    until(lambda: shared_pool.l1()["read_locked_count"] == 0, "nothing is locked")


def test_engines_of_all_releases_recover_from_one_restart(drivers: Drivers) -> None:
    """The new server hears each release in the middle of its talk, between those of others."""
    first = LarderServer(chunk_tokens=CHUNK, pool_mib=16).start()
    second = successor(first)
    try:
        engines = [drivers.of(release).adapter_engine(first.url) for release in RELEASES]
        for engine in engines:
            engine.round_trip(random_prompt(2 * CHUNK), 2)
        first.kill()
        until(lambda: not any(engine.healthy for engine in engines), "the heartbeats notice")
        second.start()
        for engine in engines:
            until(lambda: engine.healthy, "both parts of the engine are healthy")  # noqa: B023
        for engine in [*engines, *reversed(engines)]:
            engine.round_trip(random_prompt(3 * CHUNK), 3)
        drivers.reset()
        wait_until_all_have_gone(second)
        second.stop()
    finally:
        for server in (first, second):
            if server.alive():
                server.kill()
            server.forget_log()
