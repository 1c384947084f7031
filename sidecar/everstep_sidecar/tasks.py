"""Work that runs beside: a failure that nobody foresaw is logged and ends the process, never just the one part.

A sidecar that starts anew takes everything up from disk; one with a dead part would look alive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Tasks:
    """A set of tasks that end together."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self._on_failure = on_failure
        self._running: set[asyncio.Task[Any]] = set()

    def __bool__(self) -> bool:
        return bool(self._running)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run beside. Whoever waits for the result may; nobody has to."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def cancel(self) -> None:
        """End all, without waiting."""
        for task in self._running:
            task.cancel()

    async def close(self) -> None:
        """End all, and wait for it."""
        self.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a part of this sidecar failed, it starts anew: %r", error, exc_info=error)
            self._on_failure()
