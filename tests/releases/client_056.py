"""The client classes of 0.5.6: operations are methods, contexts know their instance, layouts follow
the hint."""

from __future__ import annotations

from typing import Any

import zmq
from kv import PagedKv
from lmcache.integration.vllm import vllm_multi_process_adapter as adapter
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.group_view import EngineGroupInfo
from lmcache.v1.multiprocess.transfer_context import create_transfer_context
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory
from polling import until
from release_client import (
    CALL_SECONDS,
    Connection,
    Engine,
    KeyFields,
    ReleaseClient,
    Transfer,
    context,
)

# Tokens before heads, as vLLM keeps its tensors; the older clients cannot be told so on the CPU.
HINTS: Any = {"kv_layout": "NHD"}


class Connection056(Connection):
    """A request client of whatever transport the URL names."""

    def __init__(self, url: str) -> None:
        self.genuine = until(lambda: self._created(url), "the client can open its monitor socket")

    @staticmethod
    def _created(url: str) -> Any:
        # It names its monitor by the socket's descriptor, which an earlier client's may still hold.
        try:
            return RequestClientFactory.create(url, context=context())
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
            return None

    def submit(self, operation: str, *payloads: Any) -> Any:
        return getattr(self.genuine, operation)(*payloads)

    def close(self) -> None:
        self.genuine.close()


class Transfer056(Transfer):
    """A transfer context bound to its instance and connection."""

    def __init__(self, connection: Connection056, kv: PagedKv, instance_id: int, mode: str) -> None:
        made = create_transfer_context(
            kv.tensors, instance_id=instance_id, req_client=connection.genuine, mode=mode
        )
        super().__init__(kv, instance_id, made)

    def register(self) -> None:
        rank = self.kv.rank
        self.genuine.register(
            self.kv.tensors, rank.model, rank.world_size, self.kv.chunk_blocks, CALL_SECONDS,
            layout_hints=HINTS,
        )  # fmt: skip

    def unregister(self) -> None:
        future = self.genuine.unregister()
        if future is not None:
            future.result(timeout=CALL_SECONDS)

    def register_memory(self, groups: list[dict[str, Any]]) -> None:
        rank = self.kv.rank
        self.genuine.register(
            self.kv.tensors, rank.model, rank.world_size, self.kv.chunk_blocks, CALL_SECONDS,
            layout_hints=HINTS, engine_group_infos=[EngineGroupInfo(**group) for group in groups],
        )  # fmt: skip

    def unregister_memory(self) -> None:
        self.unregister()

    def store_blocks(self, request_id: str, key: Any, lists: list[list[int]]) -> Any:
        return self.genuine.submit_store(
            request_id, key, self.kv.tensors, lists, self.genuine.create_recorded_event(),
            self.kv.chunk_blocks,
        )  # fmt: skip

    def retrieve_blocks(
        self, request_id: str, key: Any, lists: list[list[int]], skip_tokens: int
    ) -> Any:
        return self.genuine.submit_retrieve(
            request_id, key, self.kv.tensors, lists, self.genuine.create_recorded_event(),
            self.kv.chunk_blocks, skip_first_n_tokens=skip_tokens,
        )  # fmt: skip

    def store(self, request_id: str, key: Any, blocks: list[int]) -> Any:
        return self.genuine.submit_store(
            request_id, key, self.kv.tensors, [blocks], self.genuine.create_recorded_event(),
            self.kv.chunk_blocks,
        )  # fmt: skip

    def retrieve(self, request_id: str, key: Any, blocks: list[int]) -> Any:
        return self.genuine.submit_retrieve(
            request_id, key, self.kv.tensors, [blocks], self.genuine.create_recorded_event(),
            self.kv.chunk_blocks,
        )  # fmt: skip

    @property
    def data_path(self) -> Any:
        return self.genuine.engine_driven_context


class Client056(ReleaseClient):
    """Keys say how many readers there are, CLEAR says whether it is forced."""

    head_major = False
    shares_memory = True
    ping_names_instance = True
    engine_driven = "engine_driven"
    server_driven = "lmcache_driven"

    def connect(self, url: str) -> Connection056:
        return Connection056(url)

    def key(self, fields: KeyFields) -> IPCCacheServerKey:
        return IPCCacheServerKey(**fields.mapping(), num_kv_readers=fields.readers)

    def transfer(self, connection: Any, kv: PagedKv, instance_id: int, mode: str) -> Transfer056:
        return Transfer056(connection, kv, instance_id, mode)

    def clear_payloads(self, force: bool) -> list[Any]:
        return [force]

    def _strategy(self, engine: Engine) -> adapter.ParallelStrategy:
        return adapter.ParallelStrategy(
            mla_only=engine.mla, vllm_world_size=engine.tp_size, vllm_worker_id=engine.rank,
            tp_size=engine.tp_size, pp_size=1, n_servers=1,
        )  # fmt: skip

    def scheduler_adapter(self, engine: Engine, heartbeat_seconds: float) -> Any:
        return adapter.LMCacheMPSchedulerAdapter(
            [engine.url], context(), engine.model, engine.block_tokens, self._strategy(engine),
            extra_config=engine.settings(heartbeat_seconds, self.engine_driven),
        )  # fmt: skip

    def worker_adapter(self, engine: Engine, heartbeat_seconds: float) -> Any:
        return adapter.LMCacheMPWorkerAdapter(
            engine.url, context(), engine.model, engine.block_tokens, self._strategy(engine),
            extra_config=engine.settings(heartbeat_seconds, self.engine_driven),
        )  # fmt: skip

    def register_adapter(self, worker: Any, kv: PagedKv) -> None:
        worker.register_kv_caches(kv.tensors, layout_hints=HINTS)


def client(_: str) -> Client056:
    """The client of this release."""
    return Client056()
