"""Somebody removes the segment's file under a running server.

Goal: the operator is told once, engines that have the pool mapped go on, and nobody is offered a
name that leads nowhere or to somebody else's memory.
Method: the real client against servers whose file in /dev/shm the test unlinks.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines import Scheduler, Worker, random_prompt
from larder_server import LarderServer
from polling import until

CHUNK = 8
SAID = "somebody removed the pool's segment"
TICKS = "lmcache_mp_l1_eviction_loop_ticks_total"


@pytest.fixture
def server() -> Iterator[LarderServer]:
    """A server of the test's own."""
    with LarderServer(chunk_tokens=CHUNK, pool_mib=16) as own:
        yield own


def remove_segment(server: LarderServer) -> Path:
    """Unlink the pool's file, and wait until the server has noticed."""
    (segment,) = server.segments()
    segment.unlink()
    until(lambda: SAID in server.log_text(), "the server says so")
    return segment


def ticks(server: LarderServer) -> float:
    """Passes of the thread that looks after the pool."""
    lines = server.get("/metrics")[1].splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(TICKS))


def test_engines_go_on_with_the_pool_they_have(server: LarderServer) -> None:
    worker, scheduler = Worker(server.url), Scheduler(server.url)
    before = random_prompt(4 * CHUNK)
    assert worker.store(before, 0, 4)
    remove_segment(server)
    after = random_prompt(4 * CHUNK)
    assert worker.store(after, 0, 4)
    for prompt in (before, after):
        question = prompt.again()
        assert scheduler.lookup(question) == 4
        assert worker.retrieve(question, 0, 4)
    assert worker.uses_shm
    worker.close()
    scheduler.close()


def test_new_engines_are_offered_copies_only(server: LarderServer) -> None:
    """They share the cache with those that map the pool all the same."""
    old, scheduler = Worker(server.url), Scheduler(server.url)
    theirs, ours = random_prompt(3 * CHUNK), random_prompt(3 * CHUNK)
    assert old.store(theirs, 0, 3)
    remove_segment(server)
    new = Worker(server.url)
    assert not new.uses_shm
    assert new.store(ours, 0, 3)
    for prompt in (theirs, ours):
        for worker in (old, new):
            question = prompt.again()
            assert scheduler.lookup(question) == 3
            assert worker.retrieve(question, 0, 3)
    for part in (old, new, scheduler):
        part.close()


def test_an_engine_that_registers_again_falls_back_to_copies(server: LarderServer) -> None:
    worker, scheduler = Worker(server.url), Scheduler(server.url)
    prompt = random_prompt(3 * CHUNK)
    assert worker.store(prompt, 0, 3)
    remove_segment(server)
    worker.register()
    assert not worker.uses_shm
    question = prompt.again()
    assert scheduler.lookup(question) == 3
    assert worker.retrieve(question, 0, 3)
    assert worker.store(random_prompt(2 * CHUNK), 0, 2)
    worker.close()
    scheduler.close()


def test_it_is_said_once(server: LarderServer) -> None:
    remove_segment(server)
    seen = ticks(server)
    until(lambda: ticks(server) >= seen + 3, "the server looks three more times")
    assert server.log_text().count(SAID) == 1


def test_a_file_of_somebody_else_under_the_name_is_left_alone(server: LarderServer) -> None:
    """Neither offered to engines nor removed at the end."""
    segment = remove_segment(server)
    segment.write_bytes(bytes(server.pool_bytes))
    try:
        worker = Worker(server.url)
        assert not worker.uses_shm
        assert worker.store(random_prompt(2 * CHUNK), 0, 2)
        worker.close()
        assert server.end(signal.SIGTERM) == 0
        assert segment.read_bytes() == bytes(server.pool_bytes)
    finally:
        segment.unlink()
