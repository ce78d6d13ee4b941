"""The client classes of one LMCache release, behind names that all releases share.

Goal: one engine (workers.py, adapters.py) for every release, made of that release's unmodified
classes.
Method: what differs is in client_047.py, client_052.py (0.5.0 to 0.5.4) and client_056.py; a
process imports one of them, the one of the release that is first in its import path.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import zmq
from kv import PagedKv

# How long an answer may take; a run that kills servers wants to go on sooner.
CALL_SECONDS = float(os.environ.get("LARDER_CALL_SECONDS", "20"))

MODULES = {
    "0.4.7": "client_047",
    "0.5.2": "client_052",
    "0.5.4": "client_052",
    "0.5.6": "client_056",
}


def context() -> zmq.Context[Any]:
    """This process's context, with sockets that do not hold up its end."""
    shared: zmq.Context[Any] = zmq.Context.instance()
    shared.linger = 0
    return shared


@dataclass(frozen=True)
class KeyFields:
    """What a key says in every release; `readers` is on the wire from 0.5.5 on."""

    model: str
    world_size: int
    worker_id: int | None
    tokens: tuple[int, ...]
    start: int
    end: int
    request_id: str
    salt: str = ""
    readers: int = 1

    def mapping(self) -> dict[str, Any]:
        """The fields under the names that the key classes of all releases share."""
        return {
            "model_name": self.model,
            "world_size": self.world_size,
            "worker_id": self.worker_id,
            "token_ids": self.tokens,
            "start": self.start,
            "end": self.end,
            "request_id": self.request_id,
            "cache_salt": self.salt,
        }


class Connection(ABC):
    """One request client. Operations have the lower-case names that 0.5.6 gives them."""

    @abstractmethod
    def submit(self, operation: str, *payloads: Any) -> Any:
        """Send one request; the client's own future."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def call(self, operation: str, *payloads: Any) -> Any:
        """Send and wait; an answer that does not come in time fails the test."""
        return self.submit(operation, *payloads).result(timeout=CALL_SECONDS)


class Transfer(ABC):
    """One registration of a worker: the release's transfer context on paged tensors."""

    def __init__(self, kv: PagedKv, instance_id: int, context_of_release: Any) -> None:
        self.kv, self.instance_id = kv, instance_id
        self.genuine = context_of_release

    @abstractmethod
    def register(self) -> None:
        """REGISTER, as at start and after a recovery."""

    @abstractmethod
    def unregister(self) -> None:
        """UNREGISTER, as at the end."""

    @abstractmethod
    def store(self, request_id: str, key: Any, blocks: list[int]) -> Any:
        """The future of a store."""

    @abstractmethod
    def retrieve(self, request_id: str, key: Any, blocks: list[int]) -> Any:
        """The future of a retrieve."""

    @abstractmethod
    def register_memory(self, groups: list[dict[str, Any]]) -> None:
        """REGISTER_KV_CACHE with the fields of each EngineGroupInfo."""

    @abstractmethod
    def unregister_memory(self) -> None:
        """UNREGISTER_KV_CACHE."""

    @abstractmethod
    def store_blocks(self, request_id: str, key: Any, lists: list[list[int]]) -> Any:
        """The future of a STORE."""

    @abstractmethod
    def retrieve_blocks(
        self, request_id: str, key: Any, lists: list[list[int]], skip_tokens: int
    ) -> Any:
        """The future of a RETRIEVE."""

    @property
    @abstractmethod
    def data_path(self) -> Any:
        """The object that moves the bytes, by shared memory or by copies."""

    @property
    def uses_shm(self) -> bool:
        """Whether the client maps the pool."""
        return type(self.data_path).__name__.endswith("Shm")

    def close(self) -> None:
        """Let the mapping go."""
        self.genuine.close()


@dataclass(frozen=True)
class Engine:
    """What an adapter is told of its engine."""

    url: str
    model: str
    block_tokens: int
    tp_size: int = 1
    rank: int = 0
    mla: bool = False

    def settings(self, heartbeat_seconds: float, transfer_mode: str) -> dict[str, Any]:
        """What kv_connector_extra_config would hold."""
        return {
            "lmcache.mp.mq_timeout": CALL_SECONDS,
            "lmcache.mp.heartbeat_interval": heartbeat_seconds,
            "lmcache.mp.mp_transfer_mode": transfer_mode,
        }


class ReleaseClient(ABC):
    """The classes of one release."""

    head_major: bool
    """How it reads tensors of five dimensions without an accelerator."""

    shares_memory: bool
    """Whether it can hand over tensors without an accelerator."""

    ping_names_instance: bool
    """Whether PING carries the worker's id."""

    engine_driven: str
    """What it calls the mode in which the worker moves the bytes."""

    server_driven: str
    """What it calls the mode in which the server does."""

    @abstractmethod
    def connect(self, url: str) -> Connection:
        """A request client."""

    @abstractmethod
    def key(self, fields: KeyFields) -> Any:
        """A key of this release."""

    @abstractmethod
    def transfer(self, connection: Any, kv: PagedKv, instance_id: int, mode: str) -> Transfer:
        """A transfer context that is not registered yet."""

    @abstractmethod
    def clear_payloads(self, force: bool) -> list[Any]:
        """What CLEAR carries."""

    @abstractmethod
    def scheduler_adapter(self, engine: Engine, heartbeat_seconds: float) -> Any:
        """The vLLM scheduler's adapter."""

    @abstractmethod
    def worker_adapter(self, engine: Engine, heartbeat_seconds: float) -> Any:
        """The vLLM worker's adapter."""

    @abstractmethod
    def register_adapter(self, worker: Any, kv: PagedKv) -> None:
        """Tell a worker's adapter its tensors."""

    def stop_scheduler(self, scheduler: Any) -> None:
        """The end of a scheduler's adapter."""
        scheduler.shutdown()

    def ping_payloads(self, instance_id: int | None) -> list[Any]:
        """What PING carries."""
        return [instance_id] if self.ping_names_instance else []


def load(release: str) -> ReleaseClient:
    """The client of a release; REQUIRES that `import lmcache` finds that release."""
    module = importlib.import_module(MODULES[release])
    made: ReleaseClient = module.client(release)
    return made


@contextlib.contextmanager
def pool_that_cannot_be_mapped() -> Iterator[None]:
    """Within, the client cannot open the server's segment, as if it ran as another user."""
    from lmcache.v1.multiprocess.transfer_context import shm

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("the segment belongs to another user")

    genuine = shm.shared_memory
    shm.shared_memory = types.SimpleNamespace(SharedMemory=refuse)
    try:
        yield
    finally:
        shm.shared_memory = genuine
