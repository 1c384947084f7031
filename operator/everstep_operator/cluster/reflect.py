"""A cache of one kind of object, kept by list and watch: trimmed records, and a call for each change, disappearances included.

A re-list tells what vanished meanwhile, which a watch alone never does. Silence beyond a bound ends the watch: a stream may be
dead without being closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from everstep_operator.cluster.backoff import Backoff, Clock
from everstep_operator.cluster.client import ApiError, Busy, Client, Gone, Params, Raw, Unavailable, error_of

_log = logging.getLogger(__name__)

_INACTIVITY_SECONDS = 90.0  # bookmarks come about once a minute
_SERVER_SECONDS = 300
_PAUSE_SECONDS = (0.2, 2.0)  # after a list or a watch that failed: first, longest
_WHOLE_SECONDS = 5.0  # a watch that lived so long was one, however it ended


class Record(Protocol):
    """What is kept of an object."""

    @property
    def uid(self) -> str: ...


R = TypeVar("R", bound=Record)


class Reflector(Generic[R]):
    """`items` by UID. `trim(object, the record before, monotonic now)` makes a record; `on_change(before, after)` hears of each."""

    def __init__(
        self,
        client: Client,
        path: str,
        trim: Callable[[Raw, R | None, float], R],
        on_change: Callable[[R | None, R | None], None],
        *,
        label_selector: str = "",
        inactivity_seconds: float = _INACTIVITY_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._clock = clock or Clock()
        self._path = path
        self._trim = trim
        self._on_change = on_change
        self._params: Params = {"labelSelector": label_selector} if label_selector else {}
        self._inactivity_seconds = inactivity_seconds
        self.items: dict[str, R] = {}
        self.synced = asyncio.Event()
        self._version = ""  # to watch from; empty: list first
        self._heard_at = time.monotonic()

    def silent_seconds(self) -> float:
        """Since the last event, bookmark or list: liveness says so when it grows too large (B38)."""
        return time.monotonic() - self._heard_at

    async def run(self) -> None:
        """For ever: list, watch, and again; never raises but on cancellation."""
        backoff = Backoff(self._clock, first=_PAUSE_SECONDS[0], most=_PAUSE_SECONDS[1])
        while True:
            began = self._clock.now()
            error: Exception | None = None
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except (ApiError, Unavailable) as caught:
                error = caught
                if isinstance(error, ApiError) and not isinstance(error, Busy):
                    self._version = ""
            if self._clock.now() - began >= _WHOLE_SECONDS:
                backoff.succeed()
                if error is None or isinstance(error, Gone):
                    continue
            asked = error.retry_seconds if isinstance(error, ApiError) else 0.0
            pause = asked + backoff.fail() * random.uniform(0.75, 1.25)
            level = logging.WARNING if backoff.failures % 10 == 5 else logging.DEBUG
            _log.log(level, "%s is not seen: %s; again in %.1f s", self._path, error or "the watch ends at once", pause)
            await self._clock.sleep(pause)

    async def _list(self) -> None:
        seen: dict[str, R] = {}
        version = ""
        async for page in self._client.list_pages(self._path, self._params):
            version = str(page["metadata"]["resourceVersion"])
            now = time.monotonic()
            for raw in page.get("items") or []:
                uid = str(raw["metadata"]["uid"])
                record = self._read(raw, self.items.get(uid), now)
                if record is not None:
                    seen[uid] = record
        self._replace(seen)
        self._version = version
        self._heard_at = time.monotonic()
        self.synced.set()

    def _replace(self, seen: dict[str, R]) -> None:
        for uid in [uid for uid in self.items if uid not in seen]:
            self._on_change(self.items.pop(uid), None)
        for uid, record in seen.items():
            before = self.items.get(uid)
            self.items[uid] = record
            if before != record:
                self._on_change(before, record)

    async def _watch(self) -> None:
        """Until the server ends it. A watch that is refused, broken or silent raises."""
        params = {**self._params, "resourceVersion": self._version, "timeoutSeconds": str(_SERVER_SECONDS)}
        async for event in self._client.watch(self._path, params, self._inactivity_seconds):
            self._heard_at = time.monotonic()
            if event["type"] == "ERROR":
                raise error_of(int(event["object"].get("code") or 500), json.dumps(event["object"]).encode())
            self._take(event["type"], event["object"])
            self._version = str(event["object"]["metadata"]["resourceVersion"])

    def _take(self, kind: str, raw: Raw) -> None:
        if kind == "BOOKMARK":
            return
        uid = str(raw["metadata"]["uid"])
        before = self.items.get(uid)
        if kind == "DELETED":
            gone = self.items.pop(uid, None)
            if gone is not None:
                self._on_change(gone, None)
            return
        record = self._read(raw, before, time.monotonic())
        if record is not None and record != before:
            self.items[uid] = record
            self._on_change(before, record)

    def _read(self, raw: Raw, before: R | None, now: float) -> R | None:
        """One object that cannot be read must not stop those who look after all others: what was known of it stays."""
        try:
            return self._trim(raw, before, now)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            name = raw["metadata"].get("name")
            _log.error("%s: object %s cannot be read, what it was before counts: %r", self._path, name, error)
            return before
