"""Requests to sidecars that an action starts and whose results come later: prepare, announce, leave. One of a kind at a time.

Results are kept for the attempt that they belong to, and wake the actor; after a restart of the operator they are asked for again,
which is safe: each is idempotent (R4).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from everstep_protocol.messages import Ack, LeaveRequest, Peer, PrepareAnswer
from everstep_protocol.messages import Announce as AnnounceMessage

from everstep_operator.cluster import tasks
from everstep_operator.cluster.sidecars import Refusing, Rejected, SidecarClient, Silent
from everstep_operator.core.model import Announce, AskLeave, LeavePurpose, Prepare

_log = logging.getLogger(__name__)

_PREPARE_SECONDS = 30.0
_SHORT_SECONDS = 3.0
_AGAIN_SECONDS = 1.0

Key = tuple[object, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Prepared:
    """An answer to prepare, and when it came."""

    answer: PrepareAnswer
    at: float


class Errands:
    """Background requests of one job."""

    def __init__(self, client: SidecarClient, job_uid: str, wake: Callable[[], None]) -> None:
        self._client = client
        self._job_uid = job_uid
        self._wake = wake
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._ended_at: dict[Key, float] = {}
        self._prepared: Prepared | None = None
        self._failed: list[tuple[Key, str]] = []  # (number and intent, pod UID), oldest first
        self._announced: set[tuple[int, str]] = set()  # (attempt, pod UID), with the plan
        self._asked_leave: dict[int, tuple[LeavePurpose, float]] = {}  # attempt -> what for, when it was accepted last

    def prepare(self, action: Prepare) -> None:
        """R4: the same number and intent are never asked of one pod twice at once."""
        request = action.request
        intent: Key = (request.attempt, request.intent_id)

        async def run() -> None:
            try:
                answer = await self._call(
                    action.uid, action.ip, "/v1/prepare", request, PrepareAnswer, _PREPARE_SECONDS
                )
            except (Silent, Refusing, Rejected) as error:
                _log.warning("prepare of attempt %d at %s: %s", request.attempt, action.ip, error)
                self._failed = [item for item in self._failed if item != (intent, action.uid)] + [(intent, action.uid)]
                return
            self._prepared = Prepared(answer, time.monotonic())

        self._start(("prepare", *intent, action.uid), run)

    def announce(self, action: Announce) -> None:
        """R23: told once; where it failed, again at the core's next wish."""
        if action.plan is not None and (action.attempt, action.uid) in self._announced:
            return

        async def run() -> None:
            message = AnnounceMessage(action.attempt, action.plan)
            try:
                await self._call(action.uid, action.ip, "/v1/announce", message, Ack, _SHORT_SECONDS)
            except (Silent, Refusing, Rejected) as error:
                _log.debug("announce of attempt %d at %s: %s", action.attempt, action.ip, error)
                return
            if action.plan is not None:
                self._announced.add((action.attempt, action.uid))

        self._start(("announce", action.attempt, action.uid, action.plan is not None), run)

    def leave(self, action: AskLeave) -> None:
        """R19: as often as the core wishes: it asks again for another purpose, or when a stop was given up long ago."""

        async def run() -> None:
            request = LeaveRequest(action.attempt, action.deadline_seconds)
            try:
                await self._call(action.uid, action.ip, "/v1/leave", request, Ack, _SHORT_SECONDS)
            except (Silent, Refusing, Rejected) as error:
                _log.warning("save-and-stop of attempt %d at %s: %s", action.attempt, action.ip, error)
                return
            self._asked_leave[action.attempt] = (action.purpose, time.monotonic())

        self._start(("leave", action.attempt, action.uid, action.purpose), run)

    def prepared(self, attempt: int, intent_id: str) -> Prepared | None:
        """The answer for exactly this number and intent."""
        found = self._prepared
        if found is None or (found.answer.attempt, found.answer.intent_id) != (attempt, intent_id):
            return None
        return found

    def failed(self, attempt: int, intent_id: str) -> tuple[str, ...]:
        """UIDs of pods that did not answer it, oldest first."""
        return tuple(uid for intent, uid in self._failed if intent == (attempt, intent_id))

    def announced(self, attempt: int) -> tuple[str, ...]:
        """UIDs of pods that acknowledged the plan of this attempt."""
        return tuple(sorted(uid for number, uid in self._announced if number == attempt))

    def leave_age_seconds(self, attempt: int) -> float | None:
        """Since save-and-stop of this attempt was accepted last, None: not asked."""
        asked = self._asked_leave.get(attempt)
        return None if asked is None else time.monotonic() - asked[1]

    def leave_purpose(self, attempt: int) -> LeavePurpose:
        """What that was asked for; empty: not asked."""
        asked = self._asked_leave.get(attempt)
        return "" if asked is None else asked[0]

    def forget_before(self, attempt: int) -> None:
        """Drop what belongs to older attempts."""
        self._announced = {item for item in self._announced if item[0] >= attempt}
        self._asked_leave = {number: asked for number, asked in self._asked_leave.items() if number >= attempt}
        self._failed = [item for item in self._failed if isinstance(item[0][0], int) and item[0][0] >= attempt]
        horizon = time.monotonic() - 60
        self._ended_at = {key: at for key, at in self._ended_at.items() if at > horizon}

    def stop(self) -> None:
        """End everything that runs."""
        for task in self._running.values():
            task.cancel()

    async def _call(self, uid: str, ip: str, path: str, message: object, kind: type[T], limit: float) -> T:
        return await self._client.call(self._job_uid, Peer(uid, ip), path, message, kind, limit)

    def _start(self, key: Key, run: Callable[[], Awaitable[None]]) -> None:
        if key in self._running or time.monotonic() - self._ended_at.get(key, -_AGAIN_SECONDS) < _AGAIN_SECONDS:
            return
        self._running[key] = tasks.start(self._finish(key, run), f"{key[0]} {self._job_uid}")

    async def _finish(self, key: Key, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        finally:
            self._running.pop(key, None)
            self._ended_at[key] = time.monotonic()
            self._wake()
