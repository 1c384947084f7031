"""How far one call into the storage has got. Whoever made the call may look at it from another thread while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Steps:
    """One call's newest step, and since when nothing has moved on: the storage has not returned from that step for so long."""

    def __init__(self) -> None:
        self.verb = "wait for"
        self.path: Path | None = None
        self._moved_at = time.monotonic()

    @property
    def age_seconds(self) -> float:
        """Since the last step began, or since a block of a long one was done."""
        return time.monotonic() - self._moved_at

    def begin(self, verb: str, path: Path) -> None:
        """A step begins: all before it is done."""
        self.verb, self.path = verb, path
        self._moved_at = time.monotonic()

    def advance(self) -> None:
        """The present step gets on."""
        self._moved_at = time.monotonic()


_watched: ContextVar[Steps | None] = ContextVar("_watched", default=None)


def run_watched(steps: Steps, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function of `store`; what it does in this thread is noted in `steps`."""
    token = _watched.set(steps)
    try:
        return function(*args, **kwargs)
    finally:
        _watched.reset(token)


def note(verb: str, path: Path) -> None:
    """Called by the layer that does the system calls, before each."""
    steps = _watched.get()
    if steps is not None:
        steps.begin(verb, path)


def note_block() -> None:
    """Called after each block of a long copy."""
    steps = _watched.get()
    if steps is not None:
        steps.advance()
