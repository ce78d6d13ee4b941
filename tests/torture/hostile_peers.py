#!/usr/bin/env python3
"""Everybody who talks to a server's request port without being an engine, all the time.

Usage: hostile_peers.py PORT SEED MARKER; ends with its standard input and then prints how often it
did what, as JSON. MARKER is the file that a pickle bomb creates when it runs.

The attacks are those of tests/faults/hostile_bytes.py, in any order, next to each other, on
connections of which some stay open. Nobody here waits for answers: whether the server is still good
to others is what the run's clients find out. The server may go and come.
"""

from __future__ import annotations

import contextlib
import json
import random
import select
import socket
import struct
import sys
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "conformance"), str(HERE.parent / "faults")]

import wire  # noqa: E402
import zmq  # noqa: E402
from hostile_bytes import (  # noqa: E402
    DECLARED_LENGTHS,
    GREETING,
    NESTING,
    RAW_BYTES,
    bombs,
    random_frame,
)
from wire import Op, RawConnection, encode  # noqa: E402

PAUSE_SECONDS = 0.02
ANSWER_SECONDS = 2.0
OPEN_MAX = 40
CHUNK_TOKENS = 8

# GET_CHUNK_SIZE of 0.5.3 and later; it settles the release of a connection.
CHUNK_SIZE_OF_NEWER_RELEASES = 21
OPERATIONS_MAX = 60
NAMES = (
    "lookup", "store", "retrieve", "prepare_store", "commit_store", "prepare_retrieve", "clear",
    "commit_retrieve", "subscribe_kv_events", "server_module_call", "no_such_operation", "",
)  # fmt: skip

READY = b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
SLOW_MESSAGE = GREETING + READY + b"\x01\x01\x00\x00\x08" + bytes(8)


