"""Client processes that a test can kill.

Goal: real client classes in processes of their own, without importing torch anew for each
(several seconds).
Method: fork, then give the child a ZeroMQ context and a client receive loop of its own; it
reports over a pipe.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from lmcache.v1.multiprocess import mq

REPORT_SECONDS = 60.0

_fork = multiprocessing.get_context("fork")


class Child:
    """One forked client process running `body(pipe, *arguments)`."""

    def __init__(self, body: Callable[..., None], *arguments: Any) -> None:
        self._pipe, theirs = _fork.Pipe()
        self._process = _fork.Process(target=_run, args=(theirs, body, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def report(self, seconds: float = REPORT_SECONDS) -> Any:
        """What the child sent next; its failure is the test's."""
        assert self._pipe.poll(seconds), "the child process says nothing"
        kind, value = self._pipe.recv()
        assert kind == "report", f"the child process failed:\n{value}"
        return value

    def tell(self, value: Any) -> None:
        """Send the child something."""
        self._pipe.send(value)

    def kill(self) -> None:
        """kill -9, and wait until the process is gone."""
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGKILL)
        self.join()

    def join(self) -> None:
        """Wait for the end."""
        self._process.join(REPORT_SECONDS)
        assert not self._process.is_alive()


class Reporter:
    """The child's end of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def report(self, value: Any) -> None:
        """Tell the test something."""
        self._pipe.send(("report", value))

    def wait(self) -> Any:
        """Wait for the test's next word."""
        return self._pipe.recv()


def _run(pipe: Connection, body: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    mq.ClientPollingLoop._instance = None
    mq.ClientPollingLoop._instance_lock = threading.Lock()
    try:
        body(Reporter(pipe), *arguments)
    except BaseException:  # whatever it is, the test must hear of it
        pipe.send(("failure", traceback.format_exc()))
    finally:
        os._exit(0)  # the parent's sockets and fixtures are not ours to close
