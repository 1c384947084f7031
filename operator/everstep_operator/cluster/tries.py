"""Calls that an action starts and that may fail, hang, or both: each in the background, one of a key at a time, each key with its own back-off.

A pass wishes the same actions again and again, as long as they are needed; what is not due is left out. Nothing here slows another key down.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from everstep_operator.cluster import tasks
from everstep_operator.cluster.backoff import Backoffs, Clock

Key = tuple[object, ...]

_log = logging.getLogger(__name__)

_FIRST_SECONDS = 1.0
_MOST_SECONDS = 30.0
_GAP_SECONDS = 1.0  # between two starts of what works, too: it may be wished in each pass
_MEMORY_SECONDS = 60.0  # what nobody wished for so long begins anew


class Failed(Exception):
    """It did not work; to be tried again after `first` seconds, then ever later, at most after `most`."""

    def __init__(self, message: str, *, first: float = _FIRST_SECONDS, most: float = _MOST_SECONDS) -> None:
        super().__init__(message)
        self.first = first
        self.most = most


class Tries:
    """All of one job. `wake` is called when one has ended."""

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._failing: Backoffs[Key] = Backoffs(clock, first=_FIRST_SECONDS, most=_MOST_SECONDS)
        self._started_at: dict[Key, float] = {}
        self._wished_at: dict[Key, float] = {}
        self.wished: set[Key] = set()  # in the newest pass

    def __len__(self) -> int:
        return max(len(self._running), len(self._failing), len(self._started_at), len(self._wished_at))

    def begin_pass(self) -> None:
        """Nothing is wished yet."""
        self.wished = set()

    def end_pass(self) -> None:
        """All was wished that is: forget what was not wished for a while."""
        horizon = self._clock.now() - _MEMORY_SECONDS
        kept = {key for key, at in self._wished_at.items() if at >= horizon} | set(self._running)
        self._failing.keep(kept)
        self._started_at = {key: at for key, at in self._started_at.items() if key in kept}
        self._wished_at = {key: at for key, at in self._wished_at.items() if key in kept}

    def seconds_to_next(self) -> float:
        """Until something that is wished and does not run may be started; infinite: nothing is."""
        return min((self.seconds_left(key) for key in self.wished), default=math.inf)

    def start(self, key: Key, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None] | None:
        """Begin, if it is due. `work` raises Failed where it did not work; any other error counts as that, and is logged."""
        self._wished_at[key] = self._clock.now()
        self.wished.add(key)
        if self.seconds_left(key) > 0:
            return None
        self._started_at[key] = self._clock.now()
        self._running[key] = tasks.start(self._run(key, work), " ".join(map(str, key)))
        return self._running[key]

    def seconds_left(self, key: Key) -> float:
        """Until it may be started, 0: now; infinite while it runs: its end wakes."""
        if key in self._running:
            return math.inf
        gap = self._started_at.get(key, -math.inf) + _GAP_SECONDS - self._clock.now()
        return max(0.0, gap, self._failing.seconds_left(key))

    def stop(self) -> None:
        """End everything that runs."""
        for task in self._running.values():
            task.cancel()

    async def _run(self, key: Key, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
            self._failing.succeed(key)
        except Failed as error:
            self._fail(key, error)
        except Exception as error:  # noqa: BLE001 - one call that goes wrong must not be tried without a pause, nor lost in silence
            _log.exception("%s failed", key[0])
            self._fail(key, Failed(str(error)))
        finally:
            self._running.pop(key, None)
            self._wake()

    def _fail(self, key: Key, error: Failed) -> None:
        self._started_at.pop(key, None)
        self._failing.fail(key, first=error.first, most=error.most)
