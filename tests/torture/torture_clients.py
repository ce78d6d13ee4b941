"""The client processes of a torture run: started, stopped, woken and killed.

Goal: as many lives as there are slots, a new one wherever one was killed, and word of every end
that nobody ordered.
Method: one nursery per release forks them (client_nursery.py); signals go to each by its id.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driver_process import START_SECONDS, client_environment, die_with_parent
from state_page import StatePage

HERE = Path(__file__).resolve().parent
LOG_CHARACTERS = 6000

# The client of 0.5.6 tells a monitor socket what happens to its connection, also while it is being
# closed and nobody reads any more; then its I/O thread stands still.
HANGS_IN_ITS_OWN_CLOSE = "0.5.6"


class Nursery:
    """The process that forks the clients of one release."""

    def __init__(self, release: str, page: Path, slots: int, url: str) -> None:
        self.release = release
        self._log = tempfile.NamedTemporaryFile(prefix=f"torture-{release}-", suffix=".log")
        self._rest = b""
        environment = {**client_environment(release), "LARDER_CALL_SECONDS": str(CALL_SECONDS)}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "client_nursery.py"), release, str(page), str(slots), url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            preexec_fn=die_with_parent,
        )

    def start_client(self, slot: int, seed: int) -> None:
        """Ask for a new client."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{slot} {seed}\n".encode())
        self._process.stdin.flush()

    def news(self, seconds: float) -> list[dict[str, int]]:
        """What it told since the last call."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            return []
        read = os.read(self._process.stdout.fileno(), 1 << 16)
        assert read, f"the nursery of {self.release} ended:\n{self.log_text()}"
        *lines, self._rest = (self._rest + read).split(b"\n")
        return [json.loads(line) for line in lines]

    def log_text(self) -> str:
        """The end of what its clients printed."""
        return Path(self._log.name).read_text(errors="replace")[-LOG_CHARACTERS:]

    def close(self) -> None:
        """End it, and with it its clients."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._process.kill()
        self._process.wait()
        self._log.close()


# A request that has no answer after this time is a fault, unless its server or its client was gone.
CALL_SECONDS = 6.0
# A client that is awake and makes no step for this long hangs: a request has several parts.
HANG_SECONDS = 60.0


@dataclass
class Life:
    """One client process."""

    slot: int
    nursery: Nursery
    pid: int = 0  # 0 until it has been forked
    killed: bool = False
    wake_at: float | None = None  # it is stopped
    steps: int = -1
    step_at: float = field(default_factory=time.monotonic)


@dataclass
class Deeds:
    """What was done to the clients."""

    kills: int = 0
    stalls: int = 0
    own_hangs: int = 0


class Clients:
    """All client processes."""

    def __init__(self, releases: list[str], slots: int, page: Path, url: str, seed: int) -> None:
        self._random = random.Random(seed)
        self.page = StatePage(page, slots)
        self._nurseries = [Nursery(release, page, slots, url) for release in releases]
        self.lives = [
            Life(slot, self._nurseries[slot % len(self._nurseries)]) for slot in range(slots)
        ]
        self.deeds = Deeds()
        self.faults: list[str] = []
        self._leaving = False

    def start(self) -> None:
        """Wait for the nurseries, then start a client in every slot."""
        deadline = time.monotonic() + START_SECONDS
        for nursery in self._nurseries:
            while not nursery.news(1.0):
                late = time.monotonic() > deadline
                assert not late, f"{nursery.release} does not start:\n{nursery.log_text()}"
        for life in self.lives:
            self._start(life)

    def _start(self, life: Life) -> None:
        life.pid, life.killed, life.wake_at = 0, False, None
        life.step_at = time.monotonic()
        self.page.put(life.slot, "closing_since_change", 0)
        life.nursery.start_client(life.slot, self._random.getrandbits(30))

    # What is done to them.

    def kill_one(self) -> None:
        """kill -9 of one that runs or is stopped."""
        life = self._choose(stopped_too=True)
        if life is not None:
            self._kill(life)
            self.deeds.kills += 1

    def _kill(self, life: Life) -> None:
        life.killed = True
        os.kill(life.pid, signal.SIGKILL)

    def stall_one(self, seconds: float) -> None:
        """Stop one for a time."""
        life = self._choose(stopped_too=False)
        if life is None:
            return
        self.page.add(life.slot, "stalls")
        os.kill(life.pid, signal.SIGSTOP)
        # It may have begun something between these two lines, and must not be blamed for it.
        self.page.add(life.slot, "stalls")
        life.wake_at = time.monotonic() + seconds

    def _choose(self, *, stopped_too: bool) -> Life | None:
        eligible = [
            life
            for life in self.lives
            if life.pid and not life.killed and (stopped_too or life.wake_at is None)
        ]
        return self._random.choice(eligible) if eligible else None

    def tend(self, stall_seconds: float) -> None:
        """Hear of ends, wake whoever slept long enough, notice who hangs.

        One that stopped itself sleeps for `stall_seconds`.
        """
        for nursery in self._nurseries:
            for news in nursery.news(0.0):
                self._hear(nursery, news)
        now = time.monotonic()
        for life in self.lives:
            if life.pid and not life.killed:
                self._tend(life, now, stall_seconds)

    def _hear(self, nursery: Nursery, news: dict[str, int]) -> None:
        if "started" in news:
            self.lives[news["slot"]].pid = news["started"]
            return
        life = next(life for life in self.lives if life.pid == news["ended"])
        in_order = self._leaving and news["status"] == 0
        if not (life.killed or in_order):
            self.faults.append(
                f"client {life.slot} of {nursery.release} ended with {news['status']}:\n"
                f"{nursery.log_text()}"
            )
        life.pid = 0
        if not self._leaving:
            self._start(life)

    def _tend(self, life: Life, now: float, stall_seconds: float) -> None:
        if life.wake_at is None and _is_stopped(life.pid):
            life.wake_at = now + stall_seconds
        if life.wake_at is not None:
            if now >= life.wake_at:
                os.kill(life.pid, signal.SIGCONT)
                life.wake_at = None
                life.step_at = now
                self.deeds.stalls += 1
            return
        steps = self.page.get(life.slot, "steps")
        if steps != life.steps:
            life.steps, life.step_at = steps, now
        elif now - life.step_at > HANG_SECONDS:
            self._end_hanging(life)

    def _end_hanging(self, life: Life) -> None:
        closing = self.page.get(life.slot, "closing_since_change")
        if (
            life.nursery.release == HANGS_IN_ITS_OWN_CLOSE
            and closing
            and closing - 1 != self.page.server_changes
        ):
            self.deeds.own_hangs += 1
        else:
            self.faults.append(f"client {life.slot} of {life.nursery.release} hangs")
        self._kill(life)

    # The end.

    def leave(self, seconds: float) -> None:
        """Wake all and let them come to their end."""
        self._leaving = True
        self.page.let_leave()
        deadline = time.monotonic() + seconds
        while left := [life for life in self.lives if life.pid or life.killed]:
            assert time.monotonic() < deadline, f"{len(left)} clients do not leave"
            self.tend(0.0)
            for life in left:
                if life.wake_at is not None:
                    life.wake_at = 0.0
                if life.pid == 0:
                    life.killed = False
            select.select([], [], [], 0.02)

    def close(self) -> None:
        """End all processes, whatever they do."""
        for nursery in self._nurseries:
            nursery.close()


def _is_stopped(pid: int) -> bool:
    """Whether a process has been stopped by a signal."""
    try:
        stat: Any = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return str(stat).rsplit(")", 1)[1].split()[0] == "T"
