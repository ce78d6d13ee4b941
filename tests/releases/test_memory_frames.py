"""STORE and RETRIEVE in the dialect of every release, 0.4.5 to 0.5.7rc3, by frames made by hand.

Goal: block lists, handles and counts of payloads as each release has them, and what a hostile or broken
engine says. Method: an engine of frames (test_frames_of_every_release.py) with tensors in segments made
here. Before 0.5.1 engines share CUDA memory only; their dialect is tried with the same segments.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
import msgspec
import pytest
from larder_server import LarderServer
from memory_engine import BLOCK_TOKENS, BLOCKS, KV_FIRST, STUB, Form, MemoryEngine
from polling import until
from server_state import CHUNK
from tensor_handles import SHARED_TENSOR_EXT, Global, SharedTensor, pickled_object
from test_frames_of_every_release import VERSIONS, assert_idle, prompt
from wire import ABSENT



@pytest.fixture
def engine(request: pytest.FixtureRequest, shared_pool: LarderServer) -> Iterator[MemoryEngine]:
    """A new engine of the release."""
    made = MemoryEngine(shared_pool.port, getattr(request, "param", "0.5.2"))
    yield made
    made.close()


@pytest.mark.parametrize("engine", VERSIONS, indirect=True, ids=VERSIONS)
def test_server_copies_blocks(engine: MemoryEngine, shared_pool: LarderServer) -> None:
    engine.register()
    assert engine.instance in shared_pool.status()["registered_gpu_ids"]
    engine.fill()
    tokens, ids = prompt(), [3, 1, 4, 10, 5, 9]
    stored = engine.blocks(ids)
    assert engine.store(tokens, ids) == [STUB, True]
    assert engine.lookup(tokens) == 3
    elsewhere = [0, 2, 6, 7, 8, 11]
    untouched = engine.blocks(ids)
    assert engine.retrieve(tokens, elsewhere) == [STUB, True]
    assert engine.blocks(elsewhere) == stored
    assert engine.blocks(ids) == untouched
    engine.client.end("r")
    assert engine.client.ask("UNREGISTER_KV_CACHE", engine.instance) is ABSENT
    assert engine.instance not in shared_pool.status()["registered_gpu_ids"]
    assert_idle(shared_pool)


NHD, HND = {"kv_layout": "NHD"}, {"kv_layout": "HND"}
TRTLLM_HINTS = {"num_kv_heads": 3, "tokens_per_block": BLOCK_TOKENS, "head_dim": 8}

# What a release registers, and the format that it is. Formats 0, 4 and 5 do not come over the wire;
# 11 comes from CUDA only (test_cuda_frames.py).
FORMATS = {
    "NL_X_TWO_NB_BS_NH_HS": ("0.5.6", Form((2, BLOCKS, BLOCK_TOKENS, 3, 8), planes=2, hints=NHD)),
    "NL_X_NB_TWO_BS_NH_HS": ("0.5.6", Form((BLOCKS, 2, BLOCK_TOKENS, 3, 8), hints=NHD)),
    "NL_X_NB_BS_HS": ("0.5.2", Form((BLOCKS, BLOCK_TOKENS, 40))),
    "NL_X_TWO_NB_NH_BS_HS": ("0.5.2", Form((2, BLOCKS, 3, BLOCK_TOKENS, 8), planes=2)),
    "NL_X_NB_TWO_NH_BS_HS": ("0.5.2", Form((BLOCKS, 2, 3, BLOCK_TOKENS, 8))),
    "NB_NL_TWO_NH_BS_HS": (
        "0.5.2",
        Form((BLOCKS, 5, 2, 3 * BLOCK_TOKENS * 8), tensors=1, engine_type="trtllm", hints=TRTLLM_HINTS),
    ),
    "TWO_X_NL_X_NB_BS_NH_HS": (
        "0.5.2",
        Form((BLOCKS * BLOCK_TOKENS, 3, 8), tensors=6, engine_type="sglang",
             hints={"tokens_per_block": BLOCK_TOKENS}),
    ),
    "NL_X_NB_NH_BS_TWO_HS": ("0.5.2", Form((BLOCKS, 3, BLOCK_TOKENS, 16))),
    "NL_X_NB_NH_BS_CS": ("0.5.6", Form((BLOCKS, 3, BLOCK_TOKENS, 15), hints=HND)),
    "NL_X_NB_BS_NH_CS": ("0.5.6", Form((BLOCKS, BLOCK_TOKENS, 3, 15), hints=NHD)),
    "NL_X_NB_BSV_BSS": ("0.5.6", Form((BLOCKS, BLOCK_TOKENS, 132), dtype="uint8", hints=NHD)),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_through_the_wire(shared_pool: LarderServer, name: str) -> None:
    version, form = FORMATS[name]
    engine = MemoryEngine(shared_pool.port, version, form)
    engine.register(model=name)
    shown = shared_pool.status()["cache_context_meta"][str(engine.instance)]["kv_cache_layout"]
    assert [group["engine_kv_format"] for group in shown["kernel_groups"]] == [name]
    engine.fill()
    tokens, ids, elsewhere = prompt(), [3, 1, 4, 10, 5, 9], [0, 2, 6, 7, 8, 11]
    stored = engine.blocks(ids)
    assert engine.store(tokens, ids) == [STUB, True]
    for layer in engine.layers:
        layer.memory[:] = bytes(layer.bytes)
    assert engine.retrieve(tokens, elsewhere) == [STUB, True]
    assert engine.blocks(elsewhere) == stored
    assert not any(map(any, engine.blocks(ids))), "no other block is written"
    engine.client.ask("UNREGISTER_KV_CACHE", engine.instance)
    engine.close()
    assert_idle(shared_pool)


@pytest.mark.parametrize("engine", VERSIONS, indirect=True, ids=VERSIONS)
def test_an_unknown_engine_is_answered_at_once(
    engine: MemoryEngine, shared_pool: LarderServer
) -> None:
    stored, retrieved = engine.store(prompt(), [1]), engine.retrieve(prompt(), [1])
    event = b"" if engine.client.version >= (0, 5, 5) else STUB
    assert stored == retrieved == [event, False]
    assert_idle(shared_pool)




def test_what_cannot_be_mapped_is_refused_and_said(
    engine: MemoryEngine, shared_pool: LarderServer
) -> None:
    """Each is acknowledged, promised nothing, and answered false."""
    wrong = SharedTensor(KV_FIRST.shape)
    gone = SharedTensor(KV_FIRST.shape)
    pool = SharedTensor(KV_FIRST.shape)
    pool_name = next(Path("/dev/shm").glob("lmcache_l1_pool_*")).name
    gone_handle = gone.pickled()
    gone.close()
    wrong.bytes *= 2
    name, pool.name = pool.name, f"/{pool_name}"
    bomb = pickled_object(Global("os.system"), {"shm_name": "x"})
    cases = {
        "of a segment shorter than its tensor": [wrong.pickled()],
        "of a segment that is gone": [gone_handle],
        "of the server's own pool": [pool.pickled()],
        "none at all": [],
        "no pickle": [msgspec.msgpack.Ext(SHARED_TENSOR_EXT, b"\x80\x04garbage")],
        "of another class": [msgspec.msgpack.Ext(SHARED_TENSOR_EXT, bomb)],
        "of different shapes": [engine.layers[0].pickled(), pool.pickled()],
    }
    tokens = prompt()
    for what, handles in cases.items():
        engine.register(handles=handles)
        assert engine.instance not in shared_pool.status()["registered_gpu_ids"], what
        assert engine.instance in shared_pool.status()["refused_instance_ids"], what
        assert engine.store(tokens, [1, 2, 3, 4, 5, 6])[1] is False, what
        assert engine.lookup(tokens) == 0, what
        engine.client.end("r")
    engine.register()
    assert engine.store(tokens, [1, 2, 3, 4, 5, 6]) == [STUB, True], "and may come again"
    pool.name = name
    for tensor in (wrong, pool):
        tensor.close()


@pytest.mark.parametrize("engine", ["0.5.2", "0.5.6"], indirect=True, ids=["0.5.2", "0.5.6"])
def test_a_tensor_of_nothing_is_refused(engine: MemoryEngine, shared_pool: LarderServer) -> None:
    """It has no bytes, and so no segment and no name."""
    empty = SharedTensor(KV_FIRST.shape)
    whole = (empty.name, empty.shape, empty.bytes)
    empty.name, empty.shape, empty.bytes = "", (2, 0, 1, BLOCK_TOKENS, 8), 0
    handle = empty.mapped() if engine.client.version >= (0, 5, 6) else empty.pickled()
    engine.register(handles=[handle])
    empty.name, empty.shape, empty.bytes = whole
    empty.close()
    assert engine.instance in shared_pool.status()["refused_instance_ids"]
    assert engine.store(prompt()[:CHUNK], [1, 2])[1] is False
    engine.register()
    assert engine.store(prompt()[:CHUNK], [1, 2])[1] is True


# Sliding windows of two layers' groups. Until 0.5.2 a recurrent state is a group without one.
VACANT = {"window": ("0.5.6", [-1, 8]), "recurrent_state": ("0.5.2", [-1, -1])}


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "together"])
@pytest.mark.parametrize("kind", VACANT)
def test_the_null_block_is_nobodys_kv(kind: str, separate: bool) -> None:
    """vLLM names it where a window has passed, and for states that it did not keep."""
    version, windows = VACANT[kind]
    flags = [] if separate else ["--no-separate-object-groups"]
    with LarderServer(*flags, chunk_tokens=CHUNK, pool_mib=16) as server:
        engine = MemoryEngine(server.port, version)
        engine.register(windows=windows)
        engine.fill()
        tokens = prompt()[:16]
        assert engine.store(tokens, [[1, 2, 3, 4], [0, 0, 5, 6]]) == [STUB, True]
        assert engine.lookup(tokens[:8]) == 0, "the first chunk has no KV of the second layer"
        engine.client.end("r")
        kept = engine.blocks([9, 10])
        assert engine.retrieve(tokens[:8], [[7, 8], [9, 10]])[1] is False
        assert engine.blocks([9, 10]) == kept
        engine.close()


def test_an_engine_that_cuts_its_memory_short_fails_alone(
    engine: MemoryEngine, shared_pool: LarderServer
) -> None:
    """Its pages are gone under the server: copies fail, the server and the others go on."""
    other = MemoryEngine(shared_pool.port, "0.5.6")
    for each in (engine, other):
        each.register()
        each.fill()
    tokens, ids = prompt(), [1, 2, 3, 4, 5, 6]
    os.truncate(Path("/dev/shm") / engine.layers[1].name[1:], 0)
    assert engine.store(tokens, ids) == [STUB, False]
    assert engine.lookup(tokens) == 0, "nothing of it is published"
    assert other.store(tokens, ids) == [STUB, True]
    assert engine.retrieve(tokens, ids) == [STUB, False]
    assert other.retrieve(tokens, [7, 8, 9, 10, 11, 0]) == [STUB, True]
    assert other.blocks([7, 8, 9, 10, 11, 0]) == other.blocks(ids)
    engine.client.end("r")
    assert shared_pool.alive()
    other.client.ask("UNREGISTER_KV_CACHE", other.instance)
    other.close()
    assert_idle(shared_pool)


def test_an_engine_dies_in_the_middle_of_its_stores(shared_pool: LarderServer) -> None:
    """Its requests are under way when its connection goes; nothing of them is left behind."""
    dying = MemoryEngine(shared_pool.port, "0.5.2")
    dying.register()
    dying.fill()
    prompts = [prompt() for _ in range(50)]
    for number, tokens in enumerate(prompts):
        key = dying.key(tokens, f"s{number}")
        dying.client.send("STORE", key, dying.instance, [[1, 2, 3, 4, 5, 6]], STUB)
        dying.client.send("RETRIEVE", key, dying.instance, [[1, 2, 3, 4, 5, 6]], STUB, 0)
    dying.close()
    until(
        lambda: shared_pool.l1()["write_locked_count"] == shared_pool.l1()["read_locked_count"] == 0,
        "no reservation and no pin is left",
    )
    survivor = MemoryEngine(shared_pool.port, "0.5.2")
    survivor.register()
    for tokens in prompts:
        hits = survivor.lookup(tokens)
        assert hits in (0, 3), "a store is there whole or not at all"
        survivor.client.end("r")
    survivor.client.ask("UNREGISTER_KV_CACHE", survivor.instance)
    survivor.close()


def test_wrong_answers_do_not_depend_on_the_event(
    engine: MemoryEngine, shared_pool: LarderServer
) -> None:
    """What is not a CUDA event is taken for a CPU engine's."""
    engine.register()
    engine.fill()
    for event in (STUB, b"", b"x" * 63):
        assert engine.store(prompt(), [1, 2], event) == [STUB, False], "short"
        assert engine.store(prompt(), [1, 2, 3, 4, 5, 6], event) == [STUB, True]
    engine.client.ask("UNREGISTER_KV_CACHE", engine.instance)
