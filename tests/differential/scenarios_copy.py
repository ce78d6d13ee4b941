"""Scenarios for a server without shared memory: chunks travel as pickled tensors.

Goal and method as in scenarios_shm.py. The answer to PREPARE_STORE has another form here (see
Engine.prepare_copy), which this kind of client does not look at.
"""

from __future__ import annotations

from steps import (
    Collection,
    Engine,
    Step,
    ask,
    end_session,
    lookup,
    query,
    scheduler_key,
    submit,
    tokens,
)
from wire import Op

COLLECTION = Collection("copy")
scenario = COLLECTION.add


@scenario
def store_lookup_retrieve(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(48)
    key = engine.key(ids, "s")
    return [
        engine.register(),
        *engine.store_copies(engine.key(ids, "r"), 0x11, 0x22, 0x33),
        *lookup(scheduler_key(engine, ids, "s")),
        engine.prepare_retrieve(key),
        engine.commit_retrieve(key),
        end_session(key),
        engine.unregister(),
    ]


@scenario
def every_layout_comes_back_as_it_was(name: str) -> list[Step]:
    steps: list[Step] = []
    for number, dtype in enumerate(("float16", "float32", "uint8", "bfloat16")):
        engine = Engine(f"{name} {dtype}", number=number, dtype=dtype, one_plane=number % 2 == 1)
        ids = tokens(32)
        key = engine.key(ids, "s")
        steps += [engine.register(), *engine.store_copies(engine.key(ids, "r"), 0x3A, 0x3B)]
        steps += [*lookup(scheduler_key(engine, ids, "s")), engine.prepare_retrieve(key)]
    return steps


@scenario
def everything_present(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(32)
    key = engine.key(ids, "r")
    return [
        engine.register(),
        *engine.store_copies(key, 1, 2),
        *engine.store_copies(key, 3, 4),
        *lookup(scheduler_key(engine, ids, "s")),
        engine.prepare_retrieve(engine.key(ids, "s")),
    ]


@scenario
def a_store_fills_in_what_is_missing(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(64)
    return [
        engine.register(),
        *engine.store_copies(engine.key(ids, "r", (1, 3)), 2, 3),
        *lookup(scheduler_key(engine, ids, "s")),
        *engine.store_copies(engine.key(ids, "r"), 0x51, 0x52, 0x53, 0x54),
        *lookup(scheduler_key(engine, ids, "t")),
        engine.prepare_retrieve(engine.key(ids, "t")),
    ]


@scenario
def tensors_of_another_shape(name: str) -> list[Step]:
    """The reference keeps such objects locked, and a later good store of them is lost."""
    engine, other = Engine(name), Engine(name, hidden=32)
    ids = tokens(32)
    key = engine.key(ids, "r")
    return [
        engine.register(),
        engine.commit_store(key, other.chunks(1, 2)),
        *lookup(scheduler_key(engine, ids, "s")),
        engine.commit_store(key, engine.chunks(3, 4)),
        submit(scheduler_key(engine, ids, "t")),
        query(scheduler_key(engine, ids, "t")).but("D-unwritten-discarded", 2),
    ]


@scenario
def too_few_tensors(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(48)
    return [
        engine.register(),
        engine.commit_store(engine.key(ids, "r"), engine.chunks(1, 2)),
        submit(scheduler_key(engine, ids, "s")),
        query(scheduler_key(engine, ids, "s")).but("D-copies-as-a-whole", 0),
        engine.commit_store(engine.key(ids, "r"), engine.chunks()).but("D-dropped-is-false", False),
    ]


@scenario
def too_many_tensors(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(32)
    return [
        engine.register(),
        engine.commit_store(engine.key(ids, "r"), engine.chunks(1, 2, 3)).but(
            "D-surplus-tensors", False
        ),
        submit(scheduler_key(engine, ids, "s")),
        query(scheduler_key(engine, ids, "s")).but("D-surplus-tensors", 0),
    ]


@scenario
def tensors_of_another_dtype(name: str) -> list[Step]:
    """The reference converts them, and the engine is later handed other bytes than it stored."""
    engine, wide = Engine(name), Engine(name, dtype="float32")
    ids = tokens(32)
    return [
        engine.register(),
        engine.commit_store(engine.key(ids, "r"), wide.chunks(0x3F, 0x40)).but(
            "D-dtype-conversion", False
        ),
        submit(scheduler_key(engine, ids, "s")),
        query(scheduler_key(engine, ids, "s")).but("D-dtype-conversion", 0),
    ]


@scenario
def payloads_that_are_no_tensors(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(32)
    key = engine.key(ids, "r")
    return [
        engine.register(),
        engine.commit_store(key).refused(),
        engine.commit_store(key, b"garbage").refused(),
        engine.commit_store(key, engine.chunks(1, 2)[:-40]).refused(),
        engine.commit_store({**key, "start": 3}, engine.chunks(1, 2)).refused(),
        *lookup(scheduler_key(engine, ids, "s")),
        engine.commit_store(key, engine.chunks(1, 2)),
        *lookup(scheduler_key(engine, ids, "t")),
    ]


@scenario
def empty_and_inverted_ranges(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(64)
    steps: list[Step] = [engine.register()]
    for span in ((2, 2), (3, 1)):
        key = engine.key(ids, "r", span)
        steps += [
            engine.prepare_copy(key),
            engine.commit_store(key, engine.chunks()),
            engine.commit_store(key, engine.chunks(1)).but("D-surplus-tensors", False),
            engine.prepare_retrieve(key),
            engine.commit_retrieve(key),
        ]
    return steps


@scenario
def a_retrieve_without_a_lookup(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(32)
    return [
        engine.register(),
        *engine.store_copies(engine.key(ids, "r"), 1, 2),
        engine.prepare_retrieve(engine.key(ids, "s")).but(
            "D-retrieve-without-lookup", engine.found_data(1, 2)
        ),
    ]


@scenario
def readers_of_one_latent_cache(name: str) -> list[Step]:
    engine = Engine(name, one_plane=True)
    ids = tokens(32)
    key = engine.key(ids, "s")
    return [
        engine.register(),
        *engine.store_copies(engine.key(ids, "r"), 1, 2),
        *lookup(scheduler_key(engine, ids, "s"), 3),
        *(engine.prepare_retrieve(key) for _ in range(3)),
        engine.prepare_retrieve(key).but("D-extra-reader", engine.found_data(1, 2)),
    ]


@scenario
def clearing_the_cache(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(32)
    return [
        engine.register(),
        *engine.store_copies(engine.key(ids, "r"), 1, 2),
        ask(Op.CLEAR),
        *lookup(scheduler_key(engine, ids, "s")),
        engine.prepare_retrieve(engine.key(ids, "s")),
        *engine.store_copies(engine.key(ids, "r"), 3, 4),
        *lookup(scheduler_key(engine, ids, "t")),
        engine.prepare_retrieve(engine.key(ids, "t")),
    ]


@scenario
def after_unregistering(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(32)
    key = engine.key(ids, "r")
    return [
        engine.register(),
        *engine.store_copies(key, 1, 2),
        engine.unregister(),
        engine.prepare_store(key).refused(),
        engine.commit_store(key, engine.chunks(1, 2)).refused(),
        engine.prepare_retrieve(key).refused(),
        engine.commit_retrieve(key).refused(),
    ]


@scenario
def a_prepare_for_no_rank(name: str) -> list[Step]:
    """The reference does not even look at the key before the commit."""
    engine = Engine(name)
    key = {**engine.key(tokens(32), "r"), "worker_id": None}
    return [
        engine.register(),
        engine.prepare_copy(key),
        engine.commit_store(key, engine.chunks(1, 2)).refused(),
    ]
