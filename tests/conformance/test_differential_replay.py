"""larder gives the answers that LMCache's own server was recorded to give.

Goal: a change of behaviour is noticed without the reference at hand. Method: the scenarios of tests/differential are
played against larder alone and compared with tests/differential/golden; where a step names a row of docs/deviations.md,
larder must give exactly the other answer that the step announces.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from larder_server import LarderServer

TESTS = Path(__file__).resolve().parents[1]
sys.path.append(str(TESTS / "differential"))

from golden import FOLDER, read_golden  # noqa: E402
from player import Player, differences  # noqa: E402
from scenarios import ALL, FLAVOURS  # noqa: E402
from steps import CHUNK_TOKENS, LARDER_FLAGS, POOL_MIB, Scenario  # noqa: E402

DEVIATIONS = TESTS.parent / "docs" / "deviations.md"


@pytest.fixture(scope="module")
def players() -> Iterator[dict[str, Player]]:
    """A player for a server with and one for a server without shared memory."""
    with ExitStack() as stack:
        made: dict[str, Player] = {}
        for flavour in FLAVOURS:
            flags = LARDER_FLAGS[flavour]
            server = LarderServer(*flags, pool_mib=POOL_MIB, chunk_tokens=CHUNK_TOKENS)
            stack.enter_context(server)
            made[flavour] = Player(server.port, may_be_silent=False)
            stack.callback(made[flavour].close)
        yield made


@pytest.mark.parametrize("scenario", ALL, ids=[scenario.name for scenario in ALL])
def test_the_answers_are_the_recorded_ones(players: dict[str, Player], scenario: Scenario) -> None:
    answers = players[scenario.flavour].play(scenario)
    found = differences(scenario, read_golden(scenario), answers)
    assert not found, "\n".join(found)


def test_every_announced_deviation_is_documented() -> None:
    documented = set(re.findall(r"^\| (D-[a-z0-9-]+) \|", DEVIATIONS.read_text(), re.MULTILINE))
    named = {step.deviation for scenario in ALL for step in scenario.steps if step.deviation}
    assert named <= documented, named - documented


def test_every_recording_belongs_to_a_scenario() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == {scenario.name for scenario in ALL}
