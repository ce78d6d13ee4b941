"""Engines on GPUs against a server whose CUDA driver is the fake of tests/fake_cuda.

Goal: the whole CUDA path through the wire: handles as each release sends them, events of both sides,
the answer that leaves before the copies are done, and answers to what fails. Method: this process is
the engine (fake_cuda_engine.py); what the server is told to load runs its streams on threads, later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from fake_cuda_engine import FakeGpu, GpuTensor, driver
from larder_server import LarderServer
from memory_engine import BLOCK_TOKENS, BLOCKS, KV_FIRST, Form, MemoryEngine
from polling import until
from server_state import CHUNK
from test_frames_of_every_release import VERSIONS, assert_idle, prompt
from wire import ABSENT

IDS, ELSEWHERE = [3, 1, 4, 10, 5, 9], [0, 2, 6, 7, 8, 11]
FLAGS = ["--worker-reap-timeout-seconds", "3", "--worker-registration-grace-seconds", "3"]


@pytest.fixture(scope="module")
def gpu() -> FakeGpu:
    """The engine's driver: one for the process, as a real one is."""
    return FakeGpu()


def cuda_server(**variables: str) -> LarderServer:
    """A server that finds a driver; each copy takes a moment."""
    return LarderServer(
        *FLAGS, chunk_tokens=CHUNK, pool_mib=16,
        variables={
            "LARDER_CUDA_DRIVER": str(driver("fake_cuda")), "FAKE_CUDA_COPY_US": "200", **variables,
        },
    )  # fmt: skip


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[LarderServer]:
    """A parameter is what its driver is told to fail at."""
    fails = getattr(request, "param", None)
    with cuda_server(**({"FAKE_CUDA_FAIL": fails} if fails else {})) as started:
        yield started


Engines = Callable[..., MemoryEngine]

# By what releases read on devices: head-major and token-major, in two planes and in one piece.
FORMS = {
    "NL_X_TWO_NB_BS_NH_HS": Form((2, BLOCKS, BLOCK_TOKENS, 3, 8), planes=2, hints={"kv_layout": "NHD"}),
    "NL_X_TWO_NB_NH_BS_HS": Form((2, BLOCKS, 3, BLOCK_TOKENS, 8), planes=2),
    "NL_X_NB_BS_NH_TWO_HS": Form((BLOCKS, BLOCK_TOKENS, 3, 16), hints={"kv_layout": "NHD"}),
    "NL_X_NB_NH_BS_TWO_HS": Form((BLOCKS, 3, BLOCK_TOKENS, 16)),
    "NL_X_NB_BS_HS": Form((BLOCKS, BLOCK_TOKENS, 40)),
}


@pytest.fixture
def engines(gpu: FakeGpu, server: LarderServer) -> Iterator[Engines]:
    """Makes engines of a release; they are gone before the server ends."""
    made: list[MemoryEngine] = []

    def make(version: str, form: Form = KV_FIRST) -> MemoryEngine:
        made.append(MemoryEngine(server.port, version, form, lambda of: GpuTensor(gpu, of.shape)))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def store(engine: MemoryEngine, gpu: FakeGpu, tokens: list[int]) -> None:
    """STORE, and wait until the server's event says that the blocks were read."""
    event, stored = engine.store(tokens, IDS, gpu.recorded_event())
    assert stored is True
    gpu.wait(event)


def wait_for_hits(engine: MemoryEngine, tokens: list[int], request_id: str) -> None:
    """A store is committed when its copies are done, a moment after its answer."""

    def hits() -> bool:
        found = engine.lookup(tokens, request_id)
        if found != 3:
            engine.client.end(request_id)
        return found == 3

    until(hits, "the chunks are there")


