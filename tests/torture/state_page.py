"""What a torture run and its client processes tell each other without waiting for each other.

A file of 64-bit numbers that all of them map. The run writes the server's comings and goings and
each client's stalls; a client writes how far it is. A number has one writer, and a client that is
killed leaves its numbers to its successor. No torch and no lmcache here.
"""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from pathlib import Path

# What the clients count, summed over all lives of a slot.
COUNTED = (
    "requests",
    "lookups",
    "hits",
    "retrieves",
    "stores",
    "refused stores",
    "bytes",
    "aborts",
    "registrations",
    "reconnects",
    "deaths",
    "clears",
    "stalls in a store",
    "stalls in a retrieve",
    "commits after a stall",
    "commits refused after a stall",
    "told to register",
    "disturbed requests",
)

_HEADER = ("server_changes", "changed_at_ms", "leaving")
_OF_A_CLIENT = ("stalls", "own_stalls", "closing_since_change", "steps", *COUNTED)

# After a server is back, requests may still go to where the old one was.
SETTLE_SECONDS = 3.0


@dataclass(frozen=True)
class Moment:
    """When something began, and what had happened until then."""

    at: float
    server_changes: int
    stalls: int


class StatePage:
    """The mapped file."""

    def __init__(self, path: Path, clients: int) -> None:
        size = 8 * (len(_HEADER) + clients * len(_OF_A_CLIENT))
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(size)
            self._numbers = memoryview(mmap.mmap(file.fileno(), size)).cast("q")
        self._clients = clients

    # The server, written by the run.

    def server_goes(self) -> None:
        """Before the server is ended."""
        self._change()

    def server_is_back(self) -> None:
        """When the next one answers."""
        self._change()

    def _change(self) -> None:
        self._numbers[1] = int(time.monotonic() * 1000)
        self._numbers[0] += 1

    @property
    def server_changes(self) -> int:
        """Odd while there is no server."""
        return self._numbers[0]

    def let_leave(self) -> None:
        """All clients are to come to their end."""
        self._numbers[2] = 1

    @property
    def leaving(self) -> bool:
        """Whether clients are to come to their end."""
        return bool(self._numbers[2])

    # The clients.

    def _place(self, client: int, name: str) -> int:
        return len(_HEADER) + client * len(_OF_A_CLIENT) + _OF_A_CLIENT.index(name)

    def get(self, client: int, name: str) -> int:
        """One number of a client."""
        return self._numbers[self._place(client, name)]

    def put(self, client: int, name: str, value: int) -> None:
        """Set one number of a client."""
        self._numbers[self._place(client, name)] = value

    def add(self, client: int, name: str, value: int = 1) -> None:
        """Count."""
        self._numbers[self._place(client, name)] += value

    def total(self, name: str) -> int:
        """The sum over all clients."""
        return sum(self.get(client, name) for client in range(self._clients))

    # What excuses a client.

    def moment(self, client: int) -> Moment:
        """Now."""
        stalls = self.get(client, "stalls") + self.get(client, "own_stalls")
        return Moment(time.monotonic(), self.server_changes, stalls)

    def calm_since(self, client: int, moment: Moment) -> bool:
        """Whether the server was there and the client awake since then and shortly before."""
        now = self.moment(client)
        settled = moment.at - self._numbers[1] / 1000 > SETTLE_SECONDS
        changes, stalls = moment.server_changes, moment.stalls
        same = (now.server_changes, now.stalls) == (changes, stalls)
        return same and settled and changes % 2 == 0
