"""The quota routes of the HTTP port, and what they do to the pool.

Goal: a tenant is held to what PUT /quota/SALT says, from that moment on and without harm to others.
Method: a server with IsolatedLRU, two tenants that store through the real client, and what their
lookups find.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from engines import Scheduler, Worker, random_prompt
from larder_server import GIB, LarderServer

CHUNK = 8
OBJECT_BYTES = 4096


@pytest.fixture
def server() -> Iterator[LarderServer]:
    """A server that keeps tenants apart, with a quota from its command line."""
    flags = ["--eviction-policy", "IsolatedLRU", "--salt-quota-gb", "carol=0.25"]
    with LarderServer(*flags, chunk_tokens=CHUNK, pool_mib=16) as one:
        yield one


def ask(server: LarderServer, path: str, method: str = "GET", body: Any = None) -> Any:
    """The JSON answer of one request that succeeds."""
    sent = None if body is None else json.dumps(body).encode()
    code, text = server.fetch(path, method, sent)
    assert code == 200, text
    return json.loads(text)


def test_a_tenant_is_held_to_its_quota(server: LarderServer) -> None:
    worker, scheduler = Worker(server.url), Scheduler(server.url)
    alice, bob = random_prompt(6 * CHUNK, "alice"), random_prompt(6 * CHUNK, "bob")
    assert worker.store(alice, 0, 6)
    assert worker.store(bob, 0, 6)
    unlimited = ask(server, "/quota/alice")
    assert (unlimited["exists"], unlimited["limit_gb"]) == (False, 0.0)
    assert unlimited["current_usage_gb"] * GIB == 6 * OBJECT_BYTES

    limit = 4 * OBJECT_BYTES / GIB
    answer = ask(server, "/quota/alice", "PUT", {"limit_gb": limit})
    assert answer == {"cache_salt": "alice", "limit_gb": limit, "status": "ok"}
    assert scheduler.hits(alice) == 4, "what is above the limit goes at once"
    assert scheduler.hits(bob) == 6
    assert worker.store(random_prompt(3 * CHUNK, "alice"), 0, 3)
    assert ask(server, "/quota") == {
        "users": {
            "alice": {"limit_gb": limit, "current_usage_gb": limit},
            "carol": {"limit_gb": 0.25, "current_usage_gb": 0.0},
        }
    }
    assert scheduler.hits(bob) == 6

    assert ask(server, "/quota/alice", "DELETE")["status"] == "removed"
    assert ask(server, "/quota/alice", "DELETE")["status"] == "not_found"
    assert worker.store(random_prompt(6 * CHUNK, "alice"), 0, 6)
    assert ask(server, "/quota/alice")["current_usage_gb"] * GIB > 4 * OBJECT_BYTES
    worker.close()
    scheduler.close()


def test_the_empty_salt_is_called_default(server: LarderServer) -> None:
    worker = Worker(server.url)
    assert worker.store(random_prompt(3 * CHUNK), 0, 3)
    ask(server, "/quota/_default", "PUT", {"limit_gb": 0})
    shown = ask(server, "/quota/_default")
    assert shown == {
        "cache_salt": "_default", "limit_gb": 0.0, "current_usage_gb": 0.0, "exists": True,
    }  # fmt: skip
    assert server.l1()["total_object_count"] == 0
    worker.close()


def test_a_refused_limit_changes_nothing(server: LarderServer) -> None:
    for body in (b'{"limit_gb":-1}', b'{"limit_gb":NaN}', b"{}", b"limit"):
        code, text = server.fetch("/quota/carol", "PUT", body)
        assert (code, list(json.loads(text))) == (400, ["error"])
    assert ask(server, "/quota/carol")["limit_gb"] == 0.25
