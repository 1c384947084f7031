"""One counter that moves when something changed, and a way to wait for it: what long polls and held answers stand on."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable


class Changes:
    """Bump it on a change; wait for a condition over whatever changed. Only for the event loop's own thread."""

    def __init__(self) -> None:
        self._boot = uuid.uuid4().hex[:8]
        self._count = 0
        self._version = 0
        self._moved: asyncio.Event = asyncio.Event()

    @property
    def version(self) -> str:
        """Opaque; differs after each `bump`, and after a restart of this process."""
        return f"{self._boot}-{self._version}"

    def bump(self) -> None:
        """Something changed that a poll is worth."""
        self._version += 1
        self.stir()

    def stir(self) -> None:
        """Something changed inside: waiters look again, polls stay quiet."""
        self._count += 1
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def wait(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until the condition holds, at most `seconds`; gives whether it holds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    await self._moved.wait()
        return condition()
