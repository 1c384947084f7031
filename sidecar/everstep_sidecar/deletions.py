"""What is to be deleted on storage: each thing on its own, again and again until it is gone, and told where it stays."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from everstep_protocol.messages import Trouble

from everstep_sidecar.backoff import Backoff
from everstep_sidecar.store import failures, listing
from everstep_sidecar.tasks import Tasks

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 60.0
TOLD_FROM = 3  # failures in a row
NUM_AT_ONCE = 2  # the rest of the storage's threads are for saves
REASON = "DeletionFails"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stays:
    """Something that could not be deleted."""

    where: str
    words: str  # the error's
    count: int  # failures in a row
    since: float  # monotonic seconds of the first


class Deletions:
    """`on_change` is called when what `failure` says has changed."""

    def __init__(self, on_failure: Callable[[], None], *, on_change: Callable[[], None]) -> None:
        self._tasks = Tasks(on_failure)
        self._on_change = on_change
        self._lanes = asyncio.Semaphore(NUM_AT_ONCE)
        self._under_way: set[str] = set()
        self._staying: dict[str, Stays] = {}

    def begin(
        self,
        name: str,
        where: Path,
        delete: Callable[[], Awaitable[None]],
        *,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Delete, until `delete` raises no OSError any more, or it is not wanted any more. One that is under way goes on."""
        if name not in self._under_way:
            self._under_way.add(name)
            self._tasks.spawn(self._insist(name, where, delete, is_wanted))

    def failure(self) -> Trouble | None:
        """What has stayed for some tries, the oldest first."""
        told = [stays for stays in self._staying.values() if stays.count >= TOLD_FROM]
        if not told:
            return None
        oldest = min(told, key=lambda stays: stays.since)
        message = (
            f"{oldest.where} cannot be deleted: {oldest.words}. Training and saving go on, but its room is not free: end "
            "what holds it (an open file, a mount), or give the right to delete it; it is tried again"
        )
        return Trouble(REASON, message, time.monotonic() - oldest.since)

    def close(self) -> None:
        """Nothing further is deleted."""
        self._tasks.cancel()

    async def _insist(
        self, name: str, where: Path, delete: Callable[[], Awaitable[None]], is_wanted: Callable[[], bool]
    ) -> None:
        backoff = Backoff(FIRST_SECONDS, LONGEST_SECONDS)
        while is_wanted():
            try:
                async with self._lanes:
                    await delete()
            except OSError as error:
                self._note(name, where, error)
            else:
                break
            await backoff.pause()
        self._under_way.discard(name)
        if self._staying.pop(name, None) is not None:
            self._on_change()

    def _note(self, name: str, where: Path, error: OSError) -> None:
        before = self.failure()
        first = Stays(_place(error, where), failures.words_of(error), 0, time.monotonic())
        known = self._staying.get(name, first)
        self._staying[name] = replace(known, count=known.count + 1)
        if known is first:
            _log.warning("%s cannot be deleted, it will be tried again: %s", where, error)
        if (before is None) != (self.failure() is None):
            self._on_change()


def _place(error: OSError, where: Path) -> str:
    """The very file that stays, where the error says it: that is what a person has to look at."""
    named = Path(str(error.filename)) if error.filename else where
    return str(where if named.name.startswith(listing.PROBE_PREFIX) else named)
