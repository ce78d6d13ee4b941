#!/usr/bin/env python3
"""Clients of four releases and one larder, all of which are killed, stopped and attacked meanwhile.

Goal: whatever happens to whom, no byte is wrong, no request of a living client to a living server
is left unanswered, no mapping faults, and when all have gone nothing is left: no lock, no session,
no registration, no byte of the pool, no file in /dev/shm.
Method: client processes (torture_life.py) compare every byte they retrieve. The run stops them,
longer than the server waits, and kills them; it kills, ends and restarts the server under them;
the pool is far too small; the cache is cleared over HTTP and over the wire; beside them
hostile_peers.py attacks the port. At the end all leave and the server must come to zero.

Usage: run_torture.py [--binary build/larder] [--seconds N] [--seed N] [RELEASE ...]
The binary is otherwise LARDER_BINARY, the seconds TORTURE_SECONDS (1800). A failed run prints its
seed; it decides what is done when, not how the processes run next to each other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "conformance"), str(HERE.parent / "releases")]

from driver_process import RELEASES, die_with_parent  # noqa: E402
from larder_server import MIB, running  # noqa: E402
from polling import until  # noqa: E402
from state_page import COUNTED  # noqa: E402
from torture_clients import Clients  # noqa: E402
from torture_server import TortureServer  # noqa: E402

POOL_MIB = 16
CHUNK_TOKENS = 8
LIVES_PER_RELEASE = 2

# Engines say a word twice a second. A stall may be shorter or longer than this.
REAP_SECONDS = 8
SHORT_STALL_SECONDS = (0.05, 2.0)
LONG_STALL_SECONDS = (REAP_SECONDS + 1.0, REAP_SECONDS + 4.0)
WRITE_TTL_SECONDS = 5
READ_TTL_SECONDS = 20

TICK_SECONDS = 0.02
WATCH_SECONDS = 1.0
LEAVE_SECONDS = 90.0
# A connection's end is waited for before what it held is given up.
EMPTY_SECONDS = 75.0

# Seconds between the ends of two servers.
SERVER_SECONDS = (10.0, 25.0)


def flags() -> list[str]:
    """The server's, besides ports and pool: all times short."""
    return [
        "--worker-reap-timeout-seconds", str(REAP_SECONDS),
        "--worker-registration-grace-seconds", str(REAP_SECONDS),
        "--l1-write-ttl-seconds", str(WRITE_TTL_SECONDS),
        "--l1-read-ttl-seconds", str(READ_TTL_SECONDS),
    ]  # fmt: skip


class Torture:
    """The run: what is done when."""

    def __init__(
        self, server: TortureServer, clients: Clients, hostile: Hostile, seed: int
    ) -> None:
        self._server, self._clients, self._hostile = server, clients, hostile
        self._random = random.Random(seed)
        self._server_end_number = 0

    def run(self, seconds: float) -> None:
        """Until the time is over or a fault was found."""
        now = time.monotonic()
        end = now + seconds
        due = {name: now + 2.0 + self._pause(name) for name in self._deeds}
        while time.monotonic() < end and not self.faults:
            for name, deed in self._deeds.items():
                if time.monotonic() >= due[name]:
                    deed(self)
                    due[name] = time.monotonic() + self._pause(name)
            self._tend()

    @property
    def faults(self) -> list[str]:
        """What must not be."""
        return [*self._server.faults, *self._clients.faults, *self._hostile.faults]

    def _pause(self, name: str) -> float:
        means = {"kill": 1.5, "stall": 1.0, "clear": 8.0, "watch": WATCH_SECONDS}
        if name == "server":
            return self._random.uniform(*SERVER_SECONDS)
        return means[name] * self._random.uniform(0.2, 1.8)

    def _tend(self) -> None:
        self._clients.tend(self._stall_seconds())
        time.sleep(TICK_SECONDS)

    def _stall_seconds(self) -> float:
        is_long = self._random.random() < 0.3
        return self._random.uniform(*(LONG_STALL_SECONDS if is_long else SHORT_STALL_SECONDS))

    def _kill_client(self) -> None:
        self._clients.kill_one()

    def _stall_client(self) -> None:
        self._clients.stall_one(self._stall_seconds())

    def _clear(self) -> None:
        self._server.clear()

    def _watch(self) -> None:
        self._server.watch()

    def _end_server(self) -> None:
        """The hard way and in order in turn; clients find nobody for a while."""
        page = self._clients.page
        if self._server_end_number % 2 == 0:
            self._server.kill(page)
        else:
            self._server.terminate(page)
        self._server_end_number += 1
        back_at = time.monotonic() + self._random.choice((0.0, 0.5, 2.0))
        while time.monotonic() < back_at:
            self._tend()
        self._server.start_again(page)

    _deeds = {
        "kill": _kill_client,
        "stall": _stall_client,
        "clear": _clear,
        "watch": _watch,
        "server": _end_server,
    }


