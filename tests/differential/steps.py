"""The vocabulary of the scenarios: what a step is, and builders for the requests of an engine.

Goal: a scenario reads like the story of an engine. Method: steps are plain values; `Engine`
knows the model, ranks and layout and builds keys and payloads from them. A step on which larder
differs from the reference on purpose names the row of docs/deviations.md and larder's exact
answer.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from chunk_pickles import ITEM_BYTES, pickled_chunks
from wire import Op

CHUNK_TOKENS = 16
POOL_MIB = 16
LARDER_FLAGS: dict[str, tuple[str, ...]] = {"shm": (), "copy": ("--shm-name", "")}
SCHEDULER = "scheduler"
WORKER = "worker"
NO_SLOTS: dict[str, Any] = {"slots": [], "chunk_indices": []}
MISS: dict[str, Any] = {"success": False}

# What larder answers when it refuses a request that the reference leaves unanswered.
SAFE_ANSWERS: dict[Op, Any] = {
    Op.LOOKUP: "empty",
    Op.QUERY_PREFETCH_STATUS: 0,
    Op.WAIT_PREFETCH_STATUS: 0,
    Op.QUERY_PREFETCH_LOOKUP_HITS: 0,
    Op.FREE_LOOKUP_LOCKS: "empty",
    Op.END_SESSION: "empty",
    Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: {"shm_name": "", "pool_size": 0},
    Op.UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: "empty",
    Op.PREPARE_STORE: NO_SLOTS,
    Op.COMMIT_STORE: False,
    Op.PREPARE_RETRIEVE: MISS,
    Op.COMMIT_RETRIEVE: True,
    Op.CLEAR: "empty",
    Op.GET_CHUNK_SIZE: CHUNK_TOKENS,
    Op.PING: True,
    Op.REPORT_BLOCK_ALLOCATION: "empty",
    Op.NOOP: "OK",
}


@dataclass(frozen=True)
class RawFrame:
    """A payload frame that is sent as it is, for requests that are not valid msgpack."""

    content: bytes


@dataclass(frozen=True)
class Step:
    """One thing a scenario does. `deviation` "" means: larder gives the reference's answer."""

    deviation: str = field(default="", kw_only=True)
    answer: Any = field(default=None, kw_only=True)  # larder's, where it deviates

    def but(self, deviation: str, answer: Any) -> Step:
        """The same step, on which larder answers `answer` for the reason named `deviation`."""
        return replace(self, deviation=deviation, answer=answer)


@dataclass(frozen=True)
class Ask(Step):
    """One request over a named connection; the answer is the normalised reply."""

    connection: str
    operation: Op
    payloads: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.connection} {self.operation.name}"

    def refused(self) -> Step:
        """The reference does not answer; larder gives its safe negative."""
        return self.but("D-safe-negative", SAFE_ANSWERS[self.operation])


@dataclass(frozen=True)
class Fill(Step):
    """Write the slots of the latest PREPARE_STORE, slot i with `first` + i. Answer: how many."""

    first: int

    def __str__(self) -> str:
        return f"fill from {self.first:02x}"


@dataclass(frozen=True)
class Peek(Step):
    """Read the slots of the latest PREPARE_RETRIEVE. Answer: what each holds."""

    def __str__(self) -> str:
        return "peek"


@dataclass(frozen=True)
class Scenario:
    """A named list of steps for a server with (shm) or without (copy) shared memory."""

    name: str
    flavour: str
    steps: list[Step]


def tokens(count: int, seed: int = 1) -> list[int]:
    """`count` token ids; other seeds share no prefix."""
    return [(seed * 1000 + 7 * index) % 32000 for index in range(count)]


