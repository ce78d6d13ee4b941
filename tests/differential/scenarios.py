"""All scenarios, by the server they are for."""

from __future__ import annotations

import scenarios_copy
import scenarios_instances
import scenarios_room
import scenarios_shm
import scenarios_wire
from steps import Scenario

ALL: list[Scenario] = [
    *scenarios_room.SHM.scenarios,
    *scenarios_room.COPY.scenarios,
    *scenarios_shm.COLLECTION.scenarios,
    *scenarios_instances.COLLECTION.scenarios,
    *scenarios_wire.COLLECTION.scenarios,
    *scenarios_copy.COLLECTION.scenarios,
]
FLAVOURS = ("shm", "copy")


def of_flavour(flavour: str) -> list[Scenario]:
    """The scenarios for a server with (shm) or without (copy) shared memory."""
    return [scenario for scenario in ALL if scenario.flavour == flavour]
