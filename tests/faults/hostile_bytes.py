"""Bytes that no engine sends: other protocols, lies about lengths, depth, pickle bombs.

Shared by the tests of single attacks (test_wire_faults.py) and by tests/torture, which makes them
all at once.
"""

from __future__ import annotations

import os
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import wire
from wire import encode

INSTANCE = 91
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + bytes(32)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"

RAW_BYTES: dict[str, bytes] = {
    "nothing": b"",
    "one-byte": b"\x00",
    "zmtp1-one-frame": b"\x01\x00\x02\x00A",
    "zmtp1-many-frames": b"\x01\x00" + b"\x02\x00A" * 1000,
    "zmtp1-long-identity": b"\xff" + struct.pack(">Q", 3) + b"\x00" + b"id" + b"\x02\x00A",
    "zmtp1-huge-frame": b"\x01\x00\xff" + struct.pack(">Q", 1 << 62),
    "http-get": b"GET / HTTP/1.1\r\nHost: larder\r\n\r\n",
    "http-post": b"POST /cache/clear HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
    "tls-hello": bytes.fromhex("16030100f8010000f40303") + bytes(240),
    "redis-ping": b"*1\r\n$4\r\nPING\r\n",
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "half-a-greeting": GREETING[:20],
    "greeting-alone": GREETING,
    "greeting-unknown-mechanism": GREETING[:12] + b"PLAIN" + bytes(47),
    "greeting-then-garbage": GREETING + bytes(range(256)) * 8,
    "greeting-then-huge-command": GREETING + b"\x06" + struct.pack(">Q", 1 << 62),
    "greeting-then-huge-frame": GREETING + b"\x02" + struct.pack(">Q", 1 << 62),
    "bad-version": b"\xff" + bytes(8) + b"\x7f\x63" + bytes(53),
    "random": random.Random(1).randbytes(100_000),
}

DECLARED_LENGTHS: dict[str, bytes] = {
    "array32": b"\xdd\xff\xff\xff\xff",
    "map32": b"\xdf\xff\xff\xff\xff",
    "bin32": b"\xc6\xff\xff\xff\xff",
    "str32": b"\xdb\xff\xff\xff\xff",
    "ext32": b"\xc9\xff\xff\xff\xff\x01",
    "array-in-arrays": b"\xdd\x00\xff\xff\xff" * 200,
    "key-with-huge-tokens": b"\x81\xa9token_ids\xdd\xff\xff\xff\xff",
    "key-with-huge-name": b"\x81\xaamodel_name\xdb\xff\xff\xff\xff",
}

NESTING: dict[str, bytes] = {
    "arrays": b"\x91" * 5_000_000 + b"\x90",
    "maps": b"\x81\xa1a" * 1_000_000 + b"\x80",
    "unknown-field": b"\x81\xa7unknown" + b"\x91" * 5_000_000 + b"\x90",
    "unfinished": b"\x91" * 5_000_000,
}


def random_frame(source: random.Random) -> bytes:
    """Bytes that start like msgpack more often than not."""
    kind = source.randrange(4)
    if kind == 0:
        return source.randbytes(source.randrange(40))
    if kind == 1:
        return encode(source.choice([0, 1, -1, INSTANCE, 1 << 63, "r", b"", None, [], {}, 1.5]))
    frame = bytearray(encode(wire.key(list(range(source.randrange(40))), worker_id=0)))
    for _ in range(source.randrange(4) if kind == 2 else 0):
        frame[source.randrange(len(frame))] = source.randrange(256)
    return bytes(frame)


class Bomb:
    """Unpickling it runs a command."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self._call, self._arguments = call, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._call, self._arguments


def bombs(marker: Path) -> dict[str, bytes]:
    """Payloads that create `marker` in a general unpickler, and some that only take for ever."""
    touch = f"touch {marker}"
    as_storage = b"\x80\x04\x8c\x0etorch.storage\x8c\x10_load_from_bytes\x93("
    nested = pickle.dumps(Bomb(os.system, touch), protocol=2)
    return {
        "os.system": pickle.dumps(Bomb(os.system, touch)),
        "os.system-protocol-2": nested,
        "os.system-protocol-0": pickle.dumps(Bomb(os.system, touch), protocol=0),
        "eval": pickle.dumps(Bomb(eval, f"open({str(marker)!r}, 'w')")),
        "in-a-list": pickle.dumps([Bomb(os.system, touch)]),
        "in-the-nested-stream": as_storage + b"C" + bytes([len(nested)]) + nested + b"tR.",
        "nothing": b"",
        "no-stop": b"\x80\x04]",
        "stack-underflow": b"\x80\x04RRRR.",
        "memo-bomb": b"\x80\x04" + b"(" * 100_000 + b".",
        "billion-laughs": b"\x80\x04](" + b"2" * 100_000 + b"e.",
        "huge-bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b".",
        "huge-frame": b"\x80\x04\x95" + struct.pack("<Q", (1 << 64) - 1) + b"].",
        "huge-long": b"\x80\x04\x8b" + struct.pack("<I", (1 << 31) - 1) + b".",
        "persistent-id": b"\x80\x04\x8c\x01xQ.",
        "text-garbage": b"cos\nsystem\n(S'true'\ntR.",
    }