@dataclass(frozen=True)
class Engine:
    """One engine worker (rank `worker_id` of `world_size`) and the scheduler it belongs to."""

    model: str
    world_size: int = 1
    worker_id: int = 0
    number: int = 0  # tells the workers of one scenario apart
    layers: int = 2
    hidden: int = 64
    dtype: str = "bfloat16"
    one_plane: bool = False
    connection: str = WORKER

    @property
    def instance(self) -> int:
        return zlib.crc32(self.model.encode()) * 64 + self.number

    @property
    def shape(self) -> list[int]:
        planes = [] if self.one_plane else [2]
        return [*planes, self.layers, CHUNK_TOKENS, self.hidden]

    def rank(self, worker_id: int) -> Engine:
        """Another worker of the same engine, with an instance and a connection of its own."""
        return replace(
            self,
            worker_id=worker_id,
            number=self.number + 1 + worker_id,
            connection=f"{WORKER} {worker_id}",
        )

    def registration(self) -> dict[str, Any]:
        return {
            "instance_id": self.instance,
            "model_name": self.model,
            "world_size": self.world_size,
            "block_size": CHUNK_TOKENS,
            "num_layers": self.layers,
            "hidden_dim_size": self.hidden,
            "dtype_str": self.dtype,
            "use_mla": self.one_plane,
        }

    def register(self) -> Ask:
        return Ask(
            self.connection, Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, (self.registration(),)
        )

    def unregister(self) -> Ask:
        return Ask(self.connection, Op.UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, (self.instance,))

    def key(
        self, ids: Sequence[int], request: str, span: tuple[int, int] | None = None, salt: str = ""
    ) -> dict[str, Any]:
        """A worker's key; `span` in chunks, all full chunks when not given."""
        first, last = span if span is not None else (0, len(ids) // CHUNK_TOKENS)
        return {
            "model_name": self.model,
            "world_size": self.world_size,
            "worker_id": self.worker_id,
            "token_ids": list(ids),
            "start": first * CHUNK_TOKENS,
            "end": last * CHUNK_TOKENS,
            "request_id": f"{self.model}/{request}",
            "cache_salt": salt,
        }

    def transfer(self, operation: Op, key: dict[str, Any], *rest: Any) -> Ask:
        """One of the four transfer requests of this worker."""
        return Ask(self.connection, operation, (key, self.instance, *rest))

    def prepare_store(self, key: dict[str, Any]) -> Ask:
        return self.transfer(Op.PREPARE_STORE, key)

    def commit_store(self, key: dict[str, Any], payload: bytes = b"") -> Ask:
        return self.transfer(Op.COMMIT_STORE, key, payload)

    def prepare_retrieve(self, key: dict[str, Any]) -> Ask:
        return self.transfer(Op.PREPARE_RETRIEVE, key)

    def commit_retrieve(self, key: dict[str, Any]) -> Ask:
        return self.transfer(Op.COMMIT_RETRIEVE, key)

    def chunks(self, *values: int) -> bytes:
        """A copy-mode payload of this engine's layout."""
        return pickled_chunks(self.shape, self.dtype, values)

    def store(self, key: dict[str, Any], first: int) -> list[Step]:
        """Store through shared memory."""
        return [self.prepare_store(key), Fill(first), self.commit_store(key)]

    def store_copies(self, key: dict[str, Any], *values: int) -> list[Step]:
        """Store by value; the answer to the prepare is for shared-memory clients only."""
        return [self.prepare_copy(key), self.commit_store(key, self.chunks(*values))]

    def prepare_copy(self, key: dict[str, Any]) -> Step:
        """PREPARE_STORE on a server without shared memory."""
        return self.prepare_store(key).but("D-prepare-form", NO_SLOTS)

    def retrieve(self, key: dict[str, Any]) -> list[Step]:
        """Retrieve through shared memory and look at the bytes before letting go of them."""
        return [self.prepare_retrieve(key), Peek(), self.commit_retrieve(key)]

    def found_slots(self, first_slot: int, count: int) -> dict[str, Any]:
        """The answer of a PREPARE_RETRIEVE that finds `count` slots."""
        return {"success": True, "slots": self.slot_names(first_slot, count)}

    def slot_names(self, first_slot: int, count: int) -> list[str]:
        """What slots of this engine's layout look like in an answer."""
        size = len(self.chunk_bytes(0))
        return [
            f"slot {index}: {size} bytes {self.shape} {self.dtype}"
            for index in range(first_slot, first_slot + count)
        ]

    def given_slots(self, first_slot: int, chunk_indices: Sequence[int]) -> dict[str, Any]:
        """The answer of a PREPARE_STORE that gives slots for these chunks of the range."""
        names = self.slot_names(first_slot, len(chunk_indices))
        return {"slots": names, "chunk_indices": list(chunk_indices)}

    def chunk_bytes(self, value: int) -> bytes:
        """One chunk filled with a byte value."""
        return bytes([value]) * (prod(self.shape) * ITEM_BYTES[self.dtype])

    def found_data(self, *values: int) -> dict[str, Any]:
        """The answer of a PREPARE_RETRIEVE that returns data."""
        size = len(self.chunk_bytes(0))
        chunks = [f"{self.shape} {self.dtype} {value:02x}*{size}" for value in values]
        return {"success": True, "data": chunks}

    def filled(self, *values: int) -> list[str]:
        """What Peek sees."""
        size = len(self.chunk_bytes(0))
        return [f"{value:02x}*{size}" for value in values]


def scheduler_key(
    engine: Engine, ids: Sequence[int], request: str, salt: str = ""
) -> dict[str, Any]:
    """A key for all ranks, as the scheduler sends it."""
    return {**engine.key(ids, request, salt=salt), "worker_id": None}


def submit(key: dict[str, Any], readers: int = 1, connection: str = SCHEDULER) -> Ask:
    """LOOKUP."""
    return Ask(connection, Op.LOOKUP, (key, readers))


def query(key: dict[str, Any], connection: str = SCHEDULER) -> Ask:
    """QUERY_PREFETCH_STATUS for the key's request."""
    return Ask(connection, Op.QUERY_PREFETCH_STATUS, (key["request_id"],))


def wait(key: dict[str, Any], timeout_s: float = 5.0, connection: str = SCHEDULER) -> Ask:
    """WAIT_PREFETCH_STATUS for the key's request."""
    return Ask(connection, Op.WAIT_PREFETCH_STATUS, (key["request_id"], timeout_s))


def hits(key: dict[str, Any], connection: str = SCHEDULER) -> Ask:
    """QUERY_PREFETCH_LOOKUP_HITS for the key's request."""
    return Ask(connection, Op.QUERY_PREFETCH_LOOKUP_HITS, (key["request_id"],))


def lookup(key: dict[str, Any], readers: int = 1) -> list[Step]:
    """LOOKUP and its answer."""
    return [submit(key, readers), query(key)]


def free(key: dict[str, Any], readers: int = 1) -> Ask:
    """FREE_LOOKUP_LOCKS."""
    return Ask(SCHEDULER, Op.FREE_LOOKUP_LOCKS, (key, readers))


def end_session(key: dict[str, Any]) -> Ask:
    """END_SESSION of the key's request."""
    return Ask(SCHEDULER, Op.END_SESSION, (key["request_id"],))


def ask(operation: Op, *payloads: Any) -> Ask:
    """Any request of the scheduler's connection, well-formed or not."""
    return Ask(SCHEDULER, operation, payloads)


class Collection:
    """The scenarios of one module, in the order they are written."""

    def __init__(self, flavour: str) -> None:
        self._flavour = flavour
        self.scenarios: list[Scenario] = []

    def add(self, tell: Callable[[str], list[Step]]) -> Callable[[str], list[Step]]:
        """Decorator: the function's name is the scenario's and its model's name."""
        name = tell.__name__
        self.scenarios.append(Scenario(f"{self._flavour}_{name}", self._flavour, tell(name)))
        return tell