class Hostile:
    """The process of hostile_peers.py."""

    def __init__(self, port: int, seed: int, marker: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "hostile_peers.py"), str(port), str(seed), str(marker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=die_with_parent,
        )

    @property
    def faults(self) -> list[str]:
        """A run without them shows less than it says."""
        code = self._process.poll()
        return [] if code in (None, 0) else [f"the hostile peers gave up with {code}"]

    def stop(self) -> dict[str, int]:
        """End it; how often it did what."""
        said, _ = self._process.communicate(timeout=LEAVE_SECONDS)
        if self.faults:
            return {}
        counts: dict[str, int] = json.loads(said)
        return counts


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """For the page and the marker."""
    with tempfile.TemporaryDirectory(prefix="torture-") as name:
        yield Path(name)


def describe(counts: dict[str, int]) -> str:
    """The numbers in words."""
    return ", ".join(f"{value} {name}" for name, value in counts.items())


def report(server: TortureServer, clients: Clients, attacks: dict[str, int]) -> None:
    """What was done and seen."""
    deeds, ends = clients.deeds, server.ends
    totals = {name: clients.page.total(name) for name in COUNTED}
    compared = totals.pop("bytes")
    print(
        f"done to clients: {deeds.kills} kills, {deeds.stalls} stalls, {ends.clears} clears by HTTP"
    )
    print(f"done to servers: {ends.kills} kills, {ends.terms} orderly ends")
    print(f"clients: {describe(totals)}")
    print(f"attacks: {describe(attacks)}")
    print(
        f"servers: more than {ends.messages} messages, at most {ends.growth_bytes / MIB:.0f} MiB "
        f"grown beside the pool"
    )
    print(f"compared: {compared} bytes ({compared / MIB:.0f} MiB)", flush=True)
    if deeds.own_hangs:
        print(f"{deeds.own_hangs} clients of 0.5.6 hung while closing a connection that ended")
    needed = ("hits", "retrieves", "stores", "stalls in a store", "stalls in a retrieve")
    missing = [name for name in needed if not totals[name]]
    assert not missing, f"a run without {missing} shows nothing"


def come_to_zero(server: TortureServer, clients: Clients, marker: Path) -> None:
    """Everybody leaves, and nothing may stay."""
    clients.leave(LEAVE_SECONDS)
    started = time.monotonic()
    try:
        until(lambda: not server.held(), "nothing is held for anybody", EMPTY_SECONDS)
    except AssertionError as late:
        ledger = "\n".join(server.process.ledger())
        raise AssertionError(f"left behind: {server.held()}\n{ledger}") from late
    print(f"nothing was held {time.monotonic() - started:.0f} s after the last had gone")
    left = server.used_after_clear()
    assert left == (0, 0), f"objects and bytes of an empty cache: {left}"
    server.watch()
    server.terminate(clients.page)
    assert not server.files_left(), f"left in /dev/shm: {server.files_left()}"
    assert not marker.exists(), "a pickle bomb ran"


def unanswered(server: TortureServer) -> str:
    """The counters of what the server refused, dropped or left without an answer."""
    _, page = server.process.get("/metrics")
    kinds = ("unanswered", "unreadable", "refused", "closed")
    lines = (line for line in page.splitlines() if not line.startswith("#"))
    return "\n".join(line for line in lines if any(kind in line.split("{")[0] for kind in kinds))


def end_servers() -> None:
    """After a fault."""
    for process in list(running):
        process.kill()
        process.forget_log()


def torture(arguments: Any) -> None:
    """The whole run."""
    slots = LIVES_PER_RELEASE * len(arguments.releases)
    with folder() as place, contextlib.ExitStack() as ending:
        marker = place / "executed"
        server = TortureServer(flags(), pool_mib=POOL_MIB, chunk_tokens=CHUNK_TOKENS)
        ending.callback(end_servers)
        seed = arguments.seed
        clients = Clients(arguments.releases, slots, place / "page", server.url, seed)
        ending.callback(clients.close)
        clients.start()
        hostile = Hostile(server.port, seed + 1, marker)
        run = Torture(server, clients, hostile, seed + 2)
        try:
            run.run(arguments.seconds)
            attacks = hostile.stop()
            assert not run.faults, "\n".join(run.faults)
            come_to_zero(server, clients, marker)
        except AssertionError:
            if server.process.alive():
                print(f"the end of the server's log:\n{server.process.log_text()[-4000:]}")
                print(f"what was not answered:\n{unanswered(server)}")
            raise
        report(server, clients, attacks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=Path, help="the larder binary")
    parser.add_argument("--seconds", type=float, default=os.environ.get("TORTURE_SECONDS", "1800"))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("releases", nargs="*", default=list(RELEASES), metavar="RELEASE")
    arguments = parser.parse_args()
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
    if arguments.binary is not None:
        os.environ["LARDER_BINARY"] = str(arguments.binary.resolve())
    print(f"{', '.join(arguments.releases)} for {arguments.seconds:.0f} s, seed {arguments.seed}")
    try:
        torture(arguments)
    except AssertionError as fault:
        print(f"FAULT (seed {arguments.seed}): {fault}")
        print("0 passed, 1 failed")
        return 1
    print("1 passed, 0 failed: no difference, nothing left behind")
    return 0


if __name__ == "__main__":
    sys.exit(main())
