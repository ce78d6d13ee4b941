"""Scenarios of the wire itself: what a decoder accepts, and requests that are malformed.

Goal: accept what release 0.5.2 accepts, and answer everything else with the safe negative where the
reference is silent. Method: frames made by hand; see steps.py.
"""

from __future__ import annotations

from typing import Any

from steps import (
    Ask,
    Collection,
    Engine,
    RawFrame,
    Step,
    ask,
    lookup,
    query,
    scheduler_key,
    submit,
    tokens,
)
from wire import Op

COLLECTION = Collection("shm")
scenario = COLLECTION.add

GARBAGE = RawFrame(b"\xc1")  # the one byte that msgpack never uses
NOTHING = RawFrame(b"")
TRAILING = RawFrame(b"\x01\x01")


def map_frame(*pairs: tuple[bytes, bytes]) -> RawFrame:
    """A msgpack map from encoded keys and values, in this order."""
    return RawFrame(bytes([0x80 + len(pairs)]) + b"".join(key + value for key, value in pairs))


def text(value: str) -> bytes:
    """A string in a longer encoding than it needs."""
    return b"\xda" + len(value).to_bytes(2, "big") + value.encode()


@scenario
def frames_that_are_no_msgpack(name: str) -> list[Step]:
    engine = Engine(name)
    key = engine.key(tokens(32), "r")
    return [
        engine.register(),
        *(ask(Op.LOOKUP, key, frame).refused() for frame in (GARBAGE, NOTHING, TRAILING)),
        ask(Op.LOOKUP, GARBAGE, 1).refused(),
        ask(Op.QUERY_PREFETCH_STATUS, GARBAGE).refused(),
        ask(Op.WAIT_PREFETCH_STATUS, GARBAGE, 1.0).refused(),
        ask(Op.QUERY_PREFETCH_LOOKUP_HITS, GARBAGE).refused(),
        ask(Op.FREE_LOOKUP_LOCKS, GARBAGE, 1).refused(),
        ask(Op.END_SESSION, GARBAGE).refused(),
        ask(Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, GARBAGE).refused(),
        ask(Op.UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, GARBAGE).refused(),
        ask(Op.PREPARE_STORE, GARBAGE, engine.instance).refused(),
        ask(Op.COMMIT_STORE, key, engine.instance, GARBAGE).refused(),
        ask(Op.PREPARE_RETRIEVE, key, GARBAGE).refused(),
        ask(Op.COMMIT_RETRIEVE, key, NOTHING).refused(),
        ask(Op.PING, GARBAGE).but("D-ping-unreadable", True),
        ask(Op.REPORT_BLOCK_ALLOCATION, 1, "m", GARBAGE).refused(),
        ask(Op.NOOP),
    ]


@scenario
def too_few_or_too_many_payloads(name: str) -> list[Step]:
    engine = Engine(name)
    key = engine.key(tokens(32), "r")
    return [
        engine.register(),
        ask(Op.LOOKUP, scheduler_key(engine, tokens(32), "s")).refused(),
        query(engine.key([], "s")),
        ask(Op.QUERY_PREFETCH_STATUS).refused(),
        ask(Op.WAIT_PREFETCH_STATUS, "r").refused(),
        ask(Op.FREE_LOOKUP_LOCKS, key).refused(),
        ask(Op.END_SESSION, "r", "s").refused(),
        ask(Op.PREPARE_STORE, key).refused(),
        ask(Op.COMMIT_STORE, key, engine.instance).refused(),
        ask(Op.PREPARE_RETRIEVE, key, engine.instance, 1).refused(),
        ask(Op.COMMIT_RETRIEVE, key).refused(),
        ask(Op.GET_CHUNK_SIZE, 1).refused(),
        ask(Op.NOOP, "x").refused(),
        ask(Op.PING).but("D-ping-unreadable", True),
        ask(Op.REPORT_BLOCK_ALLOCATION, 1, "m").refused(),
        ask(Op.NOOP),
    ]


