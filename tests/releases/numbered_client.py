"""What the releases up to 0.5.4 have in common: operations are members of an enum, one request
client for all."""

from __future__ import annotations

import dataclasses
from typing import Any

from kv import PagedKv
from lmcache.integration.vllm import vllm_multi_process_adapter as adapter
from lmcache.v1.multiprocess.mq import MessageQueueClient
from lmcache.v1.multiprocess.protocol import RequestType, get_response_class
from lmcache.v1.multiprocess.transfer_context import create_transfer_context
from lmcache.v1.platform.cpu.stub_cpu_device import StubEvent
from release_client import CALL_SECONDS, Connection, Engine, ReleaseClient, Transfer, context

REGISTER = "register_kv_cache_engine_driven_context"
UNREGISTER = "unregister_kv_cache_engine_driven_context"


class NumberedConnection(Connection):
    """A MessageQueueClient; `renamed` holds the operations that had other names."""

    def __init__(self, url: str, renamed: dict[str, str]) -> None:
        self.mq = MessageQueueClient(url, context())
        self._renamed = renamed

    def submit(self, operation: str, *payloads: Any) -> Any:
        request = RequestType[self._renamed.get(operation, operation).upper()]
        return self.mq.submit_request(request, list(payloads), get_response_class(request))

    def close(self) -> None:
        self.mq.close()


class NumberedTransfer(Transfer):
    """A transfer context that is told its instance with every call."""

    def __init__(
        self, connection: NumberedConnection, kv: PagedKv, instance_id: int, mode: str
    ) -> None:
        super().__init__(kv, instance_id, create_transfer_context(kv.tensors, mode=mode))
        self._connection = connection

    def register(self) -> None:
        rank = self.kv.rank
        self.genuine.register(
            self.instance_id, self.kv.tensors, rank.model, rank.world_size, self.kv.chunk_blocks,
            self._connection.mq, CALL_SECONDS, send_request=adapter.send_lmcache_request,
        )  # fmt: skip

    def unregister(self) -> None:
        self._connection.call(UNREGISTER, self.instance_id)

    def register_memory(self, groups: list[dict[str, Any]]) -> None:
        from lmcache.v1.multiprocess.group_view import EngineGroupInfo

        rank = self.kv.rank
        self.genuine.register(
            self.instance_id, self.kv.tensors, rank.model, rank.world_size, self.kv.chunk_blocks,
            self._connection.mq, CALL_SECONDS, send_request=adapter.send_lmcache_request,
            layout_hints={}, engine_group_infos=[EngineGroupInfo(**group) for group in groups],
        )  # fmt: skip

    def unregister_memory(self) -> None:
        self._connection.call("unregister_kv_cache", self.instance_id)

    def store_blocks(self, request_id: str, key: Any, lists: list[list[int]]) -> Any:
        return self.genuine.submit_store(
            request_id, key, self.instance_id, self.kv.tensors, lists, StubEvent(),
            self.kv.chunk_blocks,
        )  # fmt: skip

    def retrieve_blocks(
        self, request_id: str, key: Any, lists: list[list[int]], skip_tokens: int
    ) -> Any:
        return self.genuine.submit_retrieve(
            request_id, key, self.instance_id, self.kv.tensors, lists, StubEvent(),
            self.kv.chunk_blocks, skip_first_n_tokens=skip_tokens,
        )  # fmt: skip

    def store(self, request_id: str, key: Any, blocks: list[int]) -> Any:
        return self.genuine.submit_store(
            request_id, key, self.instance_id, self.kv.tensors, [blocks], StubEvent(),
            self.kv.chunk_blocks,
        )  # fmt: skip

    def retrieve(self, request_id: str, key: Any, blocks: list[int]) -> Any:
        return self.genuine.submit_retrieve(
            request_id, key, self.instance_id, self.kv.tensors, [blocks], StubEvent(),
            self.kv.chunk_blocks,
        )  # fmt: skip


class NumberedClient(ReleaseClient):
    """Everything but names."""

    head_major = True
    renamed: dict[str, str] = {}

    def connect(self, url: str) -> NumberedConnection:
        return NumberedConnection(url, self.renamed)

    def clear_payloads(self, force: bool) -> list[Any]:
        assert not force, "this release has no forced CLEAR"
        return []

    def strategy(self, engine: Engine) -> adapter.ParallelStrategy:
        """Tensor parallelism only."""
        told: dict[str, Any] = {
            "use_mla": engine.mla,
            "mla_only": engine.mla,  # the name from 0.5.3 on
            "vllm_world_size": engine.tp_size,
            "vllm_worker_id": engine.rank,
            "tp_size": engine.tp_size,
            "pp_size": 1,
            "n_servers": 1,
        }
        known = {field.name for field in dataclasses.fields(adapter.ParallelStrategy)}
        return adapter.ParallelStrategy(**{name: told[name] for name in known & set(told)})

    def scheduler_url(self, url: str) -> Any:
        """The scheduler adapter's first argument."""
        return [url]

    def scheduler_adapter(self, engine: Engine, heartbeat_seconds: float) -> Any:
        return adapter.LMCacheMPSchedulerAdapter(
            self.scheduler_url(engine.url), context(), engine.model, engine.block_tokens,
            self.strategy(engine),
            extra_config=engine.settings(heartbeat_seconds, self.engine_driven),
        )  # fmt: skip

    def worker_adapter(self, engine: Engine, heartbeat_seconds: float) -> Any:
        return adapter.LMCacheMPWorkerAdapter(
            engine.url, context(), engine.model, engine.block_tokens, self.strategy(engine),
            extra_config=engine.settings(heartbeat_seconds, self.engine_driven),
        )  # fmt: skip

    def register_adapter(self, worker: Any, kv: PagedKv) -> None:
        worker.register_kv_caches(kv.tensors)
