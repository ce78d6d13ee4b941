"""What one client process does in a soak (run_soak.py): everything that engines do, in any order,
for a while.

Goal: requests of all kinds next to each other, so that locks, sessions and registrations come and
go in every combination, while room is short.
Method: four engines of different kinds, prompts that all processes share and prompts of its own,
random steps from a seed. Each retrieve compares its bytes, a hit that was promised must come, and
an answer that does not come in time ends the soak. At the end everything was given back: each
request ended, each worker unregistered or gone.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from kv import KvLayout
from memory_worker import MemoryWorker
from prompts import Prompt, random_prompt
from release_client import ReleaseClient
from workers import Scheduler, Worker

HEARTBEAT_SECONDS = 0.5
PROMPT_CHUNKS_MAX = 12
SHARED_PROMPTS = 24
OWN_PROMPTS = 6

# Objects of 32 KiB: the prompts together are several times the pool.
LAYOUT = KvLayout(dtype=torch.bfloat16, layers=4, heads=4, head_size=64, block_tokens=4)
LATENT = KvLayout(dtype=torch.bfloat16, layers=8, head_size=256, block_tokens=4, mla=True)


@dataclass(frozen=True)
class Kind:
    """A kind of engine."""

    model: str
    layout: KvLayout = LAYOUT
    world_size: int = 1
    readers: int = 1
    maps_pool: bool = True
    server_copies: bool = False  # out of the engine's memory; for clients that can share it


# Full attention and a window of two chunks; one head, as releases order heads and tokens differently.
HYBRID = [
    {"form": "kv_first", "heads": 1, "head_size": 128},
    {"form": "fused", "heads": 1, "head_size": 64, "group": 1, "window": 16},
]

KINDS = (
    Kind("soak"),
    Kind("soak", maps_pool=False),
    Kind("soak-ranks", world_size=2),
    Kind("soak-latent", LATENT, readers=2),
    Kind("soak-memory", server_copies=True),
)


class SoakEngine:
    """A scheduler and the workers of one engine."""

    def __init__(self, client: ReleaseClient, url: str, kind: Kind) -> None:
        self._client, self._url, self.kind = client, url, kind
        self.scheduler = self._new_scheduler()
        self.workers = [self._new_worker(rank) for rank in range(kind.world_size * kind.readers)]

    def _new_scheduler(self) -> Scheduler:
        kind = self.kind
        return Scheduler(
            self._client, self._url, model=kind.model, world_size=kind.world_size,
            tp_size=kind.world_size * kind.readers,
        )  # fmt: skip

    def _new_worker(self, rank: int) -> Worker | MemoryWorker:
        kind = self.kind
        if kind.server_copies:
            return MemoryWorker(self._client, self._url, model=kind.model, layers=HYBRID)
        return Worker(
            self._client, self._url, model=kind.model, layout=kind.layout,
            world_size=kind.world_size, worker_id=rank // kind.readers, maps_pool=kind.maps_pool,
        )  # fmt: skip

    @property
    def writers(self) -> list[Worker | MemoryWorker]:
        """The workers that store: one of each rank."""
        return self.workers[:: self.kind.readers]

    def reconnect_scheduler(self) -> None:
        """The same scheduler on a new connection."""
        self.scheduler.leave()
        self.scheduler = self._new_scheduler()

    def replace_worker(self, number: int, *, unregister: bool) -> None:
        """A worker goes, in order or not, and another takes its place."""
        self.workers[number].leave(unregister=unregister)
        self.workers[number] = self._new_worker(number)

    def leave(self) -> None:
        """Stop in order."""
        for worker in self.workers:
            worker.leave()
        self.scheduler.leave()


class SoakWorkload:
    """The life of one client process."""

    def __init__(
        self, client: ReleaseClient, url: str, *, seed: int, kinds: Sequence[Kind] = KINDS
    ) -> None:
        self._random = random.Random(seed)
        self._seed = seed
        self._engines = [
            SoakEngine(client, url, kind)
            for kind in kinds
            if client.shares_memory or not kind.server_copies
        ]
        self._counts: Counter[str] = Counter()
        self._chunk_tokens = self._engines[0].scheduler.chunk_tokens if self._engines else 0
        self._next_ping = 0.0
        # How often a request takes each course.
        self._courses: list[tuple[int, Callable[[SoakEngine, Prompt], None]]] = [
            (600, self._use),
            (60, self._use_and_end_before_the_store),
            (60, self._free_all),
            (60, self._abort),
            (40, self._abort_before_the_answer),
            (40, self._register_again),
            (30, self._reconnect),
            (30, self._replace_worker),
            (4, self._vanish_in_the_middle),
            (1, self._clear),
        ]

    def run(self, seconds: float) -> dict[str, int]:
        """Live for that long and leave; the counts."""
        weights = [weight for weight, _ in self._courses]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._ping()
            _, course = self._random.choices(self._courses, weights)[0]
            course(self._random.choice(self._engines), self._prompt())
            self._counts["requests"] += 1
        for engine in self._engines:
            engine.leave()
        self._engines = []
        return dict(self._counts)

    def leave(self) -> None:
        """What is left of a run that failed is closed with the process."""

    def _prompt(self) -> Prompt:
        """A prompt that others use too, or one of its own, as a new request."""
        shared = self._random.random() < 0.7
        number = self._random.randrange(SHARED_PROMPTS if shared else OWN_PROMPTS)
        seed = number if shared else (self._seed + 1) * 1000 + number
        salt = "tenant" if number % 5 == 0 else ""
        whole = random_prompt(PROMPT_CHUNKS_MAX * self._chunk_tokens, salt, seed)
        chunks = self._random.randint(1, PROMPT_CHUNKS_MAX)
        tail = self._random.randrange(self._chunk_tokens)
        return whole.cut(chunks * self._chunk_tokens + tail)

    def _ping(self) -> None:
        """Keep all workers alive; each is registered, so each answer is true."""
        now = time.monotonic()
        if now < self._next_ping:
            return
        self._next_ping = now + HEARTBEAT_SECONDS
        for engine in self._engines:
            assert engine.scheduler.ping(), "a scheduler's PING was answered false"
            for worker in engine.workers:
                assert worker.ping(), "the server has lost a worker"

    def _lookup(self, engine: SoakEngine, prompt: Prompt) -> tuple[int, int]:
        """Hits and length in chunks."""
        chunks = len(prompt.tokens) // self._chunk_tokens
        hits = engine.scheduler.lookup(prompt)
        assert 0 <= hits <= chunks
        self._counts["lookups"] += 1
        self._counts["hits"] += hits
        return hits, chunks

    def _retrieve(self, engine: SoakEngine, prompt: Prompt, hits: int) -> None:
        """Give back what the engine has already, get the rest with all workers."""
        first = self._random.randint(0, hits) if self._random.random() < 0.3 else 0
        if first:
            engine.scheduler.free(prompt, 0, first * self._chunk_tokens)
        if first == hits:
            return
        for worker in engine.workers:
            assert worker.retrieve(prompt, first, hits), "a promised hit was not kept"
            self._counts["retrieves"] += 1
            self._counts["bytes"] += (hits - first) * worker.kv.chunk_bytes

    def _store(self, engine: SoakEngine, prompt: Prompt, first: int, last: int) -> None:
        if first == last:
            return
        for worker in engine.writers:
            self._counts["stores"] += 1
            # Where others hold the whole pool there may be no room.
            self._counts["refused stores"] += not worker.store(prompt, first, last)

    def _use(self, engine: SoakEngine, prompt: Prompt) -> None:
        hits, chunks = self._lookup(engine, prompt)
        self._retrieve(engine, prompt, hits)
        self._store(engine, prompt, hits, chunks)
        engine.scheduler.end(prompt)

    def _use_and_end_before_the_store(self, engine: SoakEngine, prompt: Prompt) -> None:
        hits, chunks = self._lookup(engine, prompt)
        self._retrieve(engine, prompt, hits)
        engine.scheduler.end(prompt)
        self._store(engine, prompt, hits, chunks)

    def _free_all(self, engine: SoakEngine, prompt: Prompt) -> None:
        self._lookup(engine, prompt)
        engine.scheduler.free(prompt)
        engine.scheduler.end(prompt)

    def _abort(self, engine: SoakEngine, prompt: Prompt) -> None:
        self._lookup(engine, prompt)
        engine.scheduler.end(prompt)
        self._counts["aborts"] += 1

    def _abort_before_the_answer(self, engine: SoakEngine, prompt: Prompt) -> None:
        engine.scheduler.submit_lookup(prompt)
        engine.scheduler.end(prompt)
        self._counts["aborts"] += 1

    def _register_again(self, engine: SoakEngine, prompt: Prompt) -> None:
        hits, _ = self._lookup(engine, prompt)
        self._random.choice(engine.workers).register()
        self._retrieve(engine, prompt, hits)
        engine.scheduler.end(prompt)
        self._counts["registrations"] += 1

    def _reconnect(self, engine: SoakEngine, prompt: Prompt) -> None:
        hits, _ = self._lookup(engine, prompt)
        engine.reconnect_scheduler()
        self._retrieve(engine, prompt, hits)
        engine.scheduler.end(prompt)
        self._counts["reconnects"] += 1

    def _replace_worker(self, engine: SoakEngine, prompt: Prompt) -> None:
        hits, _ = self._lookup(engine, prompt)
        engine.replace_worker(self._random.randrange(len(engine.workers)), unregister=True)
        self._retrieve(engine, prompt, hits)
        engine.scheduler.end(prompt)
        self._counts["registrations"] += 1

    def _vanish_in_the_middle(self, engine: SoakEngine, prompt: Prompt) -> None:
        """A worker dies with a retrieve and a store open; the engine goes on with another."""
        hits, chunks = self._lookup(engine, prompt)
        number = self._random.randrange(len(engine.workers))
        if hits:
            assert engine.workers[number].open_retrieve(prompt, 0, hits)
        if hits < chunks:
            engine.workers[number].open_store(prompt, hits, chunks)
        engine.replace_worker(number, unregister=False)
        engine.scheduler.end(prompt)
        self._counts["deaths"] += 1

    def _clear(self, engine: SoakEngine, _: Prompt) -> None:
        """What was promised to others stays for them."""
        engine.scheduler.clear()
        self._counts["clears"] += 1
