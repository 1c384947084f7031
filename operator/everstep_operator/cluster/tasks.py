"""Background tasks whose end by an exception is told, and the event loop's own lateness."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25
_MEMORY_SECONDS = 10.0


def start(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """A task that never fails in silence."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_tell)
    return task


async def end(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel and wait."""
    living = [task for task in tasks if task is not None]
    for task in living:
        task.cancel()
    await asyncio.gather(*living, return_exceptions=True)


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("%s ended: %s", task.get_name(), error, exc_info=error)


class LoopWatch:
    """How late the event loop was, worst of the last seconds: a late observer's timers count for nothing (R26)."""

    def __init__(self) -> None:
        self._lates: deque[tuple[float, float]] = deque()  # (when, how late)
        self.looked_at = time.monotonic()

    def late_seconds(self) -> float:
        """Worst of the last 10 s, the present stall included."""
        now = time.monotonic()
        recent = [late for at, late in self._lates if now - at <= _MEMORY_SECONDS]
        return max([*recent, now - self.looked_at - _LOOK_SECONDS, 0.0])

    async def run(self) -> None:
        """For ever."""
        while True:
            self.looked_at = before = time.monotonic()
            await asyncio.sleep(_LOOK_SECONDS)
            late = time.monotonic() - before - _LOOK_SECONDS
            if late > _LOOK_SECONDS:
                self._lates.append((time.monotonic(), late))
            while self._lates and time.monotonic() - self._lates[0][0] > _MEMORY_SECONDS:
                self._lates.popleft()
