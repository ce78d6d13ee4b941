"""The recorded answers of the reference: one JSON file for each scenario."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from steps import Scenario

FOLDER = Path(__file__).resolve().parent / "golden"


def _path(scenario: Scenario) -> Path:
    return FOLDER / f"{scenario.name}.json"


def write_golden(scenario: Scenario, answers: list[Any]) -> None:
    """Record what the reference answered, one step a line."""
    lines = [
        "  " + json.dumps([str(step), answer])
        for step, answer in zip(scenario.steps, answers, strict=True)
    ]
    FOLDER.mkdir(exist_ok=True)
    _path(scenario).write_text("[\n" + ",\n".join(lines) + "\n]\n")


def read_golden(scenario: Scenario) -> list[Any]:
    """The recorded answers; fails when they are of another version of the scenario."""
    recorded = json.loads(_path(scenario).read_text())
    steps = [step for step, _ in recorded]
    expected = [str(step) for step in scenario.steps]
    assert steps == expected, f"{scenario.name}: record again with run_diff.py --record"
    return [answer for _, answer in recorded]
