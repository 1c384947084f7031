"""R26: the observer doubts itself. How late this process's own event loop was."""

from __future__ import annotations

import asyncio
import time
from collections import deque

PERIOD_SECONDS = 0.25
WINDOW_SECONDS = 5.0


class LoopWatch:
    """Sleeps a short while again and again and measures by how much it woke late."""

    def __init__(self) -> None:
        self._late: deque[tuple[float, float]] = deque()
        self._due: float | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._due = time.monotonic() + PERIOD_SECONDS
            await asyncio.sleep(PERIOD_SECONDS)
            now = time.monotonic()
            self._late.append((now, now - self._due))
            while self._late[0][0] < now - WINDOW_SECONDS:
                self._late.popleft()

    def late_seconds(self) -> float:
        """The worst of the last seconds; a wake-up that is overdue right now counts."""
        overdue = time.monotonic() - self._due if self._due is not None else 0.0
        return max(0.0, overdue, *(late for _, late in self._late))
