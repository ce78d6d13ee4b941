"""Request frames made by hand, for what the real client classes cannot send.

Goal: drive a server with exact bytes (wrong counts, undecodable payloads, strange uids) and see
exactly what comes back.
Method: a pyzmq DEALER and msgspec; neither torch nor lmcache is imported, so that processes using
only this start at once.
"""

from __future__ import annotations

import enum
import itertools
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq

ANSWER_SECONDS = 20.0


class Op(enum.IntEnum):
    """Operation numbers of 0.5.0 to 0.5.2."""

    REGISTER_KV_CACHE = 1
    UNREGISTER_KV_CACHE = 2
    STORE = 3
    RETRIEVE = 4
    LOOKUP = 5
    QUERY_PREFETCH_STATUS = 6
    WAIT_PREFETCH_STATUS = 7
    QUERY_PREFETCH_LOOKUP_HITS = 8
    FREE_LOOKUP_LOCKS = 9
    END_SESSION = 10
    REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT = 11
    UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT = 12
    PREPARE_STORE = 13
    COMMIT_STORE = 14
    PREPARE_RETRIEVE = 15
    COMMIT_RETRIEVE = 16
    CLEAR = 17
    GET_CHUNK_SIZE = 18
    PING = 19
    REPORT_BLOCK_ALLOCATION = 20
    NOOP = 21
    CB_REGISTER_KV_CACHE = 22
    CB_UNREGISTER_KV_CACHE = 23
    CB_STORE_PRE_COMPUTED = 24
    CB_LOOKUP_PRE_COMPUTED = 25
    CB_RETRIEVE_PRE_COMPUTED = 26
    CB_STORE_FINAL = 27
    CB_LOOKUP_PRE_COMPUTED_V2 = 28
    CB_RETRIEVE_PRE_COMPUTED_V2 = 29
    CB_REGISTER_ROPE_V3 = 30
    CB_UNREGISTER_ROPE_V3 = 31
    CB_RETRIEVE_PRE_COMPUTED_V3 = 32
    CB_UNIFIED_LOOKUP = 33
    P2P_LOOKUP_AND_LOCK = 34
    P2P_QUERY_LOOKUP_RESULTS = 35
    P2P_UNLOCK_OBJECTS = 36


class Absent:
    """What `Reply.value` is when the reply has no third frame."""

    def __repr__(self) -> str:
        return "no value"


ABSENT = Absent()

EMPTY_STORE: dict[str, Any] = {"context": {"slots": [], "chunk_indices": []}}
MISS: dict[str, Any] = {"success": False, "data": b"", "context": {}}
STUB_EVENT = b"stub_ipc_handle"


def encode(value: Any) -> bytes:
    """One msgpack frame, in the client's own encoding."""
    return msgspec.msgpack.encode(value)


def decode(frame: bytes) -> Any:
    """The value of one msgpack frame, untyped."""
    return msgspec.msgpack.decode(frame)


def key(tokens: list[int], **fields: Any) -> dict[str, Any]:
    """A 0.5.2 key map with every field, in the client's order; `fields` replaces defaults."""
    made: dict[str, Any] = {
        "model_name": "m",
        "world_size": 1,
        "worker_id": None,
        "token_ids": tokens,
        "start": 0,
        "end": len(tokens),
        "request_id": "r",
        "cache_salt": "",
    }
    unknown = set(fields) - set(made)
    assert not unknown, unknown
    made.update(fields)
    return made


def registration(instance_id: int, **fields: Any) -> dict[str, Any]:
    """The payload of an engine-driven registration; `fields` replaces defaults."""
    made: dict[str, Any] = {
        "instance_id": instance_id,
        "model_name": "m",
        "world_size": 1,
        "block_size": 4,
        "num_layers": 2,
        "hidden_dim_size": 8,
        "dtype_str": "bfloat16",
        "use_mla": False,
    }
    unknown = set(fields) - set(made)
    assert not unknown, unknown
    made.update(fields)
    return made


@dataclass(frozen=True)
class Reply:
    """One answer as it came, without the identity."""

    frames: list[bytes]

    @property
    def value(self) -> Any:
        """The decoded third frame, or ABSENT."""
        if len(self.frames) == 2:
            return ABSENT
        assert len(self.frames) == 3, f"{len(self.frames)} frames in a reply: {self.frames!r}"
        return decode(self.frames[2])


class RawConnection:
    """One DEALER connection; it asks GET_CHUNK_SIZE first, which settles the release."""

    def __init__(self, port: int, *, settle: bool = True, seconds: float = ANSWER_SECONDS) -> None:
        context: zmq.Context[Any] = zmq.Context.instance()
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(f"tcp://127.0.0.1:{port}")
        self._seconds = seconds
        # 0 marks a client's first message; the rest must not look like a recorded request's.
        self._uids = itertools.chain([0], itertools.count(1000))
        self._unclaimed: dict[bytes, Reply] = {}
        self.chunk_tokens = 0
        if settle:
            self.chunk_tokens = self.ask(Op.GET_CHUNK_SIZE)

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connection at once."""
        self._socket.close(linger=0)

    def send_frames(self, frames: list[bytes]) -> None:
        """Send one message exactly as given."""
        self._socket.send_multipart(frames)

    def send(self, operation: int, *payloads: bytes) -> bytes:
        """Send one request with payload frames given as bytes; returns its uid frame."""
        uid = encode(next(self._uids))
        self.send_frames([uid, encode(int(operation)), *payloads])
        return uid

    def reply(self, uid: bytes, seconds: float | None = None) -> Reply:
        """The reply to `uid`, keeping others for whoever asks for them."""
        deadline = time.monotonic() + (self._seconds if seconds is None else seconds)
        while uid not in self._unclaimed:
            left = deadline - time.monotonic()
            if left <= 0 or not self._socket.poll(int(left * 1000) + 1):
                raise TimeoutError(f"no reply to uid {uid.hex()}; others: {self._unclaimed!r}")
            frames = self._socket.recv_multipart()
            self._unclaimed[frames[0]] = Reply(frames)
        return self._unclaimed.pop(uid)

    def ask_frames(self, operation: int, *payloads: bytes, seconds: float | None = None) -> Any:
        """Request with payload frames as bytes; checks the echo and returns the reply's value."""
        uid = self.send(operation, *payloads)
        reply = self.reply(uid, seconds)
        assert reply.frames[1] == encode(int(operation)), reply.frames
        return reply.value

    def ask(self, operation: int, *values: Any, seconds: float | None = None) -> Any:
        """Request with payloads as Python values; returns the reply's value."""
        return self.ask_frames(operation, *map(encode, values), seconds=seconds)

    def unanswered(self, uid: bytes) -> bool:
        """Whether `uid` has no reply although later requests of this connection were answered.

        Requests of one connection take effect in order, whatever worker they need, so a reply that
        is missing after those of a later poll and a later transfer will not come.
        """
        self.ask(Op.QUERY_PREFETCH_STATUS, "nobody")
        self.ask(Op.COMMIT_RETRIEVE, key([], worker_id=0), 1)
        self.ask(Op.NOOP)
        return uid not in self._unclaimed


def works(port: int, seconds: float = ANSWER_SECONDS) -> bool:
    """Whether a fresh connection gets an answer."""
    with RawConnection(port, seconds=seconds) as connection:
        return connection.ask(Op.NOOP) == "OK"
