"""Hostile and broken bytes on the request port harm nobody but their sender.

Goal: port scanners, old ZMTP peers, HTTP probes, floods, memory bombs and pickle bombs; meanwhile
and afterwards another client is answered within a second.
Method: plain TCP sockets and raw frames (wire.py) against one server; a thread that asks every
few milliseconds records its slowest answer. No torch here: pickles are written by hand.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wire
from hostile_bytes import (
    DECLARED_LENGTHS,
    GREETING,
    INSTANCE,
    NESTING,
    RAW_BYTES,
    READY,
    bombs,
    random_frame,
)
from larder_server import MIB, LarderServer
from polling import until
from wire import ABSENT, Op, RawConnection, encode

CHUNK = 8
ANSWER_SECONDS = 1.0


@pytest.fixture(scope="module")
def server() -> Iterator[LarderServer]:
    """One server for all attacks; at the end it must stop as cleanly as ever."""
    with LarderServer(chunk_tokens=CHUNK, pool_mib=16) as shared:
        yield shared


class Bystander:
    """A client that keeps working; knows its slowest answer."""

    def __init__(self, port: int) -> None:
        self.slowest = 0.0
        self.answers = 0
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(port,))
        self._thread.start()

    def _work(self, port: int) -> None:
        try:
            with RawConnection(port) as connection:
                while not self._stop.wait(0.005):
                    assert self._timed(connection, Op.NOOP) == "OK"
                    assert self._timed(connection, Op.PING, None) is True
                    assert self._timed(connection, Op.QUERY_PREFETCH_STATUS, "bystander") == 0
                    self.answers += 1
        except BaseException as error:
            self._failure = error

    def _timed(self, connection: RawConnection, operation: Op, *values: Any) -> Any:
        started = time.monotonic()
        answer = connection.ask(operation, *values)
        self.slowest = max(self.slowest, time.monotonic() - started)
        return answer

    def finish(self) -> None:
        """Wait for one more answer, stop, and judge."""
        before = self.answers
        try:
            until(lambda: self.answers > before or self._failure, "the bystander is served")
        finally:
            self._stop.set()
            self._thread.join(60)
        if self._failure is not None:
            raise self._failure
        assert self.slowest < ANSWER_SECONDS, f"waited {self.slowest:.3f} s for an answer"


@pytest.fixture
def bystander(server: LarderServer) -> Iterator[Bystander]:
    """Runs during the test; the test fails when it was not served in time."""
    client = Bystander(server.port)
    until(lambda: client.answers > 0, "the bystander has started")
    yield client
    client.finish()


def tcp(server: LarderServer, data: bytes = b"") -> socket.socket:
    """A plain TCP connection that has sent some bytes."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    if data:
        connection.sendall(data)
    return connection


@pytest.mark.parametrize("kind", RAW_BYTES)
@pytest.mark.parametrize("closes", [True, False], ids=["closes", "stays"])
def test_bytes_that_are_no_engine(
    server: LarderServer, bystander: Bystander, kind: str, closes: bool
) -> None:
    connections = [tcp(server, RAW_BYTES[kind]) for _ in range(3)]
    if closes:
        for connection in connections:
            connection.close()
    assert wire.works(server.port)
    for connection in connections:
        connection.close()


def test_connections_reset_in_the_middle(server: LarderServer, bystander: Bystander) -> None:
    for cut in range(1, 64, 7):
        connection = tcp(server, GREETING[:cut])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    assert wire.works(server.port)


def test_five_hundred_connections(server: LarderServer, bystander: Bystander) -> None:
    idle = [tcp(server) for _ in range(250)]
    clients = [RawConnection(server.port, settle=False) for _ in range(250)]
    for client in clients:
        assert client.ask(Op.GET_CHUNK_SIZE) == CHUNK
    for client in clients:
        assert client.ask(Op.NOOP) == "OK"
        client.close()
    for connection in idle:
        connection.close()
    assert wire.works(server.port)


def test_engines_that_come_and_go(server: LarderServer, bystander: Bystander) -> None:
    for _ in range(200):
        with RawConnection(server.port) as connection:
            connection.send(Op.PING, encode(None))
    assert wire.works(server.port)


@pytest.mark.parametrize("kind", DECLARED_LENGTHS)
def test_lengths_that_are_only_claimed(
    server: LarderServer, bystander: Bystander, kind: str
) -> None:
    before = server.resident_bytes()
    with RawConnection(server.port) as peer:
        for _ in range(50):
            assert peer.ask_frames(Op.LOOKUP, DECLARED_LENGTHS[kind], encode(1)) is ABSENT
            assert peer.ask_frames(Op.QUERY_PREFETCH_STATUS, DECLARED_LENGTHS[kind]) == 0
    assert server.resident_bytes() - before < 64 * MIB


@pytest.mark.parametrize("kind", NESTING)
def test_deep_nesting(server: LarderServer, bystander: Bystander, kind: str) -> None:
    with RawConnection(server.port) as peer:
        assert peer.ask_frames(Op.LOOKUP, NESTING[kind], encode(1)) is ABSENT
        assert (
            peer.ask_frames(Op.REPORT_BLOCK_ALLOCATION, encode(1), encode("m"), NESTING[kind])
            is ABSENT
        )
        assert peer.ask_frames(Op.PING, NESTING[kind]) is True


