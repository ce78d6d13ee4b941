"""Every request gets an answer its client can read, whatever is wrong with it.

Goal: a client without an answer blocks for minutes and one with an undecodable answer loses its
receive loop, so each known operation is answered - correctly, or with the negative its client
survives - and the rest is dropped.
Method: raw frames against one server. Answers are decoded with the real client's own decoder and
declared types; a request that must stay unanswered is followed by others on its connection that
are answered. The golden frames were recorded from the real client (tests/fixtures/wire/).
"""

from __future__ import annotations

import json
import pickle
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import wire
from engines import Client, KvLayout, Scheduler, Worker, random_prompt
from larder_server import LarderServer
from lmcache.integration.vllm.vllm_multi_process_adapter import send_lmcache_request
from lmcache.v1.multiprocess.mq import msgspec_decode
from lmcache.v1.multiprocess.protocol import RequestType, get_payload_classes, get_response_class
from lmcache.v1.multiprocess.transfer_context import create_transfer_context
from lmcache.v1.platform.cpu.stub_cpu_device import StubEvent
from polling import until
from wire import ABSENT, EMPTY_STORE, MISS, STUB_EVENT, Op, RawConnection, encode

CHUNK = 8
PROMPT_SECONDS = 5.0
INSTANCE = 4711
REFUSED = {"shm_name": "", "pool_size": 0}
NO_MATCH = {
    "prefix_coverage_tokens": 0, "non_prefix_segments": [], "segmented_prefix_segments": []
}  # fmt: skip
CUDA_EVENT = bytes(range(64))
GOLDEN = json.loads(
    (Path(__file__).parent.parent / "fixtures" / "wire" / "0.5.2.json").read_text(encoding="utf-8")
)

# The safe answer of each operation; a type stands for any value of it.
SAFE: dict[Op, Any] = {
    Op.REGISTER_KV_CACHE: ABSENT,
    Op.UNREGISTER_KV_CACHE: ABSENT,
    Op.STORE: [STUB_EVENT, False],
    Op.RETRIEVE: [STUB_EVENT, False],
    Op.LOOKUP: ABSENT,
    Op.QUERY_PREFETCH_STATUS: 0,
    Op.WAIT_PREFETCH_STATUS: 0,
    Op.QUERY_PREFETCH_LOOKUP_HITS: 0,
    Op.FREE_LOOKUP_LOCKS: ABSENT,
    Op.END_SESSION: ABSENT,
    Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: REFUSED,
    Op.UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: ABSENT,
    Op.PREPARE_STORE: EMPTY_STORE,
    Op.COMMIT_STORE: False,
    Op.PREPARE_RETRIEVE: MISS,
    Op.COMMIT_RETRIEVE: True,
    Op.CLEAR: ABSENT,
    Op.GET_CHUNK_SIZE: CHUNK,
    Op.PING: True,
    Op.REPORT_BLOCK_ALLOCATION: ABSENT,
    Op.NOOP: "OK",
    Op.CB_REGISTER_KV_CACHE: ABSENT,
    Op.CB_UNREGISTER_KV_CACHE: ABSENT,
    Op.CB_STORE_PRE_COMPUTED: [STUB_EVENT, False],
    Op.CB_LOOKUP_PRE_COMPUTED: [],
    Op.CB_RETRIEVE_PRE_COMPUTED: [STUB_EVENT, False],
    Op.CB_STORE_FINAL: [STUB_EVENT, False],
    Op.CB_LOOKUP_PRE_COMPUTED_V2: [],
    Op.CB_RETRIEVE_PRE_COMPUTED_V2: [STUB_EVENT, False],
    Op.CB_REGISTER_ROPE_V3: ABSENT,
    Op.CB_UNREGISTER_ROPE_V3: ABSENT,
    Op.CB_RETRIEVE_PRE_COMPUTED_V3: [STUB_EVENT, False],
    Op.CB_UNIFIED_LOOKUP: NO_MATCH,
    Op.P2P_LOOKUP_AND_LOCK: int,
    Op.P2P_QUERY_LOOKUP_RESULTS: list,
    Op.P2P_UNLOCK_OBJECTS: ABSENT,
}


