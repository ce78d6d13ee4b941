"""Stored bytes that change by themselves, with --l1-verify.

Goal: bytes that faulty memory or a stray write has changed are never handed out; their chunk is a
clean miss, is counted and said, and can be stored and found again.
Method: the real client stores, the test changes one byte of the segment through a mapping of its
own, and the client retrieves; as client with shared memory and as one without.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines import Scheduler, Worker, random_prompt
from larder_server import LarderServer

CHUNK = 8
CHUNKS = 3


@pytest.fixture(params=["shm", "copy"])
def parts(request: pytest.FixtureRequest) -> Iterator[tuple[LarderServer, Worker, Scheduler]]:
    """A server that verifies everything, with one engine."""
    with LarderServer("--l1-verify", "always", chunk_tokens=CHUNK, pool_mib=16) as server:
        worker = Worker(server.url, maps_pool=request.param == "shm")
        scheduler = Scheduler(server.url)
        yield server, worker, scheduler
        worker.close()
        scheduler.close()


def change_a_byte(server: LarderServer, content: bytes) -> None:
    """Change one byte of the only place of the pool where this is stored."""
    (segment,) = server.segments()
    with Path(segment).open("r+b") as file, contextlib.closing(
        mmap.mmap(file.fileno(), server.pool_bytes)
    ) as pool:
        place = pool.find(content)
        assert place >= 0
        assert pool.find(content, place + 1) < 0
        pool[place + len(content) // 2] ^= 0x10


def counted(server: LarderServer) -> float:
    """The counter of /metrics, which /status must agree with."""
    code, page = server.get("/metrics")
    assert code == 200
    (value,) = [
        float(line.split()[1])
        for line in page.splitlines()
        if line.startswith("larder_l1_corrupted_objects_total ")
    ]
    assert server.l1()["corrupted_count"] == value
    return value


def test_a_changed_byte_becomes_a_miss(parts: tuple[LarderServer, Worker, Scheduler]) -> None:
    server, worker, scheduler = parts
    prompt = random_prompt(CHUNKS * CHUNK)
    assert worker.store(prompt, 0, CHUNKS)
    early = prompt.again()
    assert scheduler.lookup(early) == CHUNKS
    assert scheduler.lookup(prompt) == CHUNKS
    assert counted(server) == 0
    change_a_byte(server, worker.object_bytes(prompt, 1, 2)[0])

    assert not worker.retrieve(prompt, 0, CHUNKS)
    assert counted(server) == 1
    assert "CORRUPTED DATA" in server.log_text()
    assert not worker.retrieve(early, 0, CHUNKS), "it was promised before the byte changed"
    assert counted(server) == 1
    assert scheduler.hits(prompt) == 1

    again = prompt.again()
    assert worker.store(again, 0, CHUNKS)
    assert scheduler.lookup(again) == CHUNKS
    assert worker.retrieve(again, 0, CHUNKS)
    assert counted(server) == 1
    for request in (prompt, early, again):
        scheduler.end(request)
    assert server.l1()["read_locked_count"] == 0
