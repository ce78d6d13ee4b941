"""Conformance tests: see README.md."""

from server_fixtures import (  # noqa: F401
    pytest_runtest_makereport,
    pytest_sessionfinish,
    pytest_sessionstart,
)
