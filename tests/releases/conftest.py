"""Tests with clients of several releases: their processes, and the larder they share."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "conformance"))

from driver_process import Driver, Drivers  # noqa: E402
from larder_server import LarderServer  # noqa: E402
from server_fixtures import (  # noqa: E402,F401
    pytest_runtest_makereport,
    pytest_sessionfinish,
    pytest_sessionstart,
)
from server_state import CHUNK  # noqa: E402


@pytest.fixture(scope="session")
def processes() -> Iterator[Drivers]:
    """A client process of each release."""
    drivers = Drivers()
    yield drivers
    drivers.close()


@pytest.fixture
def drivers(processes: Drivers, request: pytest.FixtureRequest) -> Iterator[Drivers]:
    """The client processes; what a test leaves open in them is closed."""
    failed = request.session.testsfailed
    yield processes
    if request.session.testsfailed > failed:
        processes.abandon()
    else:
        processes.reset()


@pytest.fixture
def client(drivers: Drivers, release: str) -> Driver:
    """The client of the release that the test is about."""
    return drivers.of(release)


@pytest.fixture(scope="module")
def shared_pool() -> Iterator[LarderServer]:
    """A server that offers its pool as shared memory."""
    with LarderServer(chunk_tokens=CHUNK, pool_mib=16) as server:
        yield server


@pytest.fixture(scope="module")
def private_pool() -> Iterator[LarderServer]:
    """A server without shared memory: copies only."""
    with LarderServer("--shm-name", "", chunk_tokens=CHUNK, pool_mib=16) as server:
        yield server
