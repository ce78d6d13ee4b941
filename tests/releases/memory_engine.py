"""An engine whose memory the server reads, by frames made by hand, in the dialect of any release.

Goal: REGISTER_KV_CACHE, STORE and RETRIEVE without LMCache's client. Method: FrameClient of
test_frames_of_every_release.py, with tensors that this process can look into.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from server_state import CHUNK
from tensor_handles import SharedTensor
from test_frames_of_every_release import FrameClient
from wire import ABSENT

STUB = b"stub_ipc_handle"
BLOCK_TOKENS = 4
BLOCKS = 12


@dataclass(frozen=True)
class Form:
    """What an engine registers: tensors of one shape, and what it says about them.

    In memory a block is one piece, or one of each of two planes.
    """

    shape: tuple[int, ...]
    planes: int = 1
    tensors: int = 2
    dtype: str = "bfloat16"
    engine_type: str = "vllm"
    hints: dict[str, Any] = field(default_factory=lambda: {"kv_layout": "HND"})


# One head: its order does not matter.
KV_FIRST = Form((2, BLOCKS, 1, BLOCK_TOKENS, 8), planes=2)


class Tensor(Protocol):
    """One layer, wherever it is."""

    memory: Any
    bytes: int

    def pickled(self) -> Any: ...

    def mapped(self) -> Any: ...

    def close(self) -> None: ...


class MemoryEngine:
    """An engine whose memory the server reads; `tensor` makes a tensor of the form."""

    def __init__(
        self,
        port: int,
        version: str,
        form: Form = KV_FIRST,
        tensor: Callable[[Form], Tensor] = lambda form: SharedTensor(form.shape, form.dtype),
    ) -> None:
        self.form = form
        self.client = FrameClient(port, version)
        assert self.client.ask("GET_CHUNK_SIZE") == CHUNK
        self.instance = self.client.instance
        self.layers = [tensor(form) for _ in range(form.tensors)]

    def close(self) -> None:
        self.client.close()
        for layer in self.layers:
            layer.close()

    def handles(self) -> list[Any]:
        """The tensors in the release's form."""
        newer = self.client.version >= (0, 5, 6)
        return [layer.mapped() if newer else layer.pickled() for layer in self.layers]

    def register(
        self, *, handles: list[Any] | None = None, model: str = "memory", windows: list[int] | None = None
    ) -> None:  # fmt: skip
        """REGISTER_KV_CACHE; `windows`: each layer is a group of its own with this window."""
        groups = [
            {"engine_group_id": layer, "layer_indices": [layer], "tokens_per_block": BLOCK_TOKENS,
             "sw_size_tokens": window}
            for layer, window in enumerate(windows or [])
        ]  # fmt: skip
        answer = self.client.ask(
            "REGISTER_KV_CACHE", self.instance, self.handles() if handles is None else handles,
            model, 1, self.form.engine_type, self.form.hints,
            *([groups] if self.client.version >= (0, 4, 7) else []),
        )  # fmt: skip
        assert answer is ABSENT

    def key(self, tokens: list[int], request_id: str) -> dict[str, Any]:
        return self.client.key(tokens, request_id, worker_id=0, model_name="memory")

    def _lists(self, ids: list[Any]) -> list[Any]:
        return ids if self.client.version < (0, 4, 7) or isinstance(ids[0], list) else [ids]

    def store(self, tokens: list[int], ids: list[Any], event: bytes = STUB) -> list[Any]:
        """STORE; its answer. Block ids of one group, or a list a group."""
        key = self.key(tokens, "s")
        return self.client.ask("STORE", key, self.instance, self._lists(ids), event)

    def retrieve(
        self, tokens: list[int], ids: list[Any], request_id: str = "r", event: bytes = STUB
    ) -> list[Any]:
        """RETRIEVE; its answer."""
        key = self.key(tokens, request_id)
        return self.client.ask("RETRIEVE", key, self.instance, self._lists(ids), event, 0)

    def lookup(self, tokens: list[int], request_id: str = "r") -> int:
        return self.client.lookup(self.client.key(tokens, request_id, model_name="memory"))

    def fill(self) -> None:
        for number, layer in enumerate(self.layers):
            layer.memory[:] = bytes((place * (number + 3) + 1) % 251 for place in range(layer.bytes))

    def block(self, layer: int, block: int) -> bytes:
        """All planes of one block of one tensor."""
        memory, planes = self.layers[layer].memory, self.form.planes
        plane_bytes = self.layers[layer].bytes // planes
        size = plane_bytes // BLOCKS
        starts = (plane * plane_bytes + block * size for plane in range(planes))
        return b"".join(bytes(memory[at : at + size]) for at in starts)

    def blocks(self, ids: list[int]) -> list[bytes]:
        return [self.block(layer, block) for layer in range(len(self.layers)) for block in ids]
