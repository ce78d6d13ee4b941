"""LMCache's own server of the installed release, started and stopped like larder_server.py does.

Goal: something to compare with. Method: the module that `lmcache server` runs, on free loopback
ports, with a segment name of our own so that what it leaves behind can be told from other
people's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import polling
from larder_server import GIB, MIB, free_port

START_SECONDS = 240.0  # it imports torch first, which takes long on a busy machine
STOP_SECONDS = 30.0
# After a clean stop its HTTP server raises the signal again.
STOPPED_BY_SIGNAL = 128 + signal.SIGTERM


class ReferenceServer:
    """One process of LMCache's server; a `with` block starts and stops it."""

    def __init__(
        self, *, pool_mib: float = 16, chunk_tokens: int = 256, shared_memory: bool = True
    ) -> None:
        self.port = free_port()
        self.http_port = free_port()
        self.segment = (
            f"lmcache_l1_pool_reference_{os.getpid()}_{self.port}" if shared_memory else ""
        )
        self._pool_gib = int(pool_mib * MIB) / GIB
        self._chunk_tokens = chunk_tokens
        self._log = Path(tempfile.mkstemp(prefix="reference-", suffix=".log")[1])
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """The command line."""
        return [
            sys.executable, "-m", "lmcache.v1.multiprocess.http_server",
            "--host", "127.0.0.1",
            "--port", str(self.port),
            "--http-host", "127.0.0.1",
            "--http-port", str(self.http_port),
            "--prometheus-port", str(free_port()),
            "--l1-size-gb", repr(self._pool_gib),
            "--chunk-size", str(self._chunk_tokens),
            "--eviction-policy", "LRU",
            "--shm-name", self.segment,
        ]  # fmt: skip

    def start(self) -> ReferenceServer:
        """Start the process and wait until it serves; its HTTP port opens last."""
        environment = dict(os.environ, LMCACHE_DISABLE_BANNER="1")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, env=environment
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._healthy():
            code = self._process.poll()
            assert code is None, f"the reference ended with {code} at start:\n{self.log_text()}"
            assert time.monotonic() < deadline, f"the reference is not ready:\n{self.log_text()}"
            time.sleep(0.1)
        return self

    def _healthy(self) -> bool:
        url = f"http://127.0.0.1:{self.http_port}/healthcheck"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return int(answer.status) == 200
        except (urllib.error.URLError, OSError):
            return False

    def segment_path(self) -> Path:
        """Where its segment is while it runs; REQUIRES shared memory."""
        assert self.segment
        return Path("/dev/shm") / self.segment

    def log_text(self) -> str:
        """The end of what it printed."""
        return self._log.read_text(errors="replace")[-6000:]

    def stop(self) -> None:
        """Stop it in order; fails on another end than a signal's, or a segment left behind."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(STOP_SECONDS)
        assert code in (0, STOPPED_BY_SIGNAL, -signal.SIGTERM), f"code {code}:\n{self.log_text()}"
        # Its segment is removed by a process of its own, a moment later.
        polling.until(
            lambda: not self.segment or not self.segment_path().exists(), "no segment left"
        )

    def kill(self) -> None:
        """End it the hard way."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> ReferenceServer:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.stop()
        finally:
            self.kill()
            self._log.unlink(missing_ok=True)
