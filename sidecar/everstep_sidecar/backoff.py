"""The one way to wait between tries: falling off, so that no failure, of whatever call, makes a loop that never pauses."""

from __future__ import annotations

import asyncio
import random

FACTOR = 2.0


class Backoff:
    """Waits of `first`, twice that, and so on up to `most` seconds, each up to a quarter longer by chance. One for each thing that is tried."""

    def __init__(self, first: float = 0.2, most: float = 5.0) -> None:
        self._first = first
        self._most = most
        self._next = first

    async def pause(self) -> None:
        """Before the next try. `first` is a fifth of a second or more: five tries a second is the most that anything bears for ever."""
        await asyncio.sleep(self.take())

    def take(self) -> float:
        """Seconds that the next wait takes; the one after it takes longer."""
        seconds = self._next * random.uniform(1.0, 1.25)
        self._next = min(self._most, self._next * FACTOR)
        return seconds

    @property
    def has_paused(self) -> bool:
        """Whether this is not the first failure in a row."""
        return self._next != self._first

    def reset(self) -> None:
        """It went well: the next failure begins with the shortest wait again."""
        self._next = self._first
