"""The HTTP port: health, status, metrics and clear, as probes and dashboards of 0.5.2 use them.

Goal: the keys and counts of /status, the names of /metrics, and the error shapes.
Method: traffic with the real client classes, then what the HTTP port says about it; /metrics is
read with prometheus_client's own parser.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator

import pytest
from engines import Prompt, Scheduler, Worker, random_prompt
from larder_server import LarderServer
from lmcache.v1.multiprocess.protocol import RequestType
from polling import until
from prometheus_client.parser import text_string_to_metric_families

CHUNK = 8
MODEL = "admin-model"

TOP_LEVEL = {
    "is_healthy", "engine_type", "chunk_size", "hash_algorithm", "active_sessions",
    "storage_manager", "active_prefetch_jobs", "worker_liveness", "registered_gpu_ids",
    "cache_context_meta", "registered_non_cuda_instance_ids", "non_cuda_context_meta",
}  # fmt: skip
L1_KEYS = {
    "is_healthy", "total_object_count", "write_locked_count", "read_locked_count",
    "temporary_count", "memory_used_bytes", "memory_total_bytes", "memory_usage_ratio",
    "write_ttl_seconds", "read_ttl_seconds",
}  # fmt: skip
EVICTION_KEYS = {
    "is_healthy", "thread_alive", "eviction_policy", "trigger_watermark", "eviction_ratio",
}  # fmt: skip
LIVENESS_KEYS = {
    "enabled", "reap_timeout_seconds", "registration_grace_seconds", "tracked_instances",
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[LarderServer]:
    """One server; the tests below leave it as empty as they found it."""
    with LarderServer(chunk_tokens=CHUNK, pool_mib=16) as shared:
        yield shared


@pytest.fixture(autouse=True)
def empty_cache(server: LarderServer) -> None:
    """Start each test with an empty pool."""
    code, body = server.fetch("/cache/clear", "POST")
    assert code == 200, body


def metrics(server: LarderServer) -> dict[str, float]:
    """Every sample of /metrics by name, summed over its labels."""
    code, body = server.get("/metrics")
    assert code == 200
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(body):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def test_health(server: LarderServer) -> None:
    code, body = server.get("/healthcheck")
    assert (code, json.loads(body)) == (200, {"status": "healthy"})


def test_status_has_the_keys_of_the_release(server: LarderServer) -> None:
    status = server.status()
    assert TOP_LEVEL - set(status) == set()
    assert status["is_healthy"] is True
    assert status["engine_type"] == "MPCacheServer"
    assert status["chunk_size"] == CHUNK
    assert status["hash_algorithm"] == "blake3"
    assert LIVENESS_KEYS - set(status["worker_liveness"]) == set()
    storage = status["storage_manager"]
    assert storage["is_healthy"] is True
    assert L1_KEYS - set(storage["l1_manager"]) == set()
    assert EVICTION_KEYS - set(storage["l1_eviction_controller"]) == set()
    assert storage["eviction_controller"] == storage["l1_eviction_controller"]
    assert storage["l1_eviction_controller"]["eviction_policy"] == "LRU"


def test_status_of_an_empty_server(server: LarderServer) -> None:
    state = server.l1()
    counts = ("total_object_count", "write_locked_count", "read_locked_count", "temporary_count")
    assert [state[name] for name in counts] == [0, 0, 0, 0]
    assert (state["memory_used_bytes"], state["memory_usage_ratio"]) == (0, 0.0)
    assert state["memory_total_bytes"] == server.pool_bytes
    assert (state["write_ttl_seconds"], state["read_ttl_seconds"]) == (600, 300)
    status = server.status()
    assert status["registered_non_cuda_instance_ids"] == []
    assert status["non_cuda_context_meta"] == {}
    assert status["registered_gpu_ids"] == []


def test_registrations_are_listed(server: LarderServer) -> None:
    worker = Worker(server.url, model=MODEL, world_size=2, worker_id=1)
    status = server.status()
    assert status["registered_non_cuda_instance_ids"] == [worker.instance_id]
    meta = status["non_cuda_context_meta"][str(worker.instance_id)]
    wanted = {"model_name": MODEL, "world_size": 2, "block_size": 4, "use_mla": False}
    assert {name: meta[name] for name in wanted} == wanted
    for entry in status["cache_context_meta"].values():
        assert {"model_name", "world_size"} <= set(entry), "the reference's CLI needs both"
    assert status["worker_liveness"]["tracked_instances"] == 1
    worker.close()
    assert server.status()["registered_non_cuda_instance_ids"] == []


def test_counts_follow_a_request(server: LarderServer) -> None:
    worker, scheduler = Worker(server.url, model=MODEL), Scheduler(server.url, model=MODEL)
    prompt = random_prompt(3 * CHUNK)
    key = worker.key(prompt, 0, 3)
    worker.context.prepare_store(key, worker.instance_id)
    state = server.l1()
    assert (state["write_locked_count"], state["total_object_count"]) == (3, 3)
    assert state["memory_used_bytes"] == 3 * 4096, "each object takes whole pages"
    assert state["memory_usage_ratio"] == pytest.approx(3 * 4096 / server.pool_bytes, rel=1e-6)
    assert worker.context.commit_store(key, worker.instance_id, [])
    state = server.l1()
    assert (state["write_locked_count"], state["total_object_count"]) == (0, 3)

    question = prompt.again()
    assert scheduler.lookup(question) == 3
    assert server.l1()["read_locked_count"] == 3
    assert server.status()["active_sessions"] >= 1
    scheduler.free(question)
    assert server.l1()["read_locked_count"] == 0
    scheduler.end(question)
    until(lambda: server.status()["active_sessions"] == 0, "no session is left behind")
    worker.close()
    scheduler.close()


def test_a_job_is_active_until_it_is_asked_for(server: LarderServer) -> None:
    worker, scheduler = Worker(server.url, model=MODEL), Scheduler(server.url, model=MODEL)
    prompt = random_prompt(CHUNK)
    scheduler.submit_lookup(prompt)
    assert server.status()["active_prefetch_jobs"] == 1
    assert scheduler.query(prompt.request_id) == 0
    assert server.status()["active_prefetch_jobs"] == 0
    scheduler.end(prompt)
    worker.close()
    scheduler.close()


def traffic(server: LarderServer) -> None:
    """Four chunks stored, looked up and retrieved, and a lookup that finds nothing."""
    worker, scheduler = Worker(server.url, model=MODEL), Scheduler(server.url, model=MODEL)
    prompt = random_prompt(4 * CHUNK)
    for salt in ("", "tenant"):
        salted = Prompt(prompt.tokens, salt)
        assert worker.store(salted, 0, 4)
        question = salted.again()
        assert scheduler.lookup(question) == 4
        assert worker.retrieve(question, 0, 4)
        scheduler.end(question)
    assert scheduler.lookup(random_prompt(2 * CHUNK)) == 0
    worker.close()
    scheduler.close()


def test_metrics_parse_and_have_the_names_of_the_release(server: LarderServer) -> None:
    before = metrics(server)
    traffic(server)
    after = metrics(server)

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    assert grown("lmcache_mp_lookup_requested_tokens_total") == 10 * CHUNK
    assert grown("lmcache_mp_lookup_hit_tokens_total") == 8 * CHUNK
    assert grown("lmcache_mp_l1_write_chunks_total") == 8
    assert grown("lmcache_mp_l1_read_chunks_total") == 8
    assert grown("lmcache_mp_num_chunks_loaded_total") == 8
    assert after["lmcache_mp_l1_memory_usage_bytes"] == server.l1()["memory_used_bytes"]
    assert 0.0 < after["lmcache_mp_l1_usage_ratio"] <= 1.0
    assert after["lmcache_mp_active_prefetch_jobs"] == 0
    assert after["process_resident_memory_bytes"] > 0
    assert after["process_open_fds"] > 0


def test_each_family_appears_once(server: LarderServer) -> None:
    traffic(server)
    _, body = server.get("/metrics")
    names = [line.split()[2] for line in body.splitlines() if line.startswith("# TYPE ")]
    assert len(names) == len(set(names))
    assert body.endswith("\n")


def test_the_eviction_loop_shows_that_it_lives(server: LarderServer) -> None:
    name = "lmcache_mp_l1_eviction_loop_ticks_total"
    before = metrics(server).get(name, 0.0)
    until(lambda: metrics(server).get(name, 0.0) > before, "the loop's counter grows")


def test_clear_by_http(server: LarderServer) -> None:
    worker, scheduler = Worker(server.url, model=MODEL), Scheduler(server.url, model=MODEL)
    for body in (None, b'{"tier":"l1","force":true}', b'{"tier":"l1"}', b"{}"):
        prompt = random_prompt(2 * CHUNK)
        assert worker.store(prompt, 0, 2)
        code, text = server.fetch("/cache/clear", "POST", body)
        assert (code, json.loads(text)) == (200, {"status": "ok", "cleared": {"tier": "l1"}})
        assert scheduler.hits(prompt) == 0
        assert server.l1()["total_object_count"] == 0
    assert worker.store(random_prompt(CHUNK), 0, 1)
    code, _ = server.fetch("/cache/clear", "POST", b'{"tier":"l2"}')
    assert code == 400
    assert server.l1()["total_object_count"] == 1
    worker.close()
    scheduler.close()


def test_unknown_paths_and_methods(server: LarderServer) -> None:
    code, body = server.get("/no/such/path")
    assert (code, json.loads(body)) == (404, {"detail": "Not Found"})
    for path, method in [
        ("/status", "POST"), ("/healthcheck", "DELETE"), ("/metrics", "PUT"),
        ("/cache/clear", "GET"),
    ]:  # fmt: skip
        code, body = server.fetch(path, method)
        assert (code, json.loads(body)) == (405, {"detail": "Method Not Allowed"}), path


def test_a_connection_is_kept_for_several_requests(server: LarderServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=20)
    for path in ("/healthcheck", "/status", "/metrics", "/healthcheck"):
        connection.request("GET", path)
        response = connection.getresponse()
        assert response.status == 200
        assert response.read()
    connection.close()


def test_http_does_not_hold_up_requests(server: LarderServer) -> None:
    """A client that opens the HTTP port and says nothing is nobody's problem."""
    silent = [
        http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=20) for _ in range(32)
    ]
    for connection in silent:
        connection.connect()
    assert server.get("/healthcheck")[0] == 200
    worker = Worker(server.url, model=MODEL)
    assert worker.client.call(RequestType.NOOP) == "OK"
    worker.close()
    for connection in silent:
        connection.close()
