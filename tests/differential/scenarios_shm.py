"""Scenarios for a server with shared memory: stores, lookups, retrieves, locks, sessions.

Goal: every rule a client of release 0.5.2 can observe. Method: see steps.py; a function is a
scenario and its name is the model's name, so that scenarios share nothing.
"""

from __future__ import annotations

from steps import (
    NO_SLOTS,
    Collection,
    Engine,
    Fill,
    Peek,
    Step,
    end_session,
    free,
    hits,
    lookup,
    query,
    scheduler_key,
    submit,
    tokens,
    wait,
)

COLLECTION = Collection("shm")
scenario = COLLECTION.add


@scenario
def store_lookup_retrieve(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(64)
    first, second = engine.key(ids, "first"), engine.key(ids, "second")
    asked = scheduler_key(engine, ids, "second")
    return [
        engine.register(),
        *lookup(scheduler_key(engine, ids, "first")),
        *engine.store(first, 0x10),
        end_session(first),
        *lookup(asked),
        *engine.retrieve(second),
        end_session(asked),
        engine.unregister(),
    ]


@scenario
def everything_present(name: str) -> list[Step]:
    engine = Engine(name)
    key = engine.key(tokens(48), "r")
    return [
        engine.register(),
        *engine.store(key, 0x20),
        engine.prepare_store(key),
        engine.commit_store(key),
    ]


@scenario
def a_store_fills_in_what_is_missing(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(80)
    key = engine.key(ids, "r")
    return [
        engine.register(),
        *engine.store(engine.key(ids, "r", (0, 3)), 0x30),
        *engine.store(key, 0x40),
        *lookup(scheduler_key(engine, ids, "s")),
        *engine.retrieve(engine.key(ids, "s")),
    ]


@scenario
def a_growing_prompt(name: str) -> list[Step]:
    engine = Engine(name)
    steps: list[Step] = [engine.register()]
    for turn, count in enumerate((40, 72, 104)):
        ids = tokens(count)
        request = f"turn {turn}"
        present = (40 + 32 * (turn - 1)) // 16 if turn else 0
        steps += lookup(scheduler_key(engine, ids, request))
        if present:
            steps += engine.retrieve(engine.key(ids, request, (0, present)))
        steps += engine.store(engine.key(ids, request, (present, count // 16)), 0x11 * (turn + 1))
        steps += [end_session(engine.key(ids, request))]
    return steps


@scenario
def one_request_grows_while_it_decodes(name: str) -> list[Step]:
    engine = Engine(name)
    steps: list[Step] = [engine.register()]
    for chunks in range(1, 5):
        ids = tokens(16 * chunks + 3)
        steps += engine.store(engine.key(ids, "r", (chunks - 1, chunks)), chunks)
    steps += lookup(scheduler_key(engine, tokens(67), "s"))
    return [*steps, *engine.retrieve(engine.key(tokens(67), "s"))]


@scenario
def a_hole_ends_the_prefix(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(64)
    return [
        engine.register(),
        *engine.store(engine.key(ids, "r", (0, 1)), 1),
        *engine.store(engine.key(ids, "r", (2, 4)), 2),
        *lookup(scheduler_key(engine, ids, "s")),
        *engine.retrieve(engine.key(ids, "s", (0, 1))),
    ]


@scenario
def what_is_being_written_is_no_hit(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(32)
    key = engine.key(ids, "r")
    return [
        engine.register(),
        engine.prepare_store(key),
        *lookup(scheduler_key(engine, ids, "s")),
        Fill(1),
        engine.commit_store(key),
        *lookup(scheduler_key(engine, ids, "t")),
    ]


@scenario
def salts_keep_prompts_apart(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(32)
    return [
        engine.register(),
        *engine.store(engine.key(ids, "r", salt="tenant a"), 0x0A),
        *lookup(scheduler_key(engine, ids, "s")),
        *lookup(scheduler_key(engine, ids, "t", salt="tenant b")),
        *engine.store(engine.key(ids, "r", salt="tenant b"), 0x0B),
        *lookup(scheduler_key(engine, ids, "u", salt="tenant a")),
        *engine.retrieve(engine.key(ids, "u", salt="tenant a")),
        *lookup(scheduler_key(engine, ids, "v", salt="tenant b")),
        *engine.retrieve(engine.key(ids, "v", salt="tenant b")),
    ]


@scenario
def salts_that_are_not_allowed(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(32)
    return [
        engine.register(),
        submit(scheduler_key(engine, ids, "s", salt="a@b")).refused(),
        query(engine.key(ids, "s")),
        engine.prepare_store(engine.key(ids, "s", salt="a/b")).refused(),
        engine.prepare_retrieve(engine.key(ids, "s", salt="a\\b")).refused(),
        engine.prepare_store(engine.key(ids, "s", salt="x" * 129)).refused(),
        engine.prepare_store(engine.key(ids, "s", salt="\u00e9" * 128)),
    ]


@scenario
def models_are_kept_apart(name: str) -> list[Step]:
    engine, other = Engine(name), Engine(name + " other", number=1)
    ids = tokens(32)
    return [
        engine.register(),
        other.register(),
        *engine.store(engine.key(ids, "r"), 1),
        *lookup(scheduler_key(other, ids, "s")),
        *lookup(scheduler_key(engine, ids, "s")),
    ]


@scenario
def a_model_name_with_an_at_sign(name: str) -> list[Step]:
    engine = Engine("org@" + name)
    ids = tokens(32)
    return [
        engine.register().but("D-impossible-registration", {"shm_name": "", "pool_size": 0}),
        engine.prepare_store(engine.key(ids, "r")).refused(),
        submit(scheduler_key(engine, ids, "s")).refused(),
        query(engine.key(ids, "s")),
    ]


@scenario
def two_ranks(name: str) -> list[Step]:
    engine = Engine(name, world_size=2)
    ranks = [engine.rank(0), engine.rank(1)]
    ids = tokens(48)
    steps: list[Step] = [rank.register() for rank in ranks]
    steps += ranks[0].store(ranks[0].key(ids, "r"), 0x50)
    steps += lookup(scheduler_key(engine, ids, "half"), 2)
    steps += ranks[1].store(ranks[1].key(ids, "r"), 0x60)
    steps += lookup(scheduler_key(engine, ids, "s"), 2)
    for rank in ranks:
        steps += rank.retrieve(rank.key(ids, "s"))
    return steps


@scenario
def ranks_that_hold_different_lengths(name: str) -> list[Step]:
    engine = Engine(name, world_size=2)
    ranks = [engine.rank(0), engine.rank(1)]
    ids = tokens(64)
    return [
        *(rank.register() for rank in ranks),
        *ranks[0].store(ranks[0].key(ids, "r", (0, 4)), 0x50),
        *ranks[1].store(ranks[1].key(ids, "r", (0, 3)), 0x60),
        *lookup(scheduler_key(engine, ids, "s"), 2),
        *ranks[1].retrieve(ranks[1].key(ids, "s", (0, 3))),
        *ranks[0].retrieve(ranks[0].key(ids, "s", (0, 3))),
    ]


@scenario
def four_ranks(name: str) -> list[Step]:
    engine = Engine(name, world_size=4)
    ranks = [engine.rank(worker_id) for worker_id in range(4)]
    ids = tokens(32)
    steps: list[Step] = [rank.register() for rank in ranks]
    for number, rank in enumerate(ranks):
        steps += lookup(scheduler_key(engine, ids, f"after {number}"), 4)
        steps += rank.store(rank.key(ids, "r"), 0x10 * (number + 1))
    steps += lookup(scheduler_key(engine, ids, "s"), 4)
    for rank in ranks:
        steps += rank.retrieve(rank.key(ids, "s"))
    return steps


@scenario
def readers_of_one_latent_cache(name: str) -> list[Step]:
    """One rank stores for three that read; the lookup's locks are good for three retrieves."""
    engine = Engine(name, one_plane=True)
    ids = tokens(32)
    key = engine.key(ids, "s")
    return [
        engine.register(),
        *engine.store(engine.key(ids, "r"), 0x70),
        *lookup(scheduler_key(engine, ids, "s"), 3),
        *engine.retrieve(key),
        *engine.retrieve(key),
        *engine.retrieve(key),
        engine.prepare_retrieve(key).but("D-extra-reader", engine.found_slots(0, 2)),
        Peek().but("D-extra-reader", engine.filled(0x70, 0x71)),
        engine.commit_retrieve(key),
    ]


@scenario
def a_retrieve_without_a_lookup(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(32)
    return [
        engine.register(),
        *engine.store(engine.key(ids, "r"), 1),
        engine.prepare_retrieve(engine.key(ids, "s")).but(
            "D-retrieve-without-lookup", engine.found_slots(0, 2)
        ),
        Peek().but("D-retrieve-without-lookup", engine.filled(1, 2)),
        engine.commit_retrieve(engine.key(ids, "s")),
        engine.prepare_retrieve(engine.key(tokens(32, seed=9), "s")),
    ]


@scenario
def a_retrieve_of_which_a_part_is_missing(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(64)
    return [
        engine.register(),
        *engine.store(engine.key(ids, "r", (0, 2)), 1),
        *lookup(scheduler_key(engine, ids, "s")),
        engine.prepare_retrieve(engine.key(ids, "s", (0, 3))),
        engine.commit_retrieve(engine.key(ids, "s", (0, 3))),
    ]


@scenario
def commits_that_nothing_prepared(name: str) -> list[Step]:
    engine, other = Engine(name), Engine(name, number=1)
    key = engine.key(tokens(32), "r")
    return [
        engine.register(),
        other.register(),
        engine.commit_store(key),
        engine.commit_retrieve(key),
        engine.prepare_store(key),
        Fill(5),
        other.commit_store(key),
        engine.commit_store(key),
        engine.commit_store(key),
    ]


@scenario
def a_second_prepare_while_the_first_is_open(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(32)
    key = engine.key(ids, "r")
    return [
        engine.register(),
        engine.prepare_store(key),
        Fill(5),
        engine.prepare_store(key),
        engine.commit_store(key),
        *lookup(scheduler_key(engine, ids, "s")),
        engine.prepare_retrieve(engine.key(ids, "s")),
        engine.prepare_retrieve(engine.key(ids, "s")),
        Peek(),
        engine.commit_retrieve(engine.key(ids, "s")),
        engine.commit_retrieve(engine.key(ids, "s")),
    ]


@scenario
def two_writers_of_one_prompt(name: str) -> list[Step]:
    """Both are given room; the first to commit wins, and nobody waits for a writer that died."""
    first, second = Engine(name), Engine(name, number=1, connection="another worker")
    ids = tokens(32)
    key = first.key(ids, "r")
    return [
        first.register(),
        second.register(),
        first.prepare_store(key),
        Fill(1),
        second.prepare_store(key).but("D-two-writers", second.given_slots(2, [0, 1])),
        Fill(8).but("D-two-writers", 2),
        second.commit_store(key).but("D-two-writers", True),
        first.commit_store(key),
        *lookup(scheduler_key(first, ids, "s")),
    ]


@scenario
def empty_and_inverted_ranges(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(64)
    steps: list[Step] = [engine.register()]
    for span in ((2, 2), (0, 0), (3, 1)):
        key = engine.key(ids, "r", span)
        steps += [
            engine.prepare_store(key),
            engine.commit_store(key),
            engine.prepare_retrieve(key),
            engine.commit_retrieve(key),
        ]
    return steps


@scenario
def transfer_ranges_that_cut_a_chunk(name: str) -> list[Step]:
    engine = Engine(name)
    key = {**engine.key(tokens(64), "r"), "start": 3, "end": 35}
    return [
        engine.register(),
        engine.prepare_store(key).refused(),
        engine.commit_store(key),
        engine.prepare_retrieve(key).refused(),
        engine.commit_retrieve(key),
    ]


@scenario
def a_range_beyond_the_tokens(name: str) -> list[Step]:
    engine = Engine(name)
    key = {**engine.key(tokens(32), "r"), "end": 64}
    return [
        engine.register(),
        engine.prepare_store(key).but("D-range-beyond-tokens", NO_SLOTS),
    ]


@scenario
def lookup_and_free_ranges_that_cut_a_chunk(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(67)
    asked = {**scheduler_key(engine, ids, "s"), "start": 20, "end": 21}
    return [
        engine.register(),
        *engine.store(engine.key(ids, "r"), 1),
        *lookup(asked),
        free({**asked, "start": 3, "end": 40}),
        free({**asked, "start": 40, "end": 3}),
        *engine.retrieve(engine.key(ids, "s", (0, 1))),
        *engine.retrieve(engine.key(ids, "s", (2, 4))),
    ]


@scenario
def a_model_nobody_registered(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(32)
    asked = scheduler_key(engine, ids, "s")
    key = engine.key(ids, "s")
    return [
        *lookup(asked),
        submit(asked),
        hits(asked),
        wait(asked),
        free(asked).refused(),
        engine.prepare_store(key).refused(),
        engine.commit_store(key).refused(),
        engine.prepare_retrieve(key).refused(),
        engine.commit_retrieve(key).refused(),
    ]


@scenario
def a_job_is_consumed_once(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(48)
    asked = scheduler_key(engine, ids, "s")
    again = scheduler_key(engine, ids, "t")
    return [
        engine.register(),
        *engine.store(engine.key(ids, "r"), 1),
        submit(asked),
        hits(asked),
        hits(asked),
        query(asked),
        query(asked),
        hits(asked),
        wait(asked),
        submit(again),
        wait(again),
        wait(again),
        query(again),
    ]


@scenario
def ids_nobody_knows(name: str) -> list[Step]:
    key = Engine(name).key(tokens(32), "nobody")
    return [query(key), wait(key), wait(key, -1.0), wait(key, 0.0), hits(key), end_session(key)]


@scenario
def a_lookup_replaces_the_one_before(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(64)
    return [
        engine.register(),
        *engine.store(engine.key(ids, "r"), 1),
        submit(scheduler_key(engine, ids, "s")),
        submit(scheduler_key(engine, ids[:35], "s")),
        query(scheduler_key(engine, ids, "s")),
        query(scheduler_key(engine, ids, "s")),
    ]


@scenario
def prompts_shorter_than_a_chunk(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(15)
    asked = scheduler_key(engine, ids, "s")
    return [
        engine.register(),
        *lookup(asked),
        submit(asked),
        hits(asked),
        *lookup(scheduler_key(engine, [], "t")),
        free(asked),
        engine.prepare_store(engine.key(ids, "s")),
    ]


@scenario
def tokens_that_fit_no_hash(name: str) -> list[Step]:
    engine = Engine(name)
    steps: list[Step] = [engine.register()]
    for token in (-1, 1 << 32):
        ids = [*tokens(15), token, *tokens(16)]
        steps += [
            submit(scheduler_key(engine, ids, f"s{token}")).refused(),
            query(engine.key(ids, f"s{token}")),
            engine.prepare_store(engine.key(ids, f"r{token}")).refused(),
        ]
    largest = [*tokens(15), (1 << 32) - 1]
    steps += engine.store(engine.key(largest, "r"), 3)
    return [*steps, *lookup(scheduler_key(engine, largest, "s"))]


@scenario
def the_end_of_a_session(name: str) -> list[Step]:
    """Ending a request frees its locks, but not the transfer that is under way."""
    engine = Engine(name)
    ids = tokens(32)
    asked = scheduler_key(engine, ids, "s")
    key = engine.key(ids, "s")
    return [
        engine.register(),
        *engine.store(engine.key(ids, "r"), 0x33),
        *lookup(asked),
        engine.prepare_retrieve(key),
        end_session(asked),
        Peek(),
        engine.commit_retrieve(key),
        end_session(asked),
        submit(asked),
        end_session(asked),
        query(asked).but("D-end-session", 0),
    ]


@scenario
def a_store_after_the_end_of_its_session(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(32)
    key = engine.key(ids, "r")
    return [
        engine.register(),
        *lookup(scheduler_key(engine, ids, "r")),
        engine.prepare_store(key),
        end_session(key),
        Fill(0x21),
        engine.commit_store(key),
        *lookup(scheduler_key(engine, ids, "s")),
        *engine.retrieve(engine.key(ids, "s")),
    ]


@scenario
def freeing_more_than_was_locked(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(32)
    asked = scheduler_key(engine, ids, "s")
    return [
        engine.register(),
        *engine.store(engine.key(ids, "r"), 1),
        free(asked),
        *lookup(asked),
        free(asked),
        free(asked),
        *lookup(scheduler_key(engine, ids, "t")),
        *engine.retrieve(engine.key(ids, "t")),
    ]


@scenario
def one_scheduler_asks_for_anothers_job(name: str) -> list[Step]:
    engine = Engine(name)
    ids = tokens(32)
    asked = scheduler_key(engine, ids, "s")
    return [
        engine.register(),
        *engine.store(engine.key(ids, "r"), 1),
        submit(asked),
        query(asked, connection="another scheduler"),
        query(asked),
    ]
