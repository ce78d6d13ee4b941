"""The other end of driver.py: client processes of several releases, told what to do by a test.

Goal: real clients of all releases at once; this side imports neither lmcache nor torch.
Method: each release in a process of its own, started with its folder of `build/clients` in
PYTHONPATH (0.5.2 is the one of the environment). LARDER_CLIENTS names another folder. A request is
one line of JSON, and so is its answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from prompts import Prompt

HERE = Path(__file__).resolve().parent
RELEASES = ("0.4.7", "0.5.2", "0.5.4", "0.5.6")
INSTALLED = "0.5.2"

# A call has 20 s for each request that it makes; this is for a process that hangs.
ANSWER_SECONDS = 60.0
START_SECONDS = 120.0
LOG_CHARACTERS = 4000

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def die_with_parent() -> None:
    """Runs in a new process: a run that is cut off must leave no clients behind."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def client_folder(release: str) -> Path:
    """Where scripts/bootstrap_clients.sh puts a release."""
    beside_the_environment = Path(sys.prefix).parent / "clients"
    return Path(os.environ.get("LARDER_CLIENTS", beside_the_environment)) / release


def client_environment(release: str) -> dict[str, str]:
    """The environment of a process in which `import lmcache` finds a release."""
    environment = {
        **os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    environment.pop("PYTHONPATH", None)
    if release != INSTALLED:
        folder = client_folder(release)
        assert (folder / "lmcache").is_dir(), f"{folder} is missing: scripts/bootstrap.sh test"
        environment["PYTHONPATH"] = str(folder)
    return environment


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if isinstance(value, Prompt) else value


class DriverFailure(AssertionError):
    """What went wrong in the driver's process."""


class Driver:
    """One client process."""

    def __init__(self, release: str) -> None:
        self.release = release
        self.usable = True
        self._holds_objects = False
        self._names = (f"{number}" for number in itertools.count(1))
        self._log = tempfile.NamedTemporaryFile(prefix=f"client-{release}-", suffix=".log")
        self._buffer = b""
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "driver.py"), release],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=client_environment(release),
            preexec_fn=die_with_parent,
        )

    def wait_ready(self) -> None:
        """Return when the client is imported; fails when it is another release."""
        folder = self._answer(START_SECONDS)
        if self.release != INSTALLED:
            assert folder == str(client_folder(self.release) / "lmcache"), folder

    def send(self, method: str, on: str | None = None, /, **arguments: Any) -> None:
        """Send a request; `answer` takes what comes back."""
        plain = {name: _plain(value) for name, value in arguments.items()}
        line = json.dumps({"do": method, "on": on, "with": plain}) + "\n"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail("is gone")

    def answer(self, seconds: float = ANSWER_SECONDS) -> Any:
        """The value of the oldest request that was sent; its failure is the test's."""
        return self._answer(seconds)

    def call(self, method: str, on: str | None = None, /, **arguments: Any) -> Any:
        """Send and wait."""
        self.send(method, on, **arguments)
        return self.answer()

    def open(self, kind: str, url: str, **options: Any) -> str:
        """Make an object in the driver; its name."""
        name = f"{kind}-{next(self._names)}"
        self._holds_objects = True
        self.call("open", kind=kind, name=name, options={"url": url, **options})
        return name

    def worker(self, url: str, **options: Any) -> RemoteWorker:
        """An engine worker."""
        return RemoteWorker(self, self.open("Worker", url, **options))

    def memory_worker(self, url: str, **options: Any) -> RemoteMemoryWorker:
        """An engine worker whose memory the server reads."""
        return RemoteMemoryWorker(self, self.open("MemoryWorker", url, **options))

    def scheduler(self, url: str, **options: Any) -> RemoteScheduler:
        """An engine scheduler."""
        return RemoteScheduler(self, self.open("Scheduler", url, **options))

    def adapter_engine(self, url: str, **options: Any) -> RemoteAdapterEngine:
        """A scheduler adapter and a worker adapter."""
        return RemoteAdapterEngine(self, self.open("AdapterEngine", url, **options))

    def reset(self) -> None:
        """Close everything that a test left open."""
        if self._holds_objects:
            self.call("reset")
        self._holds_objects = False

    def abandon(self) -> None:
        """After a failure: whatever it holds, it is not asked to close it."""
        if self._holds_objects:
            self.kill()

    def kill(self) -> None:
        """kill -9."""
        self.usable = False
        self._holds_objects = False
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._log.close()

    def close(self) -> None:
        """End the process in order."""
        if self.usable and self._process.stdin is not None:
            self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ANSWER_SECONDS)
        self.kill()

    def _answer(self, seconds: float) -> Any:
        answer = json.loads(self._line(seconds))
        if "error" in answer:
            # What the process holds is unknown now; the next test gets a fresh one.
            self._fail(f"failed:\n{answer['error']}")
        return answer["value"]

    def _line(self, seconds: float) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                self._fail(f"says nothing for {seconds} s")
            read = os.read(self._process.stdout.fileno(), 1 << 16)
            if not read:
                self._fail("ended")
            self._buffer += read
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _fail(self, what: str) -> None:
        self.usable = False
        log = Path(self._log.name).read_text(errors="replace")[-LOG_CHARACTERS:]
        raise DriverFailure(f"the client process of {self.release} {what}\n{log}")