@pytest.fixture(scope="module")
def server() -> Iterator[LarderServer]:
    """One server takes everything; it must end as cleanly as any other."""
    with LarderServer(chunk_tokens=CHUNK, pool_mib=16) as shared:
        yield shared


@pytest.fixture(scope="module")
def witness(server: LarderServer) -> Iterator[RawConnection]:
    """A second client that is never in the wrong."""
    with RawConnection(server.port) as connection:
        yield connection


@pytest.fixture
def peer(server: LarderServer, witness: RawConnection) -> Iterator[RawConnection]:
    """A fresh settled connection; afterwards it and the witness must still be served."""
    with RawConnection(server.port) as connection:
        yield connection
        assert connection.ask(Op.NOOP) == "OK"
        assert witness.ask(Op.NOOP) == "OK"


@pytest.fixture(scope="module")
def instance(server: LarderServer) -> Iterator[int]:
    """A registered engine-driven instance of model "m"."""
    with RawConnection(server.port) as connection:
        register = Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT
        answer = connection.ask(register, wire.registration(INSTANCE))
        assert answer["pool_size"] == server.pool_bytes
        yield INSTANCE
        connection.ask(Op.UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, INSTANCE)


def assert_typed(operation: Op, reply: wire.Reply) -> None:
    """The real client decodes the reply with the declared type."""
    declared = get_response_class(RequestType(operation))
    if len(reply.frames) == 2:
        assert declared is None or declared == int | None, f"{operation.name} needs a value"
    else:
        msgspec_decode(reply.frames[2], declared)


def assert_safe(operation: Op, value: Any) -> None:
    """The value is the operation's safe negative."""
    wanted = SAFE[operation]
    if isinstance(wanted, type):
        assert isinstance(value, wanted), value
    else:
        assert value == wanted and type(value) is type(wanted)


def ask_wrongly(peer: RawConnection, operation: Op, *payloads: bytes) -> Any:
    """Send a request that must be refused; its answer is prompt, typed and safe."""
    started = time.monotonic()
    uid = peer.send(operation, *payloads)
    reply = peer.reply(uid)
    assert time.monotonic() - started < PROMPT_SECONDS
    assert reply.frames[1] == encode(int(operation))
    assert_typed(operation, reply)
    assert_safe(operation, reply.value)
    return reply.value


# Payloads that cannot be decoded or counted.


def sample(operation: Op) -> list[bytes]:
    """Well-formed payload frames, recorded from the real client."""
    for vector in GOLDEN["vectors"]:
        if vector["op"] == operation.name:
            return [bytes.fromhex(frame) for frame in vector["request"][2:]]
    raise AssertionError(f"no golden request of {operation.name}")


def payload_count(operation: Op) -> int:
    """How many payloads the client declares."""
    return len(get_payload_classes(RequestType(operation)))


WITH_PAYLOADS = [operation for operation in Op if payload_count(operation)]


@pytest.mark.parametrize("operation", WITH_PAYLOADS, ids=lambda operation: operation.name)
def test_no_payloads_at_all(peer: RawConnection, operation: Op) -> None:
    ask_wrongly(peer, operation)


@pytest.mark.parametrize("operation", Op, ids=lambda operation: operation.name)
def test_a_payload_too_many(peer: RawConnection, operation: Op) -> None:
    if operation is Op.CLEAR:
        pytest.skip("a CLEAR with payloads has a test of its own")
    payloads = without_cuda_event(operation, sample(operation))
    ask_wrongly(peer, operation, *payloads, encode(1))


@pytest.mark.parametrize("operation", WITH_PAYLOADS, ids=lambda operation: operation.name)
def test_a_payload_too_few(peer: RawConnection, operation: Op) -> None:
    payloads = without_cuda_event(operation, sample(operation))
    ask_wrongly(peer, operation, *payloads[:-1])


GARBAGE = {
    "empty": b"",
    "not-msgpack": b"\xc1",
    "half-a-map": b"\x82\xa1a",
    "trailing-byte": b"\xa1r\x00",
    "text": encode("nonsense"),
    "list-of-lists": encode([[[]]]),
    "nil": b"\xc0",
    "map": encode({"a": 1}),
    "huge-map": b"\xdf\xff\xff\xff\xff",
    "huge-array": b"\xdd\xff\xff\xff\xff",
    "huge-bin": b"\xc6\xff\xff\xff\xff",
    "bad-utf8": b"\xa2\xff\xfe",
    "extension": encode(msgspec.msgpack.Ext(1, b"x")),
    "deep": b"\x91" * 20_000 + b"\x90",
}

