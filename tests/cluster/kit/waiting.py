"""Waiting for conditions, with what was seen last in the message when they do not come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.25


def wait_until(
    what: str,
    look: Callable[[], T | None],
    *,
    hang_seconds: float,
    seen: Callable[[], object] | None = None,
    poll_seconds: float = POLL_SECONDS,
) -> T:
    """The first true value of `look`. Raises AssertionError after `hang_seconds`, saying what `seen` shows then."""
    deadline = time.monotonic() + hang_seconds
    while True:
        value = look()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {hang_seconds:.0f} s: {what}\nlast seen: {seen() if seen else value}")
        time.sleep(poll_seconds)
