"""How long to wait after what failed, and how often anything may be done at all: the one place for pauses that grow.

All times come from a `Clock`, so that a test can let minutes pass in a second.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Clock:
    """Monotonic time, and ways to let it pass."""

    def now(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Let it pass."""
        await asyncio.sleep(seconds)

    async def wait_for_tasks(self, tasks: Collection[asyncio.Task[None]], seconds: float) -> None:
        """Until all of them have ended, at most so long."""
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Until the event is set, at most so long. Unlike `asyncio.wait_for` it never swallows that the caller is cancelled."""
        waiting = asyncio.create_task(_until_set(event))
        try:
            await self.wait_for_tasks([waiting], seconds)
        finally:
            waiting.cancel()


async def _until_set(event: asyncio.Event) -> None:
    await event.wait()


class Backoff:
    """Something that fails is tried again after `first` seconds, then after twice as many, at most after `most`."""

    def __init__(self, clock: Clock, *, first: float, most: float) -> None:
        self._clock = clock
        self._first = first
        self._most = most
        self._again_at = -float("inf")
        self.failures = 0  # in a row

    def fail(self, *, first: float | None = None, most: float | None = None) -> float:
        """It failed once more. Returns the seconds until it may be tried again; `first` and `most` stand for this failure."""
        least, limit = self._first if first is None else first, self._most if most is None else most
        pause = min(least * 2.0 ** min(self.failures, 30), limit)
        self.failures += 1
        self._again_at = self._clock.now() + pause
        return pause

    def succeed(self) -> None:
        """It worked: the next failure is a first one."""
        self.failures = 0
        self._again_at = -float("inf")

    def seconds_left(self) -> float:
        """Until it may be tried, 0: now."""
        return max(0.0, self._again_at - self._clock.now())


class Backoffs(Generic[K]):
    """One `Backoff` a key, for those keys that fail."""

    def __init__(self, clock: Clock, *, first: float, most: float) -> None:
        self._make: Callable[[], Backoff] = lambda: Backoff(clock, first=first, most=most)
        self._failing: dict[K, Backoff] = {}

    def __len__(self) -> int:
        return len(self._failing)

    def fail(self, key: K, *, first: float | None = None, most: float | None = None) -> int:
        """It failed once more. Returns how often in a row."""
        backoff = self._failing.setdefault(key, self._make())
        backoff.fail(first=first, most=most)
        return backoff.failures

    def succeed(self, key: K) -> None:
        """It worked, or is not wanted any more."""
        self._failing.pop(key, None)

    def seconds_left(self, key: K) -> float:
        """Until it may be tried, 0: now."""
        return self._failing[key].seconds_left() if key in self._failing else 0.0

    def keep(self, keys: set[K]) -> None:
        """Forget all others."""
        self._failing = {key: backoff for key, backoff in self._failing.items() if key in keys}


class Rate:
    """At most `most` starts within any second; those after the first `free` of them are spread, so that none has to wait long."""

    def __init__(self, clock: Clock, *, most: int = 5, free: int = 2) -> None:
        self._clock = clock
        self._most = most
        self._free = free
        self._starts: deque[float] = deque(maxlen=most)

    def start(self) -> None:
        """One begins now."""
        self._starts.append(self._clock.now())

    def seconds_left(self, spare: int = 0) -> float:
        """Until one may begin, 0: now. `spare`: how many of a second's starts are left to others that matter more."""
        now, most = self._clock.now(), self._most - spare
        recent = [at for at in self._starts if now - at < 1.0]
        if len(recent) < min(self._free, most):
            return 0.0
        spread = recent[-1] + 1.0 / (self._most - 1) if self._free < self._most else now
        oldest = recent[-most] + 1.0 if len(recent) >= most else now
        return max(0.0, spread - now, oldest - now)

    async def wait(self) -> None:
        """Until one may begin; it begins."""
        while (left := self.seconds_left()) > 0:
            await self._clock.sleep(left)
        self.start()