# Frames that are no garbage for some payload: any text is an id, nil asks after no instance.
ACCEPTED = {"text", "nil", "map", "list-of-lists", "extension"}


@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("operation", WITH_PAYLOADS, ids=lambda operation: operation.name)
def test_garbage_in_each_place(peer: RawConnection, operation: Op, kind: str) -> None:
    good = without_cuda_event(operation, sample(operation))
    for place in range(len(good)):
        payloads = [*good[:place], GARBAGE[kind], *good[place + 1 :]]
        if kind not in ACCEPTED:
            ask_wrongly(peer, operation, *payloads)
        else:
            uid = peer.send(operation, *payloads)
            assert_typed(operation, peer.reply(uid))


def without_cuda_event(operation: Op, payloads: list[bytes]) -> list[bytes]:
    """The payloads with a CPU engine's event instead of a CUDA engine's."""
    return [encode(STUB_EVENT) if is_cuda_event(frame) else frame for frame in payloads]


def is_cuda_event(frame: bytes) -> bool:
    """Whether a frame is the msgpack of 64 bytes."""
    return frame[:2] == b"\xc4\x40" and len(frame) == 66


# Keys that no object can have.

TOKENS = list(range(100, 100 + 4 * CHUNK))
BAD_RANGES: dict[str, dict[str, Any]] = {
    "start-inside-a-chunk": {"start": 3},
    "end-inside-a-chunk": {"end": CHUNK + 1},
    "end-beyond-the-tokens": {"end": 5 * CHUNK},
    "end-far-beyond": {"end": (1 << 63) - 8},
    "end-beyond-int64": {"end": (1 << 64) - 8},
    "negative-start": {"start": -CHUNK},
    "start-behind-end": {"start": 3 * CHUNK, "end": CHUNK},
    "empty": {"start": CHUNK, "end": CHUNK},
}
BAD_WORKERS: dict[str, dict[str, Any]] = {
    "no-worker": {"worker_id": None},
    "worker-behind-the-last": {"worker_id": 1},
    "worker-negative": {"worker_id": -5},
    "worker-huge": {"worker_id": 1 << 40},
}
BAD_IDENTITIES: dict[str, dict[str, Any]] = {
    "at-in-model": {"model_name": "a@b"},
    "at-in-salt": {"cache_salt": "a@b"},
    "slash-in-salt": {"cache_salt": "a/b"},
    "backslash-in-salt": {"cache_salt": "a\\b"},
    "nul-in-salt": {"cache_salt": "a\0b"},
    "long-salt": {"cache_salt": "x" * 129},
    "negative-token": {"token_ids": [-1] * 4 * CHUNK},
    "big-token": {"token_ids": [1 << 32] * 4 * CHUNK},
    "biggest-token": {"token_ids": [(1 << 64) - 1] * 4 * CHUNK},
}
BAD_WORLDS: dict[str, dict[str, Any]] = {
    "world-0": {"world_size": 0},
    "world-negative": {"world_size": -1},
    "world-256": {"world_size": 256},
    "world-huge": {"world_size": (1 << 63) - 1},
}
BAD_KEYS = BAD_RANGES | BAD_WORKERS | BAD_IDENTITIES | BAD_WORLDS


def pickled_chunks(count: int) -> bytes:
    """What a copying client would send for that many chunks of the registered layout."""
    return pickle.dumps([torch.ones(2, 2, CHUNK, 8, dtype=torch.bfloat16) for _ in range(count)])


def transfer_payloads(operation: Op, key: dict[str, Any], instance: int) -> list[list[bytes]]:
    """The payloads to try for one transfer operation; a commit comes with and without data."""
    frames = [encode(key), encode(instance)]
    if operation is Op.COMMIT_STORE:
        return [[*frames, encode(data)] for data in (b"", pickled_chunks(4))]
    return [frames]


