"""An engine on a GPU that is not there: its side of tests/fake_cuda, called through ctypes.

Goal: device memory, events and their handles as an engine on CUDA has them, in this process, while the
server loads the same driver in its own. "Device memory" is shared memory, so what a block holds can be
read and written here.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import msgspec
from larder_server import binary
from polling import until
from tensor_handles import SHARED_TENSOR_EXT, Global, pickled_object

HANDLE_BYTES = 64
NOT_READY = 600
DISABLE_TIMING_AND_INTERPROCESS = 2 | 4


def driver(name: str) -> Path:
    """One of the drivers that are built beside the server."""
    return Path(binary()).resolve().parent / f"{name}.so"


class FakeGpu:
    """The engine's process on device 0."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL(str(driver("fake_cuda_engine")))
        self._call("cuInit", 0)
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._call("cuCtxSetCurrent", context)
        self._stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(self._stream), 1)
        uuid = (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGetUuid_v2", uuid, 0)
        text = bytes(uuid).hex()
        self.uuid = "-".join([text[:8], text[8:12], text[12:16], text[16:20], text[20:]])

    def _call(self, function: str, *arguments: Any) -> None:
        result = getattr(self._cuda, function)(*arguments)
        assert result == 0, f"{function}: {result}"

    def allocate(self, size: int) -> tuple[int, bytes]:
        """A block of device memory: its address and its handle for others."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        handle = (ctypes.c_ubyte * HANDLE_BYTES)()
        self._call("cuIpcGetMemHandle", handle, address)
        return address.value, bytes(handle)

    def free(self, address: int) -> None:
        """Give a block back."""
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def recorded_event(self) -> bytes:
        """An event recorded on the engine's stream, as a handle."""
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), DISABLE_TIMING_AND_INTERPROCESS)
        handle = (ctypes.c_ubyte * HANDLE_BYTES)()
        self._call("cuIpcGetEventHandle", handle, event)
        self._call("cuEventRecord", event, self._stream)
        return bytes(handle)

    def wait(self, handle: bytes) -> None:
        """Open an event of the server, as a client does with whatever comes, and wait for it."""
        assert len(handle) == HANDLE_BYTES
        event = ctypes.c_void_p()

        class ByValue(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_ubyte * HANDLE_BYTES)]

        self._call(
            "cuIpcOpenEventHandle", ctypes.byref(event), ByValue.from_buffer_copy(handle)
        )
        until(lambda: self._cuda.cuEventQuery(event) != NOT_READY, "the event completes")
        assert self._cuda.cuEventQuery(event) == 0
        self._call("cuEventDestroy_v2", event)


class GpuTensor:
    """A dense tensor of two-byte values somewhere in a block of device memory."""

    def __init__(self, gpu: FakeGpu, shape: tuple[int, ...], *, offset: int = 512) -> None:
        self.shape = shape
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size)
        self.stride = tuple(strides)
        self.bytes = 2 * shape[0] * strides[0]
        self._gpu, self._offset = gpu, offset
        self._address, self._handle = gpu.allocate(offset + self.bytes)
        lies = (ctypes.c_ubyte * self.bytes).from_address(self._address + offset)
        self.memory = memoryview(lies).cast("B")

    def close(self) -> None:
        """Free the block."""
        self._gpu.free(self._address)

    def _shared(self) -> tuple[Any, ...]:
        """torch's description of a shared CUDA storage."""
        block = b"\x02c" + self._handle
        counter = f"/torch_{os.getpid()}_1_1".encode()
        return (0, block, self.bytes, self._offset, counter, 0, bytes(HANDLE_BYTES), False)

    def pickled(self) -> msgspec.msgpack.Ext:
        """Up to 0.5.5."""
        state = {
            "handle": self._shared(), "dtype": Global("torch.bfloat16"), "shape": self.shape,
            "stride": self.stride, "storage_offset": 0, "device_uuid": self._gpu.uuid,
        }  # fmt: skip
        of = Global("lmcache.v1.multiprocess.custom_types.CudaIPCWrapper")
        return msgspec.msgpack.Ext(SHARED_TENSOR_EXT, pickled_object(of, state))

    def mapped(self) -> msgspec.msgpack.Ext:
        """From 0.5.6 on."""
        handle = {
            "type": "cuda", "version": 1, "handle": self._shared(),
            "metadata": {
                "dtype": "bfloat16", "shape": self.shape, "stride": self.stride,
                "storage_offset": 0, "device_uuid": self._gpu.uuid,
            },
        }  # fmt: skip
        return msgspec.msgpack.Ext(SHARED_TENSOR_EXT, msgspec.msgpack.encode(handle))
