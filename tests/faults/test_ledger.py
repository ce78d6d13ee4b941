"""SIGUSR1 prints who holds what: the operator's answer to "why does the pool stay full?".

Goal: every lock unit, reservation, pin and resting slot is shown with its owner, and what has ended
is not shown any more.
Method: the real client of 0.5.2 takes one of each kind; the lines are read from the server's log.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engines import Scheduler, Worker, random_prompt
from larder_server import LarderServer
from polling import until

CHUNK = 8
EMPTY = (
    "0 objects, 0 of them pinned, 0 more reserved; 0 sessions, 0 instances, 0 slots at rest, "
    "0 bytes in slots of stores that are arriving"
)


@pytest.fixture
def server() -> Iterator[LarderServer]:
    """A server of the test's own."""
    with LarderServer(chunk_tokens=CHUNK, pool_mib=16) as own:
        yield own


def shown(server: LarderServer, *words: object) -> bool:
    """Whether a line of the ledger has all these words."""
    return any(all(f"{word}" in line for word in words) for line in server.ledger())


def test_every_kind_of_owner_is_shown(server: LarderServer) -> None:
    assert server.ledger() == [EMPTY]
    worker, scheduler = Worker(server.url), Scheduler(server.url)
    stored, promised = random_prompt(3 * CHUNK), random_prompt(2 * CHUNK)
    assert worker.store(stored, 0, 3)
    assert worker.store(promised, 0, 2)
    assert scheduler.lookup(promised) == 2
    key = worker.key(stored, 0, 3)
    assert worker.context.prepare_retrieve(key, worker.instance_id) is not None
    written = worker.key(random_prompt(4 * CHUNK), 0, 4)
    worker.context.prepare_store(written, worker.instance_id)

    assert shown(server, "5 objects, 5 of them pinned, 4 more reserved; 1 sessions, 1 instances")
    assert shown(server, f"request {promised.request_id} ", "2 lock units on 2 objects")
    instance = f"instance {worker.instance_id} "
    assert shown(server, instance, "1 stores with 4 reserved objects", "1 retrieves with 3 pins")

    scheduler.end(promised)
    assert worker.context.commit_retrieve(key, worker.instance_id)
    assert not shown(server, f"request {promised.request_id} ")
    assert shown(server, instance, "0 retrieves with 0 pins")
    worker.unregister()
    assert shown(server, "4 slots rest for", instance)
    until(lambda: not shown(server, "slots rest for"), "the slots have rested long enough")
    assert server.fetch("/cache/clear", "POST", b"{}")[0] == 200
    assert server.ledger() == [EMPTY]
    worker.close()
    scheduler.close()


def test_asking_changes_nothing(server: LarderServer) -> None:
    worker, scheduler = Worker(server.url), Scheduler(server.url)
    prompt = random_prompt(3 * CHUNK)
    assert worker.store(prompt, 0, 3)
    assert scheduler.lookup(prompt) == 3
    for _ in range(5):
        assert shown(server, "3 objects, 3 of them pinned")
    assert worker.retrieve(prompt, 0, 3)
    worker.close()
    scheduler.close()