def test_a_message_of_thousands_of_frames(server: LarderServer, bystander: Bystander) -> None:
    """Its sender is closed as soon as there are too many, and may come back.

    Written by hand: a libzmq peer that is closed in the middle of such a message may abort.
    """
    head = b"\x01\x01\x00" + b"\x01\x01" + encode(int(Op.NOOP))
    for count in (17, 5_000, 20_000):
        peer = tcp(server, GREETING + READY)
        with contextlib.suppress(ConnectionError):
            peer.sendall(head + b"\x01\x01\xc0" * count + b"\x00\x01\xc0")
        assert wire.works(server.port)
        peer.close()
    before = server.resident_bytes()
    endless = tcp(server, GREETING + READY)
    with contextlib.suppress(ConnectionError):
        endless.sendall(b"\x01\x00" * 10_000_000)
    endless.close()
    assert wire.works(server.port)
    assert server.resident_bytes() - before < 16 * MIB


def test_thousands_of_requests_at_once(server: LarderServer, bystander: Bystander) -> None:
    """Pipelining is allowed: every request of a well-behaved burst is answered."""
    key = encode(wire.key(list(range(4 * CHUNK)), request_id="burst"))
    with RawConnection(server.port, seconds=60) as peer:
        uids = [peer.send(Op.LOOKUP, key, encode(1)) for _ in range(2_000)]
        uids += [peer.send(Op.NOOP) for _ in range(2_000)]
        uids += [peer.send(Op.PING, encode(None)) for _ in range(2_000)]
        for uid in uids:
            peer.reply(uid)
        assert peer.ask(Op.END_SESSION, "burst") is ABSENT


def test_a_peer_that_never_reads(server: LarderServer, bystander: Bystander) -> None:
    """Its answers pile up against a bound, in nobody's way."""
    before = server.resident_bytes()
    with RawConnection(server.port) as deaf:
        for _ in range(20_000):
            deaf.send(Op.NOOP)
        assert wire.works(server.port)
    assert wire.works(server.port)
    assert server.resident_bytes() - before < 256 * MIB


def test_large_frames(server: LarderServer, bystander: Bystander) -> None:
    tokens = list(range(200_000))
    with RawConnection(server.port) as peer:
        for name in ("m", "x" * MIB):
            key = wire.key(tokens, model_name=name, request_id="large")
            assert peer.ask(Op.LOOKUP, key, 1) is ABSENT
            assert peer.ask(Op.QUERY_PREFETCH_STATUS, "large") == 0
            assert peer.ask(Op.END_SESSION, "large") is ABSENT


def test_random_payloads(server: LarderServer, bystander: Bystander) -> None:
    """Any bytes as payloads of any operation are answered."""
    seed = int(os.environ.get("LARDER_TEST_SEED", "") or random.SystemRandom().getrandbits(32))
    print(f"LARDER_TEST_SEED={seed}")
    source = random.Random(seed)
    with RawConnection(server.port) as peer:
        for _ in range(1_500):
            operation = source.randrange(1, 37)
            payloads = [random_frame(source) for _ in range(source.randrange(8))]
            if operation == Op.CLEAR or any(len(frame) == 66 for frame in payloads):
                continue
            peer.reply(peer.send(operation, *payloads))
        assert peer.ask(Op.NOOP) == "OK"


# Pickles.


@pytest.mark.parametrize("prepared", [True, False], ids=["prepared", "unprepared"])
@pytest.mark.parametrize("kind", bombs(Path("/")))
def test_a_commit_runs_no_code(
    server: LarderServer, bystander: Bystander, tmp_path: Path, kind: str, prepared: bool
) -> None:
    marker = tmp_path / "executed"
    before = server.resident_bytes()
    tokens = [random.getrandbits(32) for _ in range(2 * CHUNK)]
    key = wire.key(tokens, worker_id=0, request_id="bomb")
    with RawConnection(server.port) as peer:
        register = Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT
        assert peer.ask(register, wire.registration(INSTANCE))["pool_size"] == server.pool_bytes
        if prepared:
            peer.ask(Op.PREPARE_STORE, key, INSTANCE)
        assert peer.ask(Op.COMMIT_STORE, key, INSTANCE, bombs(marker)[kind]) is (
            prepared and kind == "nothing"
        )
        assert peer.ask(Op.UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, INSTANCE) is ABSENT
    assert not marker.exists()
    assert server.resident_bytes() - before < 64 * MIB


def test_the_server_is_none_the_worse(server: LarderServer) -> None:
    assert server.status()["is_healthy"] is True
    until(lambda: server.l1()["write_locked_count"] == 0, "no reservation is left")
    assert server.l1()["read_locked_count"] == 0
    descriptors = Path(f"/proc/{server.pid}/fd")
    until(lambda: len(list(descriptors.iterdir())) < 100, "closed connections are let go")
