"""An engine worker whose KV memory the server reads and writes (LMCACHE_MP_TRANSFER_MODE=lmcache_driven).

Goal: what a vLLM worker of that release does in this mode, with models of several kinds of layers.
Method: the release's own transfer context over tensors of paged_layers.py; after each retrieve all
blocks of all layers are compared.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

from kv import Rank
from paged_layers import NULL_BLOCK, SPOILED, LayerForm, PagedLayers
from prompts import Prompt
from release_client import CALL_SECONDS, KeyFields, ReleaseClient


class MemoryWorker:
    """One worker: tensors in shared memory, a registration, STORE and RETRIEVE."""

    def __init__(
        self,
        client: ReleaseClient,
        url: str,
        *,
        model: str = "model",
        layers: list[dict[str, Any]] | None = None,
        world_size: int = 1,
        worker_id: int = 0,
        blocks: int = 80,
        instance_id: int | None = None,
    ) -> None:
        self._client = client
        self.connection = client.connect(url)
        self.chunk_tokens: int = self.connection.call("get_chunk_size")
        self.instance_id = instance_id or random.SystemRandom().getrandbits(63)
        self.kv = PagedLayers(
            Rank(model, world_size, worker_id),
            [LayerForm(**layer) for layer in layers or [{}, {}]],
            chunk_tokens=self.chunk_tokens, blocks=blocks, head_major=client.head_major,
        )  # fmt: skip
        self.transfer = client.transfer(
            self.connection, self.kv, self.instance_id, client.server_driven
        )
        self.register()

    def register(self) -> None:
        """REGISTER_KV_CACHE, as at start and after a recovery."""
        told = [
            {
                "engine_group_id": group.number,
                "layer_indices": group.layers,
                "tokens_per_block": group.block_tokens,
                "sw_size_tokens": group.window,
            }
            for group in self.kv.groups
        ]
        is_plain = len(told) == 1 and self.kv.groups[0].window < 0
        self.transfer.register_memory([] if is_plain else told)

    def identity(self) -> int:
        """The instance id."""
        return self.instance_id

    def ping(self) -> bool:
        """One heartbeat."""
        answer = self.connection.call("ping", *self._client.ping_payloads(self.instance_id))
        assert isinstance(answer, bool)
        return answer

    def key(self, prompt: Prompt, first: int, last: int) -> Any:
        """The key of chunks [first, last) of a prompt."""
        rank = self.kv.rank
        return self._client.key(
            KeyFields(
                rank.model, rank.world_size, rank.worker_id, tuple(prompt.tokens),
                first * self.chunk_tokens, last * self.chunk_tokens,
                prompt.request_id, prompt.salt,
            )
        )  # fmt: skip

    def store(self, prompt: Prompt, first: int, last: int, vacate: int = 0, extra: int = 0) -> bool:
        """Compute chunks [first, last) and store them.

        vacate: so many blocks at the front of groups with a window are the null block, as they have
        slid out of it; extra: block lists are longer by so many chunks.
        """
        lists = self.kv.take(last - first + extra)
        self.kv.write(prompt, first, lists)
        told = [
            [NULL_BLOCK] * vacate + ids[vacate:] if group.window > 0 else ids
            for group, ids in zip(self.kv.groups, lists, strict=True)
        ]
        stored = self.submit_store(prompt, first, last, told)
        self.kv.give(lists)
        return stored

    def submit_store(
        self, prompt: Prompt, first: int, last: int, lists: list[list[int]]
    ) -> bool:
        """STORE with these block ids."""
        key = self.key(prompt, first, last)
        future = self.transfer.store_blocks(prompt.request_id, key, lists)
        return bool(future.result(timeout=CALL_SECONDS))

    def retrieve(self, prompt: Prompt, first: int, last: int, skip_tokens: int = 0) -> bool:
        """Retrieve chunks [first, last); any wrong block fails the test, also after a miss."""
        lists = self.kv.take(last - first)
        self.kv.spoil()
        found = self.submit_retrieve(prompt, first, last, lists, skip_tokens)
        self.kv.check(prompt, first, lists, skip_tokens=skip_tokens, retrieved=found)
        self.kv.give(lists)
        return found

    def submit_retrieve(
        self, prompt: Prompt, first: int, last: int, lists: list[list[int]], skip_tokens: int = 0
    ) -> bool:
        """RETRIEVE into these block ids."""
        key = self.key(prompt, first, last)
        future = self.transfer.retrieve_blocks(prompt.request_id, key, lists, skip_tokens)
        return bool(future.result(timeout=CALL_SECONDS))

    def open_store(self, prompt: Prompt, first: int, last: int) -> None:
        """A STORE whose answer nobody waits for."""
        lists = self.kv.take(last - first)
        self.kv.write(prompt, first, lists)
        self.transfer.store_blocks(prompt.request_id, self.key(prompt, first, last), lists)

    def open_retrieve(self, prompt: Prompt, first: int, last: int) -> bool:
        """A RETRIEVE whose answer nobody waits for."""
        lists = self.kv.take(last - first)
        self.transfer.retrieve_blocks(prompt.request_id, self.key(prompt, first, last), lists, 0)
        return True

    def miss(self, prompt: Prompt, first: int, last: int, lists: list[list[int]]) -> bool:
        """Whether a RETRIEVE into these block ids fails without touching any block."""
        self.kv.spoil()
        found = self.submit_retrieve(prompt, first, last, lists)
        return not found and self.has_only(SPOILED)

    def has_only(self, byte: int) -> bool:
        """Whether every byte of every tensor is this one."""
        return all((self.kv.view(layer) == byte).all() for layer in range(len(self.kv.forms)))

    def leave(self, *, unregister: bool = True) -> None:
        """Shut down as the vLLM adapter does, or, without unregistering, as a killed one."""
        if unregister:
            self.transfer.unregister_memory()
        with contextlib.suppress(BufferError):
            self.transfer.close()
        self.connection.close()
