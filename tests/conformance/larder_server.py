"""A larder process under test.

Goal: a server of its own for each test module, on free loopback ports and with a small pool, that
is known to have stopped cleanly afterwards.
Method: LARDER_BINARY names the program. Readiness is a GET_CHUNK_SIZE on the request port, byte
for byte what every engine sends first. Stopping sends a signal to the one process started here,
expects exit code 0 (a sanitizer's report changes it) and looks whether any /dev/shm file that the
process had open or mapped is still there.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import polling
import wire

START_SECONDS = 60.0
STOP_SECONDS = 30.0
MIB = 1 << 20
GIB = 1 << 30

# Below the range for outgoing connections: nobody grabs a port between probe and start.
PORTS = range(20000, 32000)

# The first line of what SIGUSR1 prints.
LEDGER_BEGINS = re.compile(r"\d+ objects, ")

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

running: list[LarderServer] = []


def free_port() -> int:
    """A TCP port nobody listens on now."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def binary() -> str:
    """The program under test."""
    path = os.environ.get("LARDER_BINARY", "")
    assert path, "set LARDER_BINARY to the larder program"
    return path


def _die_with_parent() -> None:
    """Runs in the new process: a test run that is cut off must not leave servers behind."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def environment() -> dict[str, str]:
    """This process's environment for the server.

    Memory that a sanitizer holds back must not look like the server's own, and the client's quiet
    log level is not the server's.
    """
    given = os.environ.get("ASAN_OPTIONS")
    options = [given, "quarantine_size_mb=16"] if given else ["quarantine_size_mb=16"]
    return {**os.environ, "ASAN_OPTIONS": ":".join(options), "LMCACHE_LOG_LEVEL": "INFO"}


class LarderServer:
    """One `larder serve` process; as a context manager it starts and stops cleanly."""

    def __init__(
        self,
        *flags: str,
        pool_mib: float = 24,
        chunk_tokens: int = 8,
        port: int | None = None,
        http_port: int | None = None,
        variables: dict[str, str] | None = None,
    ) -> None:
        self.port = port or free_port()
        self.http_port = http_port or free_port()
        self.pool_bytes = int(pool_mib * MIB)
        self.chunk_tokens = chunk_tokens
        self._flags = flags
        self._variables = variables or {}
        self._log = tempfile.NamedTemporaryFile(prefix="larder-", suffix=".log", delete=False)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The request port as engines are told it."""
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process id; REQUIRES a started server."""
        assert self._process is not None
        return self._process.pid

    def command(self) -> list[str]:
        """The command line."""
        return [
            binary(), "serve",
            "--port", str(self.port),
            "--http-host", "127.0.0.1",
            "--http-port", str(self.http_port),
            "--l1-size-gb", repr(self.pool_bytes / GIB),
            "--chunk-size", str(self.chunk_tokens),
            "--eviction-policy", "LRU",
            *self._flags,
        ]  # fmt: skip

    def launch(self) -> LarderServer:
        """Start the process without waiting for it."""
        assert self._process is None
        self._process = subprocess.Popen(
            self.command(),
            stdout=self._log,
            stderr=self._log,
            env={**environment(), **self._variables},
            preexec_fn=_die_with_parent,
        )
        running.append(self)
        return self

    def start(self) -> LarderServer:
        """Start the process and wait until both of its ports answer."""
        self.launch()
        self.wait_ready()
        return self

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Return when the request port answers GET_CHUNK_SIZE and the HTTP port is healthy."""
        deadline = time.monotonic() + seconds
        with wire.RawConnection(self.port, settle=False) as connection:
            uid = connection.send(wire.Op.GET_CHUNK_SIZE)
            while True:
                try:
                    reply = connection.reply(uid, 0.1)
                    break
                except TimeoutError:
                    self._assert_alive(deadline)
        assert reply.value == self.chunk_tokens
        while not self._answers_http():
            self._assert_alive(deadline)

    def _assert_alive(self, deadline: float) -> None:
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"the server ended with {code} at start:\n{self.log_text()}"
        assert time.monotonic() < deadline, f"the server is not ready:\n{self.log_text()}"

    def _answers_http(self) -> bool:
        try:
            return self.get("/healthcheck")[0] == 200
        except OSError:
            time.sleep(0.02)
            return False

    def log_text(self) -> str:
        """What the server printed so far."""
        return Path(self._log.name).read_text(errors="replace")

    def segments(self) -> list[Path]:
        """The /dev/shm files the process has open or mapped."""
        names: set[str] = set()
        root = Path(f"/proc/{self.pid}")
        for line in (root / "maps").read_text().splitlines():
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith("/dev/shm/"):
                names.add(fields[5])
        for link in (root / "fd").iterdir():
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target.startswith("/dev/shm/"):
                names.add(target)
        return [Path(name) for name in sorted(names) if not name.endswith("(deleted)")]

    def resident_bytes(self) -> int:
        """The process's resident memory, the pool's pages excepted."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return (int(fields[1]) - int(fields[2])) * resource.getpagesize()

    def ledger(self) -> list[str]:
        """Who holds what, as the server prints it on SIGUSR1; REQUIRES nobody else to ask.

        It is asked twice: where the second ledger begins, the first is whole.
        """
        before = len(self.log_text())
        lines: list[str] = []
        for wanted in (1, 2):
            self._signal(signal.SIGUSR1)
            lines = polling.until(
                lambda wanted=wanted: self._ledger_lines(before, wanted),  # type: ignore[misc]
                "the server prints its ledger",
            )
        second = [at for at, line in enumerate(lines) if LEDGER_BEGINS.match(line)][1]
        return lines[:second]

    def _ledger_lines(self, before: int, wanted: int) -> list[str]:
        """The lines in the log from a place on; none while fewer ledgers have begun."""
        lines = re.findall(r"ledger: (.*)\n", self.log_text()[before:])
        begun = sum(bool(LEDGER_BEGINS.match(line)) for line in lines)
        return lines if begun >= wanted else []

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop with a signal; fails unless the exit code is 0 and no segment is left."""
        segments = self.segments() if self.alive() else []
        code = self.end(number)
        left = [path for path in segments if path.exists()]
        assert code == 0, f"exit code {code} after {number.name}:\n{self.log_text()}"
        assert not left, f"left in /dev/shm: {left}"

    def kill(self) -> None:
        """End the process the hard way."""
        self.end(signal.SIGKILL)

    def end(self, number: signal.Signals) -> int:
        """Send a signal, wait for the end, and return the exit code."""
        assert self._process is not None
        if self.alive():
            self._process.send_signal(number)
        return self.wait_end()

    def wait_end(self, seconds: float = STOP_SECONDS) -> int:
        """Wait for the process to end by itself and return its exit code."""
        assert self._process is not None
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            running.remove(self)
            raise AssertionError(f"the server did not stop:\n{self.log_text()}") from None
        self._process = None
        running.remove(self)
        return code

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> LarderServer:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._process is not None:
            if kind is None:
                self.stop()
            else:
                self.end(signal.SIGTERM)
        self.forget_log()

    def forget_log(self) -> None:
        """Remove the log file."""
        self._log.close()
        Path(self._log.name).unlink(missing_ok=True)

    def fetch(self, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, str]:
        """One HTTP request to the admin port; returns status and body, also for errors."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http_port}{path}", data=body, method=method
        )
        if body is not None:
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def get(self, path: str) -> tuple[int, str]:
        """GET a path of the admin port."""
        return self.fetch(path)

    def status(self) -> dict[str, Any]:
        """The body of GET /status."""
        code, body = self.get("/status")
        assert code == 200, body
        return json.loads(body)

    def l1(self) -> dict[str, Any]:
        """The part of /status that describes the pool and its objects."""
        return self.status()["storage_manager"]["l1_manager"]
