"""The client classes of 0.5.0 to 0.5.4."""

from __future__ import annotations

from typing import Any

from kv import PagedKv
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from numbered_client import NumberedClient, NumberedTransfer
from release_client import KeyFields


class Transfer052(NumberedTransfer):
    """The engine-driven context is public."""

    @property
    def data_path(self) -> Any:
        return self.genuine.engine_driven_context


class Client052(NumberedClient):
    """The names that stayed."""

    shares_memory = True
    ping_names_instance = True
    engine_driven = "engine_driven"
    server_driven = "lmcache_driven"

    def key(self, fields: KeyFields) -> IPCCacheServerKey:
        return IPCCacheServerKey(**fields.mapping())

    def transfer(self, connection: Any, kv: PagedKv, instance_id: int, mode: str) -> Transfer052:
        return Transfer052(connection, kv, instance_id, mode)


def client(_: str) -> Client052:
    """The client of these releases."""
    return Client052()
