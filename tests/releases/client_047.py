"""The client classes of 0.4.7."""

from __future__ import annotations

from typing import Any

from kv import PagedKv
from lmcache.v1.multiprocess.custom_types import IPCCacheEngineKey
from numbered_client import REGISTER, UNREGISTER, NumberedClient, NumberedTransfer
from release_client import KeyFields


class Transfer047(NumberedTransfer):
    """Engine-driven contexts were called non-GPU contexts."""

    @property
    def data_path(self) -> Any:
        return self.genuine._non_gpu_context


class Client047(NumberedClient):
    """PING names nobody, and a scheduler has one server."""

    shares_memory = False
    ping_names_instance = False
    engine_driven = "data"
    server_driven = "handle"
    renamed = {
        REGISTER: "register_kv_cache_non_gpu_context",
        UNREGISTER: "unregister_kv_cache_non_gpu_context",
        "cb_register_rope": "cb_register_rope_v3",
    }

    def key(self, fields: KeyFields) -> IPCCacheEngineKey:
        return IPCCacheEngineKey(**fields.mapping())

    def transfer(self, connection: Any, kv: PagedKv, instance_id: int, mode: str) -> Transfer047:
        return Transfer047(connection, kv, instance_id, mode)

    def stop_scheduler(self, scheduler: Any) -> None:
        # Its own scheduler has no end but that of its process.
        if scheduler._heartbeat is not None:
            scheduler._heartbeat.stop()
        scheduler.mq_client.close()

    def scheduler_url(self, url: str) -> Any:
        return url


def client(_: str) -> Client047:
    """The client of this release."""
    return Client047()