TRANSFERS = [Op.PREPARE_STORE, Op.COMMIT_STORE, Op.PREPARE_RETRIEVE, Op.COMMIT_RETRIEVE]


@pytest.mark.parametrize("fault", BAD_KEYS)
@pytest.mark.parametrize("operation", TRANSFERS, ids=lambda operation: operation.name)
def test_a_transfer_with_an_impossible_key(
    peer: RawConnection, instance: int, operation: Op, fault: str
) -> None:
    if operation is Op.COMMIT_STORE and fault in ("empty", "start-behind-end"):
        pytest.skip("storing nothing may succeed")
    key = wire.key(TOKENS, **{"worker_id": 0, **BAD_KEYS[fault]})
    for payloads in transfer_payloads(operation, key, instance):
        ask_wrongly(peer, operation, *payloads)


@pytest.mark.parametrize("who", [999, 0, -1, (1 << 63) - 1, (1 << 64) - 1])
@pytest.mark.parametrize("operation", TRANSFERS, ids=lambda operation: operation.name)
def test_a_transfer_of_an_unknown_instance(peer: RawConnection, operation: Op, who: int) -> None:
    key = wire.key(TOKENS, worker_id=0)
    for payloads in transfer_payloads(operation, key, who):
        ask_wrongly(peer, operation, *payloads)


LOOKUP_FAULTS = BAD_IDENTITIES | BAD_WORLDS | {"worker-huge": {"worker_id": 1 << 40}}


@pytest.mark.parametrize("fault", LOOKUP_FAULTS)
def test_a_lookup_with_an_impossible_key_hits_nothing(
    peer: RawConnection, instance: int, fault: str
) -> None:
    key = wire.key(TOKENS, **{"request_id": f"bad-{fault}", **LOOKUP_FAULTS[fault]})
    ask_wrongly(peer, Op.LOOKUP, encode(key), encode(1))
    assert peer.ask(Op.QUERY_PREFETCH_STATUS, f"bad-{fault}") == 0
    ask_wrongly(peer, Op.FREE_LOOKUP_LOCKS, encode(key), encode(1))
    assert peer.ask(Op.END_SESSION, f"bad-{fault}") is ABSENT


@pytest.mark.parametrize("tp_size", [0, -1, 1 << 31, (1 << 63) - 1, (1 << 64) - 1])
def test_a_lookup_with_an_impossible_tp_size(
    peer: RawConnection, server: LarderServer, instance: int, tp_size: int
) -> None:
    key = wire.key(TOKENS, request_id="tp")
    assert peer.ask(Op.LOOKUP, key, tp_size) is ABSENT
    assert peer.ask(Op.QUERY_PREFETCH_STATUS, "tp") == 0
    assert peer.ask(Op.FREE_LOOKUP_LOCKS, key, tp_size) is ABSENT
    assert peer.ask(Op.END_SESSION, "tp") is ABSENT


BAD_PICKLES = {
    "garbage": b"garbage",
    "truncated": pickled_chunks(4)[:-10],
    "too-few": pickled_chunks(3),
    "no-tensors": pickle.dumps([]),
    "none": pickle.dumps(None),
    "numbers": pickle.dumps([1, 2, 3, 4]),
    "wrong-shape": pickle.dumps([torch.ones(3, dtype=torch.bfloat16)] * 4),
}


@pytest.mark.parametrize("kind", BAD_PICKLES)
def test_a_commit_of_unusable_bytes_stores_nothing(
    peer: RawConnection, server: LarderServer, kind: str
) -> None:
    who = random.getrandbits(62)
    peer.ask(Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, wire.registration(who, model_name=kind))
    before = server.l1()["write_locked_count"]
    tokens = random_prompt(4 * CHUNK).tokens
    key = wire.key(tokens, worker_id=0, request_id=kind, model_name=kind)
    assert len(peer.ask(Op.PREPARE_STORE, key, who)["context"]["slots"]) == 4
    ask_wrongly(peer, Op.COMMIT_STORE, encode(key), encode(who), encode(BAD_PICKLES[kind]))
    after = server.l1()["write_locked_count"]
    looked_up = wire.key(tokens, request_id=kind, model_name=kind)
    assert peer.ask(Op.LOOKUP, looked_up, 1) is ABSENT
    hits = peer.ask(Op.QUERY_PREFETCH_STATUS, kind)
    assert peer.ask(Op.END_SESSION, kind) is ABSENT
    assert peer.ask(Op.UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, who) is ABSENT
    assert hits == 0 or (kind == "too-few" and hits == 3)
    assert after == before, "a client that fails like this for every prompt must not fill the pool"


