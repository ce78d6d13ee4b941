#!/usr/bin/env python3
"""Play the same scenarios against LMCache's server and larder, and show where they differ.

Goal: larder answers as release 0.5.2 does, except where docs/deviations.md says otherwise.
Method: two servers of each flavour (with and without shared memory), the scenarios of
scenarios.py, answers in a common form (player.py). A difference that no step announces, and an
announced one that is not there, are failures.

Usage: run_diff.py [--binary build/larder] [--record] [--only TEXT]
  --record writes the reference's answers to golden/, which make test replays without a reference.
  Without --binary only the reference is played (for --record).
Needs scripts/bootstrap_e2e.sh. Takes about two minutes. Loopback only.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))

from environment import continue_inside  # noqa: E402

if TYPE_CHECKING:
    from steps import Scenario

    Played = dict[str, list[Any]]


def play_all(port: int, scenarios: list[Scenario], *, may_be_silent: bool) -> Played:
    """The answers of one server, by scenario."""
    from player import Player

    player = Player(port, may_be_silent=may_be_silent)
    try:
        return {scenario.name: player.play(scenario) for scenario in scenarios}
    finally:
        player.close()


def play_reference(flavour: str, scenarios: list[Scenario]) -> Played:
    """The answers of LMCache's server."""
    from reference_server import ReferenceServer
    from steps import CHUNK_TOKENS, POOL_MIB

    with ReferenceServer(
        pool_mib=POOL_MIB, chunk_tokens=CHUNK_TOKENS, shared_memory=flavour == "shm"
    ) as server:
        return play_all(server.port, scenarios, may_be_silent=True)


def play_larder(flavour: str, scenarios: list[Scenario]) -> Played:
    """The answers of larder."""
    from larder_server import LarderServer
    from steps import CHUNK_TOKENS, LARDER_FLAGS, POOL_MIB

    with LarderServer(
        *LARDER_FLAGS[flavour], pool_mib=POOL_MIB, chunk_tokens=CHUNK_TOKENS
    ) as server:
        return play_all(server.port, scenarios, may_be_silent=False)


def compare(flavour: str, chosen: list[Scenario], *, with_larder: bool, record: bool) -> list[str]:
    """Play one flavour and return the unannounced differences; prints the announced ones."""
    from golden import write_golden
    from player import differences

    started = time.monotonic()
    reference = play_reference(flavour, chosen)
    seconds = time.monotonic() - started
    print(f"{flavour}: the reference played {len(chosen)} scenarios in {seconds:.0f} s", flush=True)
    if record:
        for scenario in chosen:
            write_golden(scenario, reference[scenario.name])
    if not with_larder:
        return []
    larder = play_larder(flavour, chosen)
    found: list[str] = []
    for scenario in chosen:
        found += differences(scenario, reference[scenario.name], larder[scenario.name])
        print_announced(scenario, reference[scenario.name], larder[scenario.name])
    return found


def print_announced(scenario: Scenario, reference: list[Any], larder: list[Any]) -> None:
    """One line for each step on which larder differs on purpose."""
    for index, step in enumerate(scenario.steps):
        if step.deviation:
            print(
                f"{step.deviation:28} {scenario.name} {index} {step}: "
                f"{reference[index]!r} -> {larder[index]!r}"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=Path, help="the larder binary")
    parser.add_argument("--record", action="store_true", help="write golden/")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    arguments = parser.parse_args()
    continue_inside()
    if arguments.binary is not None:
        os.environ["LARDER_BINARY"] = str(arguments.binary.resolve())
    from scenarios import FLAVOURS, of_flavour

    found: list[str] = []
    played = 0
    for flavour in FLAVOURS:
        chosen = [each for each in of_flavour(flavour) if arguments.only in each.name]
        played += len(chosen)
        if chosen:
            with_larder = arguments.binary is not None
            found += compare(flavour, chosen, with_larder=with_larder, record=arguments.record)
    for line in found:
        print(f"DIFFERENCE {line}")
    wrong = len({line.split(" step ")[0] for line in found})
    print(f"{played - wrong} passed, {wrong} failed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
