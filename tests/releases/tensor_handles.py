"""Handles of shared KV tensors as LMCache's clients send them, made by hand.

Goal: registrations of every release without its client. Method: up to 0.5.5 a pickle of the release's
wrapper class, opcode by opcode as Python's pickler writes it; from 0.5.6 on a map. The segment is a file
in /dev/shm.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
from pathlib import Path
from typing import Any

import msgspec

SHARED_TENSOR_EXT = 1

_numbers = itertools.count(1)


class Global(str):
    """module.name, which the pickle only names."""


def _opcodes(value: Any) -> bytes:
    """A value as protocol 4 writes it, without memo."""
    if value is None:
        return b"N"
    if isinstance(value, Global):
        module, _, name = value.rpartition(".")
        return _opcodes(module) + _opcodes(name) + b"\x93"
    if isinstance(value, str):
        return b"\x8c" + bytes([len(value)]) + value.encode()
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, bytes):
        return b"C" + bytes([len(value)]) + value
    assert isinstance(value, tuple)
    return b"(" + b"".join(map(_opcodes, value)) + b"t"


def pickled_object(of: Global, state: dict[str, Any]) -> bytes:
    """An instance with these attributes."""
    items = b"".join(_opcodes(name) + _opcodes(value) for name, value in state.items())
    return b"\x80\x04" + _opcodes(of) + b")\x81" + b"}(" + items + b"u" + b"b" + b"."


class SharedTensor:
    """A tensor in a segment of its own, dense."""

    def __init__(self, shape: tuple[int, ...], dtype: str = "bfloat16") -> None:
        self.shape, self.dtype = shape, dtype
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size)
        self.stride = tuple(strides)
        self.bytes = (1 if dtype == "uint8" else 2) * shape[0] * strides[0]
        self.name = f"/lmcache_kv_{os.getpid()}_{next(_numbers)}_frames"
        self._path = Path("/dev/shm") / self.name[1:]
        with self._path.open("x+b") as segment:
            segment.truncate(self.bytes)
            self.memory = mmap.mmap(segment.fileno(), self.bytes)

    def close(self) -> None:
        """Unlink, as the engine does at its end."""
        self.memory.close()
        self._path.unlink()

    def pickled(self) -> msgspec.msgpack.Ext:
        """Up to 0.5.5."""
        state = {
            "shm_name": self.name, "nbytes": self.bytes, "handle": None,
            "dtype": Global(f"torch.{self.dtype}"), "shape": self.shape, "stride": self.stride,
            "storage_offset": 0, "device_uuid": "cpu",
        }  # fmt: skip
        of = Global("lmcache.v1.platform.cpu.shm.CpuShmTensorWrapper")
        return msgspec.msgpack.Ext(SHARED_TENSOR_EXT, pickled_object(of, state))

    def mapped(self) -> msgspec.msgpack.Ext:
        """From 0.5.6 on."""
        handle = {
            "type": "cpu_shm", "shm_name": self.name, "nbytes": self.bytes, "version": 1,
            "metadata": {
                "dtype": self.dtype, "shape": self.shape, "stride": self.stride,
                "storage_offset": 0, "device_uuid": "cpu",
            },
        }  # fmt: skip
        return msgspec.msgpack.Ext(SHARED_TENSOR_EXT, msgspec.msgpack.encode(handle))