# Registrations.

BAD_REGISTRATIONS: dict[str, dict[str, Any]] = {
    **{
        f"dtype-{name}": {"dtype_str": name}
        for name in ("", "float12", "torch.float16", "__class__", "load", "Tensor", "uint3")
    },
    **{
        f"{field}-{value}": {field: value}
        for field in ("world_size", "block_size", "num_layers", "hidden_dim_size")
        for value in (0, -1, -(1 << 63))
    },
    "world_size-256": {"world_size": 256},
    "world_size-huge": {"world_size": (1 << 63) - 1},
    "layers-overflow": {"num_layers": (1 << 62)},
    "hidden-overflow": {"hidden_dim_size": (1 << 62)},
    "product-overflow": {"num_layers": 1 << 31, "hidden_dim_size": 1 << 31},
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD_REGISTRATIONS)
def test_an_impossible_registration_is_refused(
    peer: RawConnection, server: LarderServer, fault: str
) -> None:
    """The engine stays up in copy mode, and its stores fail because the instance is not known."""
    who = random.getrandbits(62)
    payload = wire.registration(who, **BAD_REGISTRATIONS[fault])
    ask_wrongly(peer, Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, encode(payload))
    assert who not in server.status()["registered_non_cuda_instance_ids"]
    key = wire.key(TOKENS, worker_id=0)
    ask_wrongly(peer, Op.COMMIT_STORE, encode(key), encode(who), encode(pickled_chunks(4)))


def test_a_registration_with_unknown_fields_is_accepted(
    peer: RawConnection, server: LarderServer
) -> None:
    payload = {"future": [1, {"x": None}], **wire.registration(31337), "more": b"bytes"}
    answer = peer.ask(Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, payload)
    assert answer["pool_size"] == server.pool_bytes
    assert peer.ask(Op.UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, 31337) is ABSENT


# CLEAR must be meant.


def test_a_clear_with_payloads_clears_nothing(peer: RawConnection, server: LarderServer) -> None:
    stored = store_something(server)
    for payloads in ([encode(True)], [b""], [b"\xc1"], [encode(1), encode(2)]):
        ask_wrongly(peer, Op.CLEAR, *payloads)
        assert ready_objects(server) == stored
    assert peer.ask(Op.CLEAR) is ABSENT
    assert ready_objects(server) == 0


def test_a_clear_as_first_message_clears_nothing(server: LarderServer) -> None:
    """It reads like GET_CHUNK_SIZE of release 0.4.7, which has the same number."""
    stored = store_something(server)
    with RawConnection(server.port, settle=False) as stranger:
        stranger.unanswered(stranger.send(Op.CLEAR))  # whatever it says: it has been dealt with
    assert ready_objects(server) == stored


def store_something(server: LarderServer) -> int:
    """Put objects into the pool; returns how many there are now."""
    worker = Worker(server.url)
    assert worker.store(random_prompt(3 * CHUNK), 0, 3)
    worker.close()
    return ready_objects(server)


def ready_objects(server: LarderServer) -> int:
    """Stored objects, without reservations."""
    state = server.l1()
    return state["total_object_count"] - state["write_locked_count"]


# Messages that are no request.

NO_REQUESTS: dict[str, list[bytes]] = {
    "operation-0": [b"\x00", encode(0)],
    "operation-37": [b"\x00", encode(37)],
    "operation-200": [b"\x00", encode(200)],
    "operation-negative": [b"\x00", encode(-1)],
    "operation-huge": [b"\x00", encode((1 << 64) - 1)],
    "operation-unknown-text": [b"\x00", encode("no_such_operation")],
    "operation-float": [b"\x00", encode(18.0)],
    "operation-nil": [b"\x00", b"\xc0"],
    "operation-list": [b"\x00", encode([18])],
    "operation-malformed": [b"\x00", b"\xc1"],
    "operation-empty": [b"\x00", b""],
    "operation-trailing-byte": [b"\x00", b"\x12\x00"],
    "one-frame": [b"\x00"],
    "one-empty-frame": [b""],
    "delimiter-in-front": [b"", b"\x00", b"\x12"],
    "a-hundred-frames": [b"\x00"] * 100,
    "a-megabyte-of-uid-alone": [b"u" * (1 << 20)],
}


