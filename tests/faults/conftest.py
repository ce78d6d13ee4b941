"""Fault tests; they share server process, raw frames and engines with the conformance tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "conformance"))

from server_fixtures import (  # noqa: E402,F401
    pytest_runtest_makereport,
    pytest_sessionfinish,
    pytest_sessionstart,
)