@pytest.mark.parametrize("version", VERSIONS)
def test_blocks_come_back_as_they_were(
    gpu: FakeGpu, server: LarderServer, engines: Engines, version: str
) -> None:
    engine = engines(version)
    engine.register()
    status = server.status()
    assert status["cuda"].startswith("CUDA "), status["cuda"]
    assert status["cache_context_meta"][str(engine.instance)]["device"] == "cuda:0"
    engine.fill()
    tokens = prompt()
    stored = engine.blocks(IDS)
    store(engine, gpu, tokens)
    wait_for_hits(engine, tokens, "r")
    event, found = engine.retrieve(tokens, ELSEWHERE, "r", gpu.recorded_event())
    assert found is True
    gpu.wait(event)
    assert engine.blocks(ELSEWHERE) == stored
    assert engine.blocks(IDS) == stored
    engine.client.end("r")
    until(lambda: server.l1()["read_locked_count"] == 0, "the pins are given back")
    assert engine.client.ask("UNREGISTER_KV_CACHE", engine.instance) is ABSENT
    assert_idle(server)


@pytest.mark.parametrize("name", FORMS)
def test_formats_on_devices(
    gpu: FakeGpu, server: LarderServer, engines: Engines, name: str
) -> None:
    engine = engines("0.5.2", FORMS[name])
    engine.register()
    shown = server.status()["cache_context_meta"][str(engine.instance)]["kv_cache_layout"]
    assert [group["engine_kv_format"] for group in shown["kernel_groups"]] == [name]
    engine.fill()
    tokens = prompt()
    stored = engine.blocks(IDS)
    store(engine, gpu, tokens)
    wait_for_hits(engine, tokens, "r")
    event, found = engine.retrieve(tokens, ELSEWHERE, "r", gpu.recorded_event())
    assert found is True
    gpu.wait(event)
    assert engine.blocks(ELSEWHERE) == stored
    engine.client.end("r")


@pytest.mark.parametrize("version", ["0.4.7", "0.5.2", "0.5.6"])
def test_what_fails_has_an_event_that_opens(
    gpu: FakeGpu, server: LarderServer, engines: Engines, version: str
) -> None:
    """A client before 0.5.5 opens whatever comes; later ones take an empty one for complete."""
    engine = engines(version)

    def assert_refused(answer: list[object]) -> None:
        event, succeeded = answer
        assert succeeded is False
        if version < "0.5.5":
            assert isinstance(event, bytes)
            gpu.wait(event)

    tokens = prompt()
    assert_refused(engine.store(tokens, IDS, gpu.recorded_event()))
    assert_refused(engine.retrieve(tokens, IDS, "r", gpu.recorded_event()))
    engine.register()
    assert_refused(engine.store(tokens, IDS[:3], gpu.recorded_event()))
    assert_refused(engine.store(tokens, [*IDS[:5], BLOCKS], gpu.recorded_event()))
    assert_refused(engine.retrieve(tokens, IDS, "r", gpu.recorded_event()))
    assert_refused(engine.store(tokens, IDS, b"\xff" * 64))
    assert engine.lookup(tokens) == 0
    engine.client.end("r")
    engine.fill()
    store(engine, gpu, tokens)
    wait_for_hits(engine, tokens, "r")
    engine.client.end("r")


FAILURES = ["cuMemcpyBatchAsync_v2:1:700", "cuEventRecord:1:700", "cuStreamWaitEvent:1:700"]


@pytest.mark.parametrize("server", FAILURES, indirect=True, ids=[f.split(":")[0] for f in FAILURES])
def test_a_copy_that_the_driver_refuses_publishes_nothing(
    gpu: FakeGpu, server: LarderServer, engines: Engines
) -> None:
    engine = engines("0.5.2")
    engine.register()
    engine.fill()
    outcomes = []
    for _ in range(6):
        tokens = prompt()
        event, stored = engine.store(tokens, IDS, gpu.recorded_event())
        gpu.wait(event)
        outcomes.append(stored)
        if stored:
            wait_for_hits(engine, tokens, "r")
        else:
            assert engine.lookup(tokens) == 0
        engine.client.end("r")
    assert outcomes.count(False) <= 1, "the driver failed once"
    until(lambda: server.l1()["write_locked_count"] == 0, "no reservation is left")