@pytest.mark.parametrize("kind", NO_REQUESTS)
def test_what_is_no_request_is_dropped(peer: RawConnection, kind: str) -> None:
    frames = NO_REQUESTS[kind]
    peer.send_frames(frames)
    assert peer.unanswered(frames[0])


@pytest.mark.parametrize("uid", [b"", b"\xff\x01\x02", b"\xcf" + b"\x00" * 8, b"u" * 5000])
@pytest.mark.parametrize(
    "number", [b"\x12", b"\xcc\x12", b"\xcd\x00\x12", b"\xd3" + b"\0" * 7 + b"\x12"]
)
def test_uid_and_operation_are_echoed_byte_for_byte(
    peer: RawConnection, uid: bytes, number: bytes
) -> None:
    peer.send_frames([uid, number])
    reply = peer.reply(uid)
    assert reply.frames[:2] == [uid, number]
    assert reply.value == CHUNK


# Operations of device-driven engines, of CacheBlend and of peers.


def lmcache_driven_context(
    server: LarderServer,
) -> tuple[Any, Client, dict[str, torch.Tensor], int]:
    """The real client's context on shared CPU tensors, registered with hints that are no map."""
    client = Client(server.url)
    kv = KvLayout().tensors(8)
    transfer = create_transfer_context(kv, mode="lmcache_driven")
    who = random.getrandbits(62)
    transfer.register(
        who, kv, "driven", 1, CHUNK // 4, client.mq, 20.0, send_request=send_lmcache_request,
        layout_hints=None,
    )  # fmt: skip
    return transfer, client, kv, who