class Remote:
    """An object in a driver; its methods are those of the class in workers.py or adapters.py."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver, self._name = driver, name

    def _call(self, method: str, /, **arguments: Any) -> Any:
        return self._driver.call(method, self._name, **arguments)


class RemoteWorker(Remote):
    """workers.Worker."""

    def register(self) -> None:
        self._call("register")

    def unregister(self) -> None:
        self._call("unregister")

    @property
    def instance_id(self) -> int:
        return int(self._call("identity"))

    @property
    def uses_shm(self) -> bool:
        return bool(self._call("uses_shm"))

    def ping(self) -> bool:
        return bool(self._call("ping"))

    def store(self, prompt: Prompt, first: int, last: int) -> bool:
        return bool(self._call("store", prompt=prompt, first=first, last=last))

    def retrieve(self, prompt: Prompt, first: int, last: int) -> bool:
        return bool(self._call("retrieve", prompt=prompt, first=first, last=last))

    def open_store(self, prompt: Prompt, first: int, last: int) -> None:
        self._call("open_store", prompt=prompt, first=first, last=last)

    def open_retrieve(self, prompt: Prompt, first: int, last: int) -> bool:
        return bool(self._call("open_retrieve", prompt=prompt, first=first, last=last))

    def leave(self, *, unregister: bool = True) -> None:
        self._call("leave", unregister=unregister)


class RemoteMemoryWorker(Remote):
    """memory_worker.MemoryWorker."""

    def register(self) -> None:
        self._call("register")

    @property
    def instance_id(self) -> int:
        return int(self._call("identity"))

    def ping(self) -> bool:
        return bool(self._call("ping"))

    def store(self, prompt: Prompt, first: int, last: int, **how: int) -> bool:
        return bool(self._call("store", prompt=prompt, first=first, last=last, **how))

    def submit_store(self, prompt: Prompt, first: int, last: int, lists: list[list[int]]) -> bool:
        told = {"prompt": prompt, "first": first, "last": last, "lists": lists}
        return bool(self._call("submit_store", **told))

    def retrieve(self, prompt: Prompt, first: int, last: int, skip_tokens: int = 0) -> bool:
        told = {"prompt": prompt, "first": first, "last": last, "skip_tokens": skip_tokens}
        return bool(self._call("retrieve", **told))

    def miss(self, prompt: Prompt, first: int, last: int, lists: list[list[int]]) -> bool:
        told = {"prompt": prompt, "first": first, "last": last, "lists": lists}
        return bool(self._call("miss", **told))

    def has_only(self, byte: int) -> bool:
        return bool(self._call("has_only", byte=byte))

    def leave(self, *, unregister: bool = True) -> None:
        self._call("leave", unregister=unregister)


class RemoteScheduler(Remote):
    """workers.Scheduler."""

    def lookup(self, prompt: Prompt, end: int | None = None) -> int:
        return int(self._call("lookup", prompt=prompt, end=end))

    def submit_lookup(self, prompt: Prompt) -> None:
        self._call("submit_lookup", prompt=prompt)

    def query(self, request_id: str) -> int | None:
        answer: int | None = self._call("query", request_id=request_id)
        return answer

    def wait(self, request_id: str, seconds: float) -> int | None:
        answer: int | None = self._call("wait", request_id=request_id, seconds=seconds)
        return answer

    def expected_hits(self, request_id: str) -> int | None:
        answer: int | None = self._call("expected_hits", request_id=request_id)
        return answer

    def hits(self, prompt: Prompt) -> int:
        return int(self._call("hits", prompt=prompt))

    def free(self, prompt: Prompt, start: int = 0, end: int | None = None) -> None:
        self._call("free", prompt=prompt, start=start, end=end)

    def end(self, prompt: Prompt) -> None:
        self._call("end", prompt=prompt)

    def ping(self) -> bool:
        return bool(self._call("ping"))

    def clear(self, *, force: bool = False) -> None:
        self._call("clear", force=force)

    def noop(self) -> str:
        return str(self._call("noop"))

    def experimental(self) -> list[str]:
        return list(self._call("experimental"))

    def report_blocks(self) -> None:
        self._call("report_blocks")

    def blend_coverage(self, prompt: Prompt) -> dict[str, Any]:
        return dict(self._call("blend_coverage", prompt=prompt))

    def blend_handshake(self, version: int) -> list[Any]:
        return list(self._call("blend_handshake", version=version))

    def subscribe(self) -> list[Any]:
        return list(self._call("subscribe"))

    def call_module(self, method: str) -> dict[str, Any]:
        return dict(self._call("call_module", method=method))

    def leave(self) -> None:
        self._call("leave")


class RemoteAdapterEngine(Remote):
    """adapters.AdapterEngine."""

    @property
    def instance_id(self) -> int:
        return int(self._call("identity"))

    @property
    def healthy(self) -> bool:
        return bool(self._call("healthy"))

    def experimental(self) -> list[str]:
        return list(self._call("experimental"))

    def lookup(self, prompt: Prompt) -> int:
        return int(self._call("lookup", prompt=prompt))

    def store(self, prompt: Prompt, first: int, last: int) -> bool:
        return bool(self._call("store", prompt=prompt, first=first, last=last))

    def retrieve(self, prompt: Prompt, first: int, last: int) -> bool:
        return bool(self._call("retrieve", prompt=prompt, first=first, last=last))

    def free(self, prompt: Prompt, start: int, end: int) -> None:
        self._call("free", prompt=prompt, start=start, end=end)

    def finish(self, prompt: Prompt) -> None:
        self._call("finish", prompt=prompt)

    def round_trip(self, prompt: Prompt, chunks: int) -> None:
        self._call("round_trip", prompt=prompt, chunks=chunks)

    def leave(self) -> None:
        self._call("leave")


class Drivers:
    """One driver per release, started together, replaced after a failure."""

    def __init__(self) -> None:
        self._running = {release: Driver(release) for release in RELEASES}
        for driver in self._running.values():
            driver.wait_ready()

    def of(self, release: str) -> Driver:
        """A driver that holds nothing yet."""
        driver = self._running[release]
        if not driver.usable:
            driver.kill()
            driver = self._running[release] = Driver(release)
            driver.wait_ready()
        return driver

    def reset(self) -> None:
        """After a test: close what it left open."""
        for driver in self._running.values():
            if driver.usable:
                driver.reset()

    def abandon(self) -> None:
        """After a test that failed: what it left open goes with the processes."""
        for driver in self._running.values():
            driver.abandon()

    def close(self) -> None:
        """End all."""
        for driver in self._running.values():
            driver.close()
