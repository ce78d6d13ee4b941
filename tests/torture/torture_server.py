"""The server of a torture run: ended and started again, on the same ports, under its clients.

Goal: after each end nothing is left behind, or the next start removes it, and no server says
anything that an operator would have to look into.
Method: conformance/larder_server.py for each process in turn. What is looked at: exit codes, files
in /dev/shm, error lines, resident memory beside the pool, messages served.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from larder_server import MIB, LarderServer, free_port
from state_page import StatePage

# Beside the pool: queues, sessions and prompts of all clients, and what a sanitizer keeps.
GROWTH_BYTES_MAX = 192 * MIB

# Nothing that clients do may lead to such a line.
ALARMING = re.compile(r"larder (ERROR|CRITICAL)|Sanitizer|runtime error:|CHECK failed")

LOG_LINES = 20


@dataclass
class Ends:
    """How often a server was ended, and what was seen of it."""

    kills: int = 0
    terms: int = 0
    messages: int = 0
    growth_bytes: int = 0
    clears: int = 0


class TortureServer:
    """One server after the other."""

    def __init__(self, flags: list[str], *, pool_mib: float, chunk_tokens: int) -> None:
        self._flags = flags
        self._pool_mib, self._chunk_tokens = pool_mib, chunk_tokens
        self.port, self._http_port = free_port(), free_port()
        self.ends = Ends()
        self.faults: list[str] = []
        self._messages = 0
        self._pids: list[int] = []
        self._left: list[Path] = []
        self._start()

    @property
    def url(self) -> str:
        """The request port as engines are told it."""
        return f"tcp://127.0.0.1:{self.port}"

    def _start(self) -> None:
        self.process = LarderServer(
            *self._flags,
            pool_mib=self._pool_mib,
            chunk_tokens=self._chunk_tokens,
            port=self.port,
            http_port=self._http_port,
        ).start()
        self._pids.append(self.process.pid)
        still = [path for path in self._left if path.exists()]
        if still:
            self.faults.append(f"a killed server's segments were not swept: {still}")
        self._left = self.process.segments()
        if len(self._left) != 1:
            self.faults.append(f"a server has the segments {self._left}")
        self._first_resident = self.process.resident_bytes()
        self._messages = 0

    def kill(self, page: StatePage) -> None:
        """kill -9."""
        page.server_goes()
        self.process.kill()
        self.ends.kills += 1
        self._look_back()

    def terminate(self, page: StatePage) -> None:
        """An orderly end while clients go on."""
        page.server_goes()
        segments = self.process.segments()
        code = self.process.end(signal.SIGTERM)
        if code != 0:
            self.faults.append(f"exit code {code} after SIGTERM")
        left = [path for path in segments if path.exists()]
        if left:
            self.faults.append(f"left in /dev/shm after SIGTERM: {left}")
        self.ends.terms += 1
        self._look_back()

    def start_again(self, page: StatePage) -> None:
        """The next server."""
        self._start()
        page.server_is_back()

    def _look_back(self) -> None:
        """What the ended server said."""
        lines = self.process.log_text().splitlines()
        alarming = [line for line in lines if ALARMING.search(line)]
        if alarming:
            shown = "\n".join([*alarming[:LOG_LINES], "...", *lines[-LOG_LINES:]])
            self.faults.append(f"{len(alarming)} alarming lines in the server's log:\n{shown}")
        self.ends.messages += self._messages
        self.process.forget_log()

    def clear(self) -> None:
        """CLEAR over HTTP."""
        code, text = self.process.fetch("/cache/clear", "POST", b"{}")
        if code != 200:
            self.faults.append(f"clearing over HTTP: {code} {text}")
        self.ends.clears += 1

    def watch(self) -> None:
        """Life, health, memory and work of the running server."""
        if not self.process.alive():
            text = self.process.log_text()[-4000:]
            self.faults.append(f"the server ended by itself:\n{text}")
            return
        code, text = self.process.get("/healthcheck")
        if code != 200:
            self.faults.append(f"unhealthy: {code} {text}")
        growth = self.process.resident_bytes() - self._first_resident
        self.ends.growth_bytes = max(self.ends.growth_bytes, growth)
        if growth > GROWTH_BYTES_MAX:
            self.faults.append(f"the server grew by {growth / MIB:.0f} MiB beside its pool")
        page = self.process.get("/metrics")[1]
        found = re.search(r"^larder_transport_messages_total ([0-9.e+]+)$", page, re.MULTILINE)
        assert found is not None
        self._messages = int(float(found[1]))

    def held(self) -> dict[str, object]:
        """What /status still shows of clients, without the zeros."""
        status = self.process.status()
        l1 = status["storage_manager"]["l1_manager"]
        shown = {
            "read locks": l1["read_locked_count"],
            "write locks": l1["write_locked_count"],
            "quarantined": l1["quarantined_count"],
            "sessions": status["active_sessions"],
            "lookups": status["active_prefetch_jobs"],
            "instances": status["registered_non_cuda_instance_ids"],
            "refused instances": status["refused_instance_ids"],
            "connections": status["connections"],
        }
        return {name: value for name, value in shown.items() if value}

    def used_after_clear(self) -> tuple[int, int]:
        """Objects and bytes once the cache was cleared: with nobody there, none."""
        self.clear()
        l1 = self.process.l1()
        return l1["total_object_count"], l1["memory_used_bytes"]

    def files_left(self) -> list[str]:
        """What is in /dev/shm under the name of any server of this run."""
        names = [path.name for path in Path("/dev/shm").iterdir()]
        return [name for name in names for pid in self._pids if f"_larder_{pid}_" in name]