def test_an_engine_whose_registration_cannot_be_read_runs_without_cache(
    server: LarderServer,
) -> None:
    """Only its id, model and world size could be read, but it was acknowledged."""
    transfer, client, kv, who = lmcache_driven_context(server)
    prompt = random_prompt(2 * CHUNK)
    worker = Worker(server.url, model="driven")
    scheduler = Scheduler(server.url, model="driven")
    assert worker.store(prompt, 0, 2)
    assert scheduler.hits(prompt) == 0, "no hit may be promised to the refused engine"
    key = worker.key(prompt, 0, 2)
    blocks = [[0, 1, 2, 3]]
    stored = transfer.submit_store("r", key, who, kv, blocks, StubEvent(), CHUNK // 4)
    assert stored.result(timeout=20) is False
    loaded = transfer.submit_retrieve("r", key, who, kv, blocks, StubEvent(), CHUNK // 4)
    assert loaded.result(timeout=20) is False
    assert client.call(RequestType.UNREGISTER_KV_CACHE, who) is None
    assert scheduler.hits(prompt) == 2
    transfer.close()
    for part in (worker, scheduler, client):
        part.close()


@pytest.mark.parametrize("event", [STUB_EVENT, b"", b"x" * 63, b"x" * 65], ids=len)
@pytest.mark.parametrize("operation", [Op.STORE, Op.RETRIEVE], ids=lambda operation: operation.name)
def test_a_refused_transfer_of_a_cpu_engine(
    peer: RawConnection, operation: Op, event: bytes
) -> None:
    key = wire.key(TOKENS, worker_id=0)
    values: list[Any] = [key, 5, [[0, 1]], event]
    if operation is Op.RETRIEVE:
        values.append(0)
    ask_wrongly(peer, operation, *map(encode, values))


def test_a_refused_transfer_of_a_cuda_engine_stays_unanswered(
    peer: RawConnection, server: LarderServer
) -> None:
    """No event of ours would open there. A heartbeat answered false makes it leave the cache."""
    who = random.getrandbits(62)
    register = without_handles(who, "cuda-model")
    assert peer.ask_frames(Op.REGISTER_KV_CACHE, *register) is ABSENT
    key = wire.key(TOKENS, worker_id=0, model_name="cuda-model")
    store = peer.send(Op.STORE, *map(encode, (key, who, [[0, 1]], CUDA_EVENT)))
    assert peer.unanswered(store)
    retrieve = peer.send(Op.RETRIEVE, *map(encode, (key, who, [[0, 1]], CUDA_EVENT, 0)))
    assert peer.unanswered(retrieve)
    for _ in range(3):
        assert peer.ask(Op.PING, who) is False
    assert peer.ask(Op.UNREGISTER_KV_CACHE, who) is ABSENT


def without_handles(who: int, model: str) -> list[bytes]:
    """REGISTER_KV_CACHE as recorded from a CUDA engine, for another instance and model."""
    frames = sample(Op.REGISTER_KV_CACHE)
    return [encode(who), frames[1], encode(model), *frames[3:]]


def test_a_peer_is_told_that_nothing_is_here(peer: RawConnection) -> None:
    keys, layout = (wire.decode(frame) for frame in sample(Op.P2P_LOOKUP_AND_LOCK))
    for count in (1, 2, 7):
        asked = [keys[0]] * count
        task = peer.ask(Op.P2P_LOOKUP_AND_LOCK, asked, layout)
        answer = peer.ask(Op.P2P_QUERY_LOOKUP_RESULTS, task)
        assert answer == [{"offset": -1, "size": 0}] * count
        assert peer.ask(Op.P2P_UNLOCK_OBJECTS, asked) is ABSENT


@pytest.mark.parametrize("task", [-1, 1 << 31, 10**12, (1 << 63) - 1, (1 << 64) - 1])
def test_a_task_nobody_has_costs_nothing(peer: RawConnection, task: int) -> None:
    uid = peer.send(Op.P2P_QUERY_LOOKUP_RESULTS, encode(task))
    reply = peer.reply(uid, PROMPT_SECONDS)
    assert_typed(Op.P2P_QUERY_LOOKUP_RESULTS, reply)
    assert sum(map(len, reply.frames)) < 1 << 20


# Golden frames.


def frames_of(vector: dict[str, Any], part: str) -> list[bytes]:
    """Recorded frames as bytes."""
    return [bytes.fromhex(frame) for frame in vector[part]]


@pytest.mark.parametrize("vector", GOLDEN["vectors"], ids=lambda vector: vector["id"])
def test_what_the_real_client_sends_is_answered(
    peer: RawConnection, vector: dict[str, Any]
) -> None:
    request = frames_of(vector, "request")
    operation = Op[vector["op"]]
    peer.send_frames(request)
    if any(is_cuda_event(frame) for frame in request[2:]):
        assert peer.unanswered(request[0])
        return
    reply = peer.reply(request[0])
    assert reply.frames[:2] == request[:2]
    assert_typed(operation, reply)


@pytest.mark.parametrize("case", GOLDEN["negative"], ids=lambda case: case["id"])
def test_what_the_reference_dies_of_is_survived(peer: RawConnection, case: dict[str, Any]) -> None:
    request = frames_of(case, "request")
    peer.send_frames(request)
    operation = operation_of(request)
    if operation is None:
        assert case["reply"] is None
        assert peer.unanswered(request[0]) or case["id"] == "type-string-known"
        return
    reply = peer.reply(request[0])
    assert reply.frames[:2] == request[:2]
    assert_typed(operation, reply)
    assert_safe(operation, reply.value)


def operation_of(request: list[bytes]) -> Op | None:
    """The operation a recorded request names, if it is one of 0.5.2's numbers."""
    if len(request) < 2:
        return None
    try:
        number = wire.decode(request[1])
    except msgspec.DecodeError:
        return None
    return Op(number) if isinstance(number, int) and number in list(Op) else None


def test_nothing_of_all_this_is_kept(server: LarderServer, instance: int) -> None:
    with RawConnection(server.port) as connection:
        connection.ask(Op.UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, instance)
    until(lambda: server.l1()["write_locked_count"] == 0, "reservations are dropped")
    assert server.l1()["read_locked_count"] == 0
    assert server.status()["is_healthy"] is True