@scenario
def values_of_the_wrong_type(name: str) -> list[Step]:
    engine = Engine(name)
    key = engine.key(tokens(32), "r")
    wrong: list[dict[str, Any]] = [
        {**key, "world_size": 1.0},
        {**key, "world_size": True},
        {**key, "world_size": "1"},
        {**key, "model_name": b"m"},
        {**key, "token_ids": b"0000"},
        {**key, "token_ids": [1.0] * 32},
        {**key, "start": None},
        {field: value for field, value in key.items() if field != "request_id"},
        {field: value for field, value in key.items() if field != "worker_id"},
    ]
    registration = engine.registration()
    register = Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT
    return [
        engine.register(),
        *(engine.prepare_store(each).refused() for each in wrong),
        engine.prepare_store(list(key.values())).refused(),  # type: ignore[arg-type]
        ask(Op.COMMIT_STORE, key, engine.instance, "text").refused(),
        ask(Op.QUERY_PREFETCH_STATUS, 7).refused(),
        ask(Op.END_SESSION, b"r").refused(),
        ask(Op.WAIT_PREFETCH_STATUS, "r", "1").refused(),
        ask(Op.PING, "x").but("D-ping-unreadable", True),
        Ask("a", register, ({**registration, "instance_id": 5, "use_mla": 1},)).refused(),
        Ask(
            "b", register, ({**registration, "instance_id": 6, "hidden_dim_size": 64.0},)
        ).refused(),
        Ask("c", register, ({"instance_id": 8},)).refused(),
    ]


@scenario
def maps_in_other_forms(name: str) -> list[Step]:
    """Any order of fields, unknown fields, a missing salt."""
    engine = Engine(name)
    ids = tokens(32)
    key = engine.key(ids, "r")
    reversed_key = dict(reversed(key.items()))
    asked = scheduler_key(engine, ids, "s")
    short = {field: value for field, value in asked.items() if field != "cache_salt"}
    extra = {**engine.registration(), "num_physical_slots": None, "colour": ["blue", {"x": 1}]}
    return [
        Ask(engine.connection, Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, (extra,)),
        engine.prepare_store(reversed_key),
        engine.commit_store({**key, "colour": {"deep": [1, 2, [3]]}}),
        submit(short),
        query(asked),
    ]


@scenario
def whole_payloads_are_coerced(name: str) -> list[Step]:
    """An int payload may be a bool, a float or digits; a float may be an int."""
    engine = Engine(name)
    ids = tokens(32)
    steps: list[Step] = [engine.register(), *engine.store(engine.key(ids, "r"), 1)]
    for number, readers in enumerate(
        (True, 1.9, "1", b"1", RawFrame(b"\xd3" + bytes(7) + b"\x01"))
    ):
        asked = scheduler_key(engine, ids, f"s{number}")
        steps += [ask(Op.LOOKUP, asked, readers), query(asked)]
    asked = scheduler_key(engine, ids, "wait")
    return [
        *steps,
        submit(asked),
        ask(Op.WAIT_PREFETCH_STATUS, asked["request_id"], 1),
        ask(Op.LOOKUP, asked, None).refused(),
        ask(Op.LOOKUP, asked, "one").refused(),
    ]


@scenario
def integers_in_wide_encodings(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(16)
    asked = scheduler_key(engine, ids, "s")
    wide_tokens = (
        b"\xdd"
        + len(ids).to_bytes(4, "big")
        + b"".join(b"\xcf" + token.to_bytes(8, "big") for token in ids)
    )
    frame = map_frame(
        (text("model_name"), text(name)),
        (text("world_size"), b"\xd2\x00\x00\x00\x01"),
        (text("worker_id"), b"\xc0"),
        (text("token_ids"), wide_tokens),
        (text("start"), b"\xcd\x00\x00"),
        (text("end"), b"\xd1\x00\x10"),
        (text("request_id"), text(asked["request_id"])),
    )
    return [
        engine.register(),
        *engine.store(engine.key(ids, "r"), 1),
        ask(Op.LOOKUP, frame, RawFrame(b"\xce\x00\x00\x00\x01")),
        query(asked),
        *lookup(scheduler_key(engine, ids, "t")),
    ]