class HostilePeers:
    """All of them."""

    def __init__(self, port: int, seed: int, marker: Path) -> None:
        self._port = port
        self._random = random.Random(seed)
        self._bombs = list(bombs(marker).values())
        self._open: deque[socket.socket | RawConnection] = deque()
        self._slow: list[tuple[socket.socket, deque[int]]] = []
        self.counts: Counter[str] = Counter()
        self._attacks: list[tuple[int, str, Callable[[], None]]] = [
            (10, "other protocols", self.other_protocols),
            (10, "half messages", self.half_message),
            (10, "huge frames announced", self.huge_frame),
            (10, "slow senders", self.slow_sender),
            (5, "bursts of connections", self.many_connections),
            (20, "random requests", self.random_requests),
            (20, "random requests of newer releases", self.random_requests_of_newer_releases),
            (3, "peers that do not read", self.deaf_peer),
            (1, "deep messages", self.deep_message),
            (10, "lies about lengths", self.lie_about_lengths),
            (10, "pickle bombs", self.pickle_bomb),
            (3, "messages of many frames", self.many_frames),
            (5, "hoarders", self.hoarder),
        ]

    def run(self) -> None:
        """Until standard input ends."""
        weights = [weight for weight, _, _ in self._attacks]
        while not select.select([0], [], [], PAUSE_SECONDS)[0]:
            _, name, attack = self._random.choices(self._attacks, weights)[0]
            with contextlib.suppress(OSError, TimeoutError, zmq.ZMQError, AssertionError):
                attack()
                self.counts[name] += 1
            self._send_slowly()
        self._open.clear()

    def _tcp(self, data: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port), timeout=ANSWER_SECONDS)
        connection.sendall(data)
        return connection

    def _peer(self) -> RawConnection:
        return RawConnection(self._port, seconds=ANSWER_SECONDS)

    def _keep_or_close(self, connection: socket.socket | RawConnection) -> None:
        """Some stay, in bounds, and go at a time of their own."""
        if self._random.random() < 0.5:
            connection.close()
            return
        self._open.append(connection)
        if len(self._open) > OPEN_MAX:
            self._open.popleft().close()

    # Below the protocol.

    def other_protocols(self) -> None:
        """Scanners and clients of other services."""
        self._keep_or_close(self._tcp(self._random.choice(list(RAW_BYTES.values()))))

    def half_message(self) -> None:
        """A handshake, the beginning of a message, and silence or an end."""
        length = struct.pack(">Q", 1000)
        whole = GREETING + READY + b"\x01\x01\x00" + b"\x02" + length + bytes(500)
        self._keep_or_close(self._tcp(whole[: self._random.randrange(len(whole))]))

    def huge_frame(self) -> None:
        """Up to exabytes are announced behind a handshake."""
        length = struct.pack(">Q", 1 << self._random.randrange(20, 63))
        self._keep_or_close(self._tcp(GREETING + READY + b"\x02" + length + bytes(100)))

    def slow_sender(self) -> None:
        """One that sends a byte at a time from now on."""
        if len(self._slow) < OPEN_MAX:
            self._slow.append((self._tcp(b""), deque(SLOW_MESSAGE)))

    def _send_slowly(self) -> None:
        for entry in list(self._slow):
            connection, left = entry
            try:
                connection.send(bytes([left.popleft()]))
            except OSError:
                left.clear()
            if not left:
                connection.close()
                self._slow.remove(entry)

    def many_connections(self) -> None:
        """A flood of them."""
        for connection in [self._tcp(b"") for _ in range(100)]:
            connection.close()

    # Requests.

    def _random_payloads(self) -> list[bytes]:
        return [random_frame(self._random) for _ in range(self._random.randrange(8))]

    def random_requests(self) -> None:
        """Any operation with any payloads, as release 0.5.2 numbers them."""
        peer = self._peer()
        for _ in range(30):
            peer.send(self._random.randrange(OPERATIONS_MAX), *self._random_payloads())
        self._keep_or_close(peer)

    def random_requests_of_newer_releases(self) -> None:
        """The same under newer numbers and names."""
        peer = RawConnection(self._port, settle=False, seconds=ANSWER_SECONDS)
        peer.ask(CHUNK_SIZE_OF_NEWER_RELEASES)
        for number in range(30):
            name = encode(self._random.choice(NAMES))
            operation = encode(self._random.randrange(OPERATIONS_MAX))
            chosen = self._random.choice((name, operation))
            peer.send_frames([encode(2000 + number), chosen, *self._random_payloads()])
        self._keep_or_close(peer)

    def deaf_peer(self) -> None:
        """Asks a lot and reads nothing."""
        peer = self._peer()
        for _ in range(2000):
            peer.send(Op.NOOP)
        self._keep_or_close(peer)

    def deep_message(self) -> None:
        """Millions of arrays in each other."""
        payload = self._random.choice(list(NESTING.values()))
        peer = self._peer()
        peer.send(self._random.choice((Op.LOOKUP, Op.PREPARE_STORE, Op.PING)), payload, encode(1))
        self._keep_or_close(peer)

    def lie_about_lengths(self) -> None:
        """Small messages that claim to be large."""
        peer = self._peer()
        for operation in (Op.LOOKUP, Op.COMMIT_STORE, Op.FREE_LOOKUP_LOCKS):
            payload = self._random.choice(list(DECLARED_LENGTHS.values()))
            peer.send(operation, payload, encode(1), payload)
        self._keep_or_close(peer)

    def many_frames(self) -> None:
        """More frames than any request has. Not through libzmq, which may not survive its end."""
        count = self._random.choice((17, 1000, 10_000))
        asked = b"\x01\x01\x00" + b"\x00\x01" + encode(int(Op.GET_CHUNK_SIZE))
        message = b"\x01\x01\x01" + b"\x01\x01" + encode(int(Op.NOOP)) + b"\x01\x01\xc0" * count
        self._keep_or_close(self._tcp(GREETING + READY + asked + message + b"\x00\x01\xc0"))

    def _register(self, peer: RawConnection, hidden: int) -> int:
        instance = self._random.getrandbits(62)
        told = wire.registration(instance, model_name="hostile", hidden_dim_size=hidden)
        peer.ask(Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, told)
        return instance

    def _key(self, chunks: int) -> dict[str, object]:
        tokens = [self._random.getrandbits(32) for _ in range(chunks * CHUNK_TOKENS)]
        request = f"hostile-{self._random.getrandbits(40)}"
        return wire.key(tokens, worker_id=0, request_id=request, model_name="hostile")

    def pickle_bomb(self) -> None:
        """Sent as the data of a store, with and without a reservation."""
        peer = self._peer()
        instance, key = self._register(peer, 8), self._key(2)
        if self._random.random() < 0.5:
            peer.send(Op.PREPARE_STORE, encode(key), encode(instance))
        for bomb in self._random.sample(self._bombs, 4):
            peer.send(Op.COMMIT_STORE, encode(key), encode(instance), encode(bomb))
        self._keep_or_close(peer)

    def hoarder(self) -> None:
        """Reserves and looks up as much as it can, and never says that it is done."""
        peer = self._peer()
        instance = self._register(peer, 512)
        for _ in range(8):
            key = self._key(8)
            peer.send(Op.LOOKUP, encode({**key, "worker_id": None}), encode(1))
            peer.send(Op.PREPARE_STORE, encode(key), encode(instance))
            peer.send(Op.PREPARE_RETRIEVE, encode(key), encode(instance))
        self._keep_or_close(peer)


def main() -> None:
    port, seed, marker = sys.argv[1:]
    peers = HostilePeers(int(port), int(seed), Path(marker))
    peers.run()
    print(json.dumps(peers.counts), flush=True)


if __name__ == "__main__":
    main()
