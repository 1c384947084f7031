"""Background tasks that never end in silence, and the event loop's own lateness."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from everstep_operator.cluster.backoff import Backoff, Clock

_log = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_SECONDS = 0.25
_MEMORY_SECONDS = 10.0
_AGAIN_SECONDS = (1.0, 30.0)


class Died(Exception):
    """A task that the whole process cannot do without ended by an exception."""


def start(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """A task of which an exception is at least logged. For work that is wished again by whoever needs it."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_tell)
    return task


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. Raises asyncio.TimeoutError when it takes longer.

    Unlike `asyncio.wait_for` of Python before 3.12 it never swallows that the caller is cancelled while the work ends.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()


def keep_running(work: Callable[[], Coroutine[Any, Any, None]], name: str, clock: Clock) -> asyncio.Task[None]:
    """A task of one job: where it ends by an exception it is begun again, ever later."""

    async def run() -> None:
        backoff = Backoff(clock, first=_AGAIN_SECONDS[0], most=_AGAIN_SECONDS[1])
        while True:
            began = clock.now()
            try:
                return await work()
            except Exception:  # noqa: BLE001 - whatever it is, the job must not be left without it
                if clock.now() - began > _AGAIN_SECONDS[1]:
                    backoff.succeed()
                pause = backoff.fail()
                _log.exception("%s failed; it begins again in %g s", name, pause)
                await clock.sleep(pause)

    return start(run(), name)


class Vital:
    """Tasks that the process cannot do without: one that ends by an exception ends it, and the pod is started anew."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._died: asyncio.Queue[Died] = asyncio.Queue()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run it until `end`."""
        task = start(work, name)
        task.add_done_callback(self._look)
        self._tasks.append(task)

    async def watch(self) -> None:
        """Raises Died when one has; never returns."""
        raise await self._died.get()

    async def end(self) -> None:
        """Cancel all and wait."""
        await end(*self._tasks)

    def _look(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            died = Died(f"{task.get_name()} ended: {error!r}")
            died.__cause__ = error
            self._died.put_nowait(died)


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
