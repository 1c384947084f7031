"""A clock that tests turn by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from everstep_operator.cluster.backoff import Clock


class HandClock(Clock):
    """Time passes where somebody sleeps, and not otherwise."""

    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)

    async def wait_for_tasks(self, tasks: Collection[asyncio.Task[None]], seconds: float) -> None:
        await super().wait_for_tasks(tasks, 0.01)
