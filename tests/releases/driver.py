#!/usr/bin/env python3
"""A process that runs one release's client and does what it is told, a line of JSON at a time.

Usage: driver.py RELEASE, with that release first in PYTHONPATH; driver_process.py is the other
end of the pipe.

A request is {"do": METHOD, "on": NAME or null, "with": {ARGUMENT: VALUE}}; on null, METHOD is
`open` (makes an object of one of CLASSES under a name) or `reset` (closes all). The answer is
{"value": ...} or {"error": TRACEBACK}. Values named `prompt` and `layout` are turned into those
types. What the client prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "conformance")]

import lmcache  # noqa: E402
import torch  # noqa: E402
from kv import KvLayout  # noqa: E402
from prompts import Prompt  # noqa: E402
from release_client import ReleaseClient, load  # noqa: E402

torch.set_num_threads(1)


def classes() -> dict[str, Any]:
    """What `open` can make; imported late, because they import the release."""
    from adapters import AdapterEngine
    from memory_worker import MemoryWorker
    from soak_workload import SoakWorkload
    from workers import Scheduler, Worker

    return {kind.__name__: kind for kind in (Worker, MemoryWorker, Scheduler, AdapterEngine, SoakWorkload)}


def argument(name: str, value: Any) -> Any:
    """A value as the methods want it."""
    if name == "prompt":
        return Prompt(**value)
    if name == "layout":
        return KvLayout(**{**value, "dtype": getattr(torch, value.get("dtype", "bfloat16"))})
    return value


class Driver:
    """The objects made so far, by name."""

    def __init__(self, client: ReleaseClient) -> None:
        self._client = client
        self._classes = classes()
        self._objects: dict[str, Any] = {}

    def perform(self, request: dict[str, Any]) -> Any:
        """One request; its value."""
        arguments = {name: argument(name, value) for name, value in request["with"].items()}
        if request["on"] is not None:
            return getattr(self._objects[request["on"]], request["do"])(**arguments)
        if request["do"] == "open":
            return self.open(**arguments)
        assert request["do"] == "reset"
        return self.reset()

    def open(self, kind: str, name: str, options: dict[str, Any]) -> None:
        """Make an object."""
        converted = {key: argument(key, value) for key, value in options.items()}
        self._objects[name] = self._classes[kind](self._client, **converted)

    def reset(self) -> None:
        """Close everything in reverse order."""
        while self._objects:
            _, closing = self._objects.popitem()
            closing.leave()

    def forget(self, name: str) -> None:
        """An object closed itself."""
        self._objects.pop(name, None)


def serve(release: str, answers: TextIO) -> None:
    """Answer requests until the other end is gone."""
    driver = Driver(load(release))
    answers.write(json.dumps({"value": str(Path(lmcache.__file__).parent)}) + "\n")
    answers.flush()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"value": driver.perform(request)}
            if request["do"] == "leave":
                driver.forget(request["on"])
        except BaseException:  # whatever it is, the test must hear of it
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.argv[1], answers)
    os._exit(0)  # sockets and threads of a test that failed must not hold up the end


if __name__ == "__main__":
    main()
