#!/usr/bin/env python3
"""Forks client processes of one release, so that a new one costs milliseconds and not seconds.

Usage: client_nursery.py RELEASE PAGE SLOTS URL, with that release first in PYTHONPATH;
torture_clients.py is the other end of the pipe.

A line of standard input is "SLOT SEED": a client is forked that lives there. A line of JSON on
standard output is {"started": PID, "slot": SLOT} or {"ended": PID, "status": NUMBER}; the status is
negative for a signal. A client that found a fault prints it to standard error and ends with 1. The
end of standard input ends all.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import sys
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "conformance"), str(HERE.parent / "releases")]

import torch  # noqa: E402
from driver_process import die_with_parent  # noqa: E402
from release_client import ReleaseClient, load  # noqa: E402
from state_page import StatePage  # noqa: E402
from torture_life import TortureLife  # noqa: E402

torch.set_num_threads(1)

REAP_SECONDS = 0.02


def live(client: ReleaseClient, url: str, page: StatePage, slot: int, seed: int) -> int:
    """A client's whole life; its exit code."""
    die_with_parent()
    faulthandler.enable()
    try:
        TortureLife(client, url, page=page, slot=slot, seed=seed).live()
    except BaseException:  # whatever it is, the run must hear of it
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


def tell(**what: int) -> None:
    """One line to the run."""
    print(json.dumps(what), flush=True)


def bury() -> None:
    """Tell of the clients that have ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        tell(ended=pid, status=os.waitstatus_to_exitcode(status))


def orders() -> list[str] | None:
    """The lines that have come; None at the end."""
    if not select.select([0], [], [], REAP_SECONDS)[0]:
        return []
    read = os.read(0, 1 << 16)
    return read.decode().splitlines() if read else None


def main() -> None:
    release, path, slots, url = sys.argv[1:]
    client = load(release)
    page = StatePage(Path(path), int(slots))
    tell(started=os.getpid(), slot=-1)
    while (lines := orders()) is not None:
        for line in lines:
            slot, seed = map(int, line.split())
            pid = os.fork()
            if pid == 0:
                os._exit(live(client, url, page, slot, seed))
            tell(started=pid, slot=slot)
        bury()


if __name__ == "__main__":
    main()
