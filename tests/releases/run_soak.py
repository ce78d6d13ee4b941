#!/usr/bin/env python3
"""Clients of four releases on one larder, for a while, with a pool that is too small for them.

Goal: no reply is lost, no byte is wrong, and nothing is left behind: no lock, no session, no
registration.
Method: one process per release lives the life of several engines (soak_workload.py). When all have
left, /status must come to zero within a deadline, and the server must stop in order.

Usage: run_soak.py [--binary build/larder] [--seconds N] [--seed N] [RELEASE ...]
The binary is otherwise LARDER_BINARY, the seconds SOAK_SECONDS (600). A failed run prints its seed.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "conformance"))

from driver_process import RELEASES, Driver, DriverFailure  # noqa: E402
from larder_server import LarderServer  # noqa: E402
from polling import until  # noqa: E402

POOL_MIB = 24
CHUNK_TOKENS = 8
# Beyond the time of the steps: the last step of each process, and how long it takes to leave.
MARGIN_SECONDS = 120.0
# A dead worker is given up after this time; living ones say a word every half second.
REAP_SECONDS = 10
EMPTY_SECONDS = 60.0

Counts = dict[str, int]


def flags() -> list[str]:
    """The server's, besides ports and pool."""
    return [
        "--worker-reap-timeout-seconds", str(REAP_SECONDS),
        "--worker-registration-grace-seconds", str(REAP_SECONDS),
    ]  # fmt: skip


def left_behind(server: LarderServer) -> dict[str, Any]:
    """What /status still shows, without the zeros."""
    status = server.status()
    l1 = status["storage_manager"]["l1_manager"]
    shown = {
        "read locks": l1["read_locked_count"],
        "write locks": l1["write_locked_count"],
        "sessions": status["active_sessions"],
        "lookups": status["active_prefetch_jobs"],
        "instances": status["registered_non_cuda_instance_ids"],
        "connections": status["client_connections"],
    }
    return {name: value for name, value in shown.items() if value}


def live(server: LarderServer, releases: list[str], seconds: float, seed: int) -> list[Counts]:
    """Run all clients at once; what each of them counted."""
    drivers = [Driver(release) for release in releases]
    try:
        for driver in drivers:
            driver.wait_ready()
        lives = [
            driver.open("SoakWorkload", server.url, seed=seed + number)
            for number, driver in enumerate(drivers)
        ]
        for driver, life in zip(drivers, lives, strict=True):
            driver.send("run", life, seconds=seconds)
        counts = []
        faults = []
        for driver in drivers:
            try:
                counts.append(driver.answer(seconds + MARGIN_SECONDS))
            except DriverFailure as fault:
                faults.append(str(fault))
        assert not faults, "\n".join(faults)
        return counts
    finally:
        for driver in drivers:
            driver.close()


def report(releases: list[str], counts: list[Counts]) -> None:
    """One line for each release, one for all."""
    total: Counts = {}
    for release, count in zip(releases, counts, strict=True):
        print(f"{release}: {describe(count)}")
        for name, value in count.items():
            total[name] = total.get(name, 0) + value
    print(f"all: {describe(total)}", flush=True)
    for name in ("hits", "retrieves", "stores", "deaths", "reconnects"):
        assert total.get(name, 0) > 0, f"a soak without {name} shows nothing"


def describe(count: Counts) -> str:
    """The numbers in words."""
    return ", ".join(f"{value} {name}" for name, value in sorted(count.items()))


def soak(releases: list[str], seconds: float, seed: int) -> None:
    """The whole run."""
    with LarderServer(*flags(), pool_mib=POOL_MIB, chunk_tokens=CHUNK_TOKENS) as server:
        try:
            counts = live(server, releases, seconds, seed)
            report(releases, counts)
            started = time.monotonic()
            until(
                lambda: not left_behind(server),
                "locks, sessions, instances and connections come to zero",
                EMPTY_SECONDS,
            )
            print(f"nothing was left {time.monotonic() - started:.0f} s after the last had gone")
        except AssertionError:
            print(f"left behind: {left_behind(server) if server.alive() else 'no server'}")
            print(f"the end of the server's log:\n{server.log_text()[-4000:]}")
            raise


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=Path, help="the larder binary")
    parser.add_argument("--seconds", type=float, default=os.environ.get("SOAK_SECONDS", "600"))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("releases", nargs="*", default=list(RELEASES), metavar="RELEASE")
    arguments = parser.parse_args()
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
    if arguments.binary is not None:
        os.environ["LARDER_BINARY"] = str(arguments.binary.resolve())
    print(f"{', '.join(arguments.releases)} for {arguments.seconds:.0f} s, seed {arguments.seed}")
    try:
        soak(arguments.releases, arguments.seconds, arguments.seed)
    except AssertionError as fault:
        print(f"FAULT (seed {arguments.seed}): {fault}")
        print("0 passed, 1 failed")
        return 1
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
