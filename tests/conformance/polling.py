"""Waiting for what another thread or process brings about: poll, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE_SECONDS = 0.02


def until(condition: Callable[[], T], what: str, seconds: float = 20.0) -> T:
    """The first true value of `condition`; fails the test naming `what` when it stays false."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s in vain for: {what}"
        time.sleep(PAUSE_SECONDS)
