"""Pytest hooks of the conformance and fault tests: logs of failed tests, a guard against hangs."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator

import larder_server
import pytest

# The client logs every registration at INFO; a failed test should show the server's words.
os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
os.environ.setdefault("OMP_NUM_THREADS", "1")

HANG_SECONDS = 280.0
LOG_CHARACTERS = 6000


def pytest_sessionstart() -> None:
    """A dead receive loop of the real client blocks for ever; end such a run with a traceback."""
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)


def pytest_sessionfinish() -> None:
    """The run ended in time. Servers of fixtures that never came to their end are ended here."""
    faulthandler.cancel_dump_traceback_later()
    for server in list(larder_server.running):
        server.kill()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, object, None]:
    """Attach the end of each running server's log to the report of a failed test."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        for server in larder_server.running:
            text = server.log_text()[-LOG_CHARACTERS:]
            report.sections.append((f"larder on port {server.port}", text))