def test_a_dead_engine_is_forgotten(gpu: FakeGpu, server: LarderServer, engines: Engines) -> None:
    engine = engines("0.5.2")
    engine.register()
    engine.fill()
    for _ in range(20):
        key = engine.key(prompt(), "s")
        engine.client.send("STORE", key, engine.instance, [IDS], gpu.recorded_event())
    engine.client.close()
    until(lambda: not server.status()["registered_gpu_ids"], "it is reaped", seconds=60)
    until(lambda: server.l1()["write_locked_count"] == 0, "no reservation is left")


def leave_with_a_store_under_way(
    server: LarderServer, engine: MemoryEngine, gpu: FakeGpu, tokens: list[int]
) -> None:
    """STORE and UNREGISTER, then other use of the memory. A copy takes its time for each chunk."""
    engine.register()
    # Until then the driver would hold up the STORE itself.
    until(lambda: "the pool is registered" in server.log_text(), "the pool is registered")
    engine.fill()
    assert engine.store(tokens, IDS, gpu.recorded_event())[1] is True
    assert engine.client.ask("UNREGISTER_KV_CACHE", engine.instance) is ABSENT
    for layer in engine.layers:
        layer.memory[:] = b"\xee" * layer.bytes


def test_the_engines_memory_is_its_own_after_unregister(gpu: FakeGpu) -> None:
    """The answer comes when the copies are done, and all of them are stored."""
    with cuda_server(FAKE_CUDA_COPY_US="100000") as server:
        engine = MemoryEngine(server.port, "0.5.2", KV_FIRST, lambda of: GpuTensor(gpu, of.shape))
        engine.fill()
        tokens, stored = prompt(), engine.blocks(IDS)
        leave_with_a_store_under_way(server, engine, gpu, tokens)
        engine.register()
        assert engine.lookup(tokens) == 3
        event, found = engine.retrieve(tokens, ELSEWHERE, "r", gpu.recorded_event())
        assert found is True
        gpu.wait(event)
        assert engine.blocks(ELSEWHERE) == stored
        engine.client.end("r")
        engine.client.ask("UNREGISTER_KV_CACHE", engine.instance)
        engine.close()


def test_what_is_copied_after_its_engine_left_is_dropped(gpu: FakeGpu) -> None:
    with cuda_server(FAKE_CUDA_COPY_US="1500000") as server:
        engine = MemoryEngine(server.port, "0.5.2", KV_FIRST, lambda of: GpuTensor(gpu, of.shape))
        tokens = prompt()
        leave_with_a_store_under_way(server, engine, gpu, tokens)
        until(lambda: server.l1()["write_locked_count"] == 0, "the copies are done")
        engine.register()
        assert engine.lookup(tokens) == 0
        engine.client.end("r")
        assert "what is not stored yet is dropped" in server.log_text()
        engine.client.ask("UNREGISTER_KV_CACHE", engine.instance)
        engine.close()


def test_events_of_another_form_are_refused(
    gpu: FakeGpu, server: LarderServer, engines: Engines
) -> None:
    """0.5.6 sends longer ones when it is told to isolate processes, and reads an empty one."""
    engine = engines("0.5.6")
    engine.register()
    engine.fill()
    timeline = b"\x01" + b"h" * 64 + bytes(16)
    tokens = prompt()
    for _ in range(3):
        assert engine.store(tokens, IDS, timeline) == [b"", False]
        assert engine.retrieve(tokens, IDS, "r", timeline) == [b"", False]
    assert server.log_text().count("sends events of 81 bytes") == 1
    store(engine, gpu, tokens)


def test_a_device_that_the_server_does_not_have_is_refused(
    gpu: FakeGpu, server: LarderServer, engines: Engines
) -> None:
    engine = engines("0.5.2")
    uuid, gpu.uuid = gpu.uuid, "00000000-0000-0000-0000-000000000000"
    try:
        engine.register()
    finally:
        gpu.uuid = uuid
    assert engine.instance in server.status()["refused_instance_ids"]
    event, stored = engine.store(prompt(), IDS, gpu.recorded_event())
    assert stored is False
    gpu.wait(event)
