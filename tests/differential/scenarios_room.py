"""Scenarios that fill the pool. They come first, as they need all of it.

Goal and method as in scenarios_shm.py.
"""

from __future__ import annotations

from steps import Collection, Engine, Fill, Step, query, scheduler_key, submit, tokens

SHM = Collection("shm")
COPY = Collection("copy")
with_shared_memory = SHM.add
without_shared_memory = COPY.add


@with_shared_memory
def a_store_larger_than_the_pool(name: str) -> list[Step]:
    """Chunks of 1 MiB in a pool of 16: larder gives what there is room for, from the front."""
    engine = Engine(name, hidden=8192)
    ids = tokens(16 * 20)
    key = engine.key(ids, "r")
    return [
        engine.register(),
        engine.prepare_store(key).but("D-short-slots", engine.given_slots(0, range(16))),
        Fill(0x01).but("D-short-slots", 16),
        engine.commit_store(key).but("D-short-slots", True),
    ]


@with_shared_memory
def room_is_made_when_it_is_needed(name: str) -> list[Step]:
    """Twelve of sixteen MiB are taken; the next eight need some of them."""
    engine = Engine(name, hidden=8192)
    old, new = tokens(16 * 12), tokens(16 * 8, seed=2)
    key = engine.key(new, "new")
    return [
        engine.register(),
        *engine.store(engine.key(old, "old"), 0x01),
        engine.prepare_store(key).but("D-eviction-on-demand", engine.given_slots(12, range(8))),
        Fill(0x81).but("D-eviction-on-demand", 8),
        engine.commit_store(key).but("D-eviction-on-demand", True),
    ]


@without_shared_memory
def copies_larger_than_the_pool(name: str) -> list[Step]:
    """Chunks of 1 MiB in a pool of 16: the reference says true and keeps nothing."""
    engine = Engine(name, hidden=8192)
    ids = tokens(16 * 20)
    key = engine.key(ids, "r")
    return [
        engine.register(),
        engine.commit_store(key, engine.chunks(*range(1, 21))).but("D-dropped-is-false", False),
        submit(scheduler_key(engine, ids, "s")),
        query(scheduler_key(engine, ids, "s")).but("D-short-slots", 16),
    ]
