"""Scenarios about who is registered and how, clearing, and the two kinds of clients.

Goal and method as in scenarios_shm.py.
"""

from __future__ import annotations

from steps import (
    NO_SLOTS,
    Ask,
    Collection,
    Engine,
    Fill,
    Peek,
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


@scenario
def registering_twice_and_unregistering_twice(name: str) -> list[Step]:
    engine = Engine(name)
    return [
        engine.register(),
        engine.register(),
        engine.unregister(),
        engine.unregister(),
        engine.register(),
    ]


@scenario
def a_dtype_nobody_knows(name: str) -> list[Step]:
    engine = Engine(name, dtype="bfloat16")
    wrong = {**engine.registration(), "dtype_str": "float17"}
    key = engine.key(tokens(32), "r")
    return [
        Ask(engine.connection, Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, (wrong,)).refused(),
        engine.prepare_store(key).refused(),
        engine.commit_store(key).refused(),
        *lookup(scheduler_key(engine, tokens(32), "s")),
    ]


@scenario
def impossible_registrations(name: str) -> list[Step]:
    engine = Engine(name)
    register = Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT
    refusal = {"shm_name": "", "pool_size": 0}
    return [
        Ask("one", register, ({**engine.registration(), "num_layers": 0},)).but(
            "D-impossible-registration", refusal
        ),
        Ask("two", register, ({**engine.registration(), "instance_id": 7, "world_size": 256},)).but(
            "D-impossible-registration", refusal
        ),
    ]


@scenario
def after_unregistering(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(32)
    key = engine.key(ids, "r")
    return [
        engine.register(),
        *engine.store(key, 0x12),
        engine.unregister(),
        engine.prepare_store(key).refused(),
        engine.commit_store(key).refused(),
        engine.prepare_retrieve(key).refused(),
        engine.commit_retrieve(key).refused(),
        *lookup(scheduler_key(engine, ids, "s")),
        engine.register(),
        *lookup(scheduler_key(engine, ids, "t")),
    ]


@scenario
def unregistering_with_a_store_open(name: str) -> list[Step]:
    """Nobody wrote these slots, so nobody may read them."""
    engine, witness = Engine(name), Engine(name, number=1)
    ids = tokens(32)
    return [
        witness.register(),
        engine.register(),
        engine.prepare_store(engine.key(ids, "r")),
        engine.unregister(),
        submit(scheduler_key(engine, ids, "s")),
        query(scheduler_key(engine, ids, "s")).but("D-unwritten-discarded", 0),
    ]


@scenario
def registering_again_with_another_layout(name: str) -> list[Step]:
    engine = Engine(name)
    changed = Engine(name, layers=3)
    ids = tokens(32)
    key = engine.key(ids, "r")
    return [
        engine.register(),
        changed.register(),
        engine.prepare_store(key).but("D-reregister", changed.given_slots(0, [0, 1])),
        Fill(1),
        engine.commit_store(key),
    ]


@scenario
def registering_again_with_a_store_open(name: str) -> list[Step]:
    engine = Engine(name)
    key = engine.key(tokens(32), "r")
    return [
        engine.register(),
        engine.prepare_store(key),
        Fill(1),
        engine.register(),
        engine.commit_store(key).but("D-reregister", False),
        submit(scheduler_key(engine, tokens(32), "s")),
        query(scheduler_key(engine, tokens(32), "s")).but("D-reregister", 0),
    ]


@scenario
def two_layouts_of_one_model(name: str) -> list[Step]:
    """What only one of them can read is no hit, as the lookup does not say who asks."""
    engine, other = (
        Engine(name),
        Engine(name, number=1, dtype="float32", connection="another worker"),
    )
    ids = tokens(32)
    return [
        engine.register(),
        *engine.store(engine.key(ids, "r"), 1),
        other.register(),
        submit(scheduler_key(engine, ids, "s")),
        query(scheduler_key(engine, ids, "s")).but("D-layouts", 0),
        other.prepare_store(other.key(ids, "t")).but("D-layouts", other.given_slots(2, [0, 1])),
        Fill(0x41).but("D-layouts", 2),
        other.commit_store(other.key(ids, "t")).but("D-layouts", True),
        *lookup(scheduler_key(engine, ids, "u")),
        *engine.retrieve(engine.key(ids, "u")),
    ]


@scenario
def clearing_the_cache(name: str) -> list[Step]:
    engine = Engine(name)
    ids, others = tokens(32), tokens(32, seed=2)
    open_key = engine.key(others, "open")
    return [
        engine.register(),
        *engine.store(engine.key(ids, "r"), 1),
        *lookup(scheduler_key(engine, ids, "s")),
        submit(scheduler_key(engine, ids, "t")),
        engine.prepare_store(open_key),
        Fill(2),
        ask(Op.CLEAR),
        query(scheduler_key(engine, ids, "t")).but("D-clear", 0),
        engine.commit_store(open_key).but("D-clear", False),
        *lookup(scheduler_key(engine, ids, "u")),
        *lookup(scheduler_key(engine, others, "v")),
        engine.prepare_retrieve(engine.key(ids, "s")).but("D-clear", engine.found_slots(0, 2)),
        Peek().but("D-clear", engine.filled(1, 2)),
        engine.commit_retrieve(engine.key(ids, "s")),
        *engine.store(engine.key(ids, "w"), 3),
        *lookup(scheduler_key(engine, ids, "x")),
    ]


@scenario
def clearing_with_an_argument(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(32)
    return [
        engine.register(),
        *engine.store(engine.key(ids, "r"), 1),
        ask(Op.CLEAR, True).refused(),
        *lookup(scheduler_key(engine, ids, "s")),
    ]


@scenario
def ranks_outside_the_world(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(32)
    steps: list[Step] = [engine.register()]
    for worker_id in (-5, 1):
        key = {**engine.key(ids, f"r{worker_id}"), "worker_id": worker_id}
        steps.append(engine.prepare_store(key).but("D-rank-outside-world", NO_SLOTS))
    nobody = {**engine.key(ids, "nobody"), "worker_id": None}
    return [
        *steps,
        engine.prepare_store(nobody).refused(),
        engine.prepare_retrieve(nobody).refused(),
        engine.commit_retrieve(nobody),
        *lookup({**scheduler_key(engine, ids, "s"), "world_size": 0}),
        *lookup({**scheduler_key(engine, ids, "t"), "world_size": -1}),
    ]


@scenario
def one_request_id_with_other_tokens(name: str) -> list[Step]:
    engine = Engine(name)
    mine, theirs = tokens(32), tokens(32, seed=2)
    return [
        engine.register(),
        *engine.store(engine.key(mine, "r"), 1),
        engine.prepare_store(engine.key(theirs, "r")).but(
            "D-request-id-reuse", engine.given_slots(2, [0, 1])
        ),
        Fill(3).but("D-request-id-reuse", 2),
        engine.commit_store(engine.key(theirs, "r")).but("D-request-id-reuse", True),
        *lookup(scheduler_key(engine, mine, "s")),
    ]


@scenario
def copies_sent_to_a_server_with_shared_memory(name: str) -> list[Step]:
    """A client that could not map the segment; the server is not told."""
    engine = Engine(name)
    ids = tokens(32)
    key = engine.key(ids, "r")
    return [
        engine.register(),
        engine.prepare_store(key),
        engine.commit_store(key, engine.chunks(0x61, 0x62)),
        submit(scheduler_key(engine, ids, "s")),
        query(scheduler_key(engine, ids, "s")).but("D-copies-with-shared-memory", 2),
        engine.prepare_retrieve(engine.key(ids, "s")).but(
            "D-copies-with-shared-memory", engine.found_data(0x61, 0x62)
        ),
        engine.commit_retrieve(engine.key(ids, "s")),
    ]


@scenario
def copies_without_a_prepare(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(32)
    return [
        engine.register(),
        engine.commit_store(engine.key(ids, "r"), engine.chunks(0x61, 0x62)),
        *lookup(scheduler_key(engine, ids, "s")),
        engine.prepare_retrieve(engine.key(ids, "s")).but(
            "D-copies-with-shared-memory", engine.found_data(0x61, 0x62)
        ),
        engine.commit_retrieve(engine.key(ids, "s")),
    ]


@scenario
def a_reader_that_never_stored(name: str) -> list[Step]:
    """Whether it mapped the segment is not known yet, so it is sent both forms."""
    writer, reader = Engine(name), Engine(name, number=1, connection="reader")
    ids = tokens(32)
    key = reader.key(ids, "s")
    both = {**reader.found_slots(0, 2), "data": reader.found_data(1, 2)["data"]}
    return [
        writer.register(),
        reader.register(),
        *writer.store(writer.key(ids, "r"), 1),
        *lookup(scheduler_key(reader, ids, "s")),
        reader.prepare_retrieve(key).but("D-both-forms", both),
        Peek(),
        reader.commit_retrieve(key),
    ]


@scenario
def simple_requests(name: str) -> list[Step]:
    engine = Engine(name)
    record = {"req_id": "r", "new_block_ids": [1, 2], "new_token_ids": [3]}
    return [
        ask(Op.NOOP),
        ask(Op.GET_CHUNK_SIZE),
        ask(Op.PING, None),
        ask(Op.PING, engine.instance).but("D-ping-false-once", False),
        ask(Op.PING, engine.instance),
        engine.register(),
        ask(Op.PING, engine.instance),
        ask(Op.REPORT_BLOCK_ALLOCATION, engine.instance, name, [record]),
        ask(Op.REPORT_BLOCK_ALLOCATION, engine.instance, name, []),
    ]
