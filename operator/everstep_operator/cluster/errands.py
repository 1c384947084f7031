"""Requests to sidecars that an action starts and whose results come later: prepare, sight, announce, leave, exit. One of a kind at a time.

Results are kept for the attempt that they belong to, and wake the actor; after a restart of the operator they are asked for again,
which is safe: each is idempotent (R4).
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TypeVar

from everstep_protocol.messages import Ack, ExitRequest, LeaveRequest, Peer, PrepareAnswer, Sight, SightRequest
from everstep_protocol.messages import Announce as AnnounceMessage

from everstep_operator.cluster.sidecars import Refusing, Rejected, SidecarClient, Silent
from everstep_operator.cluster.stable import stable_text
from everstep_operator.cluster.tries import Failed, Tries
from everstep_operator.core.model import Announce, AskExit, AskLeave, AskSight, LeavePurpose, Prepare

_log = logging.getLogger(__name__)

_PREPARE_SECONDS = 15.0  # the sidecar holds the question for some 5 s, then says that it is busy
_SHORT_SECONDS = 3.0
_NO_SUCH_PATH = 404

Intent = tuple[int, str]
T = TypeVar("T")


@dataclass(frozen=True)
class Prepared:
    """An answer to prepare, the UID of the pod that gave it, and when it came."""

    answer: PrepareAnswer
    by: str
    at: float


@dataclass(frozen=True)
class Stop:
    """Save-and-stop of one attempt, for one purpose."""

    purpose: LeavePurpose
    tried_at: float  # first
    accepted: bool = False


class Errands:
    """Background requests of one job."""

    def __init__(self, client: SidecarClient, job_uid: str, tries: Tries) -> None:
        self._client = client
        self._job_uid = job_uid
        self._tries = tries
        self._prepared: dict[Intent, Prepared] = {}
        self._failed: list[
            tuple[Intent, str]
        ] = []  # (number and intent, pod UID): no answer, or none of use, oldest first
        self._sights: dict[Intent, dict[str, tuple[Sight, float]]] = {}
        self._announced: set[tuple[int, str]] = set()  # (attempt, pod UID), with the plan
        self._stops: dict[int, Stop] = {}  # by attempt
        self._exiting: set[str] = set()  # UIDs of pods that know that they are to end

    def prepare(self, action: Prepare) -> None:
        """R4: the same number and intent are never asked of one pod twice at once."""
        request = action.request
        intent = (request.attempt, request.intent_id)

        async def run() -> None:
            try:
                answer = await self._call(action, "/v1/prepare", request, PrepareAnswer, _PREPARE_SECONDS)
            except Failed as error:
                _log.warning("prepare of attempt %d at %s: %s", request.attempt, action.ip, error)
                self._failed = [*self._others_that_failed(intent, action.uid), (intent, action.uid)]
                raise
            self._failed = self._others_that_failed(intent, action.uid)
            is_taken = self._take(intent, Prepared(answer, action.uid, time.monotonic()))
            if not is_taken or answer.outcome == "wait":  # of no use: its turn comes after all others'
                self._failed.append((intent, action.uid))

        self._tries.start(("prepare", *intent, action.uid), run)

    def ask_sight(self, action: AskSight) -> None:
        """R11: whether a pod sees the storage. One that is too old to be asked is taken at its word, as ever."""
        intent = (action.attempt, action.intent_id)

        async def run() -> None:
            request = SightRequest(*intent, action.raised_by)
            try:
                sight = await self._call(action, "/v1/sight", request, Sight, _SHORT_SECONDS)
            except Failed as error:
                if not _knows_no_such_path(error):
                    raise
                sight = Sight(action.uid, None, launcher=True)
            self._see(intent, (sight,))

        self._tries.start(("sight", *intent, action.uid), run)

    def announce(self, action: Announce) -> None:
        """R23: told once; where it failed, again at the core's next wish."""
        if action.plan is not None and (action.attempt, action.uid) in self._announced:
            return

        async def run() -> None:
            await self._call(action, "/v1/announce", AnnounceMessage(action.attempt, action.plan), Ack, _SHORT_SECONDS)
            if action.plan is not None:
                self._announced.add((action.attempt, action.uid))

        self._tries.start(("announce", action.attempt, action.uid, action.plan is not None), run)

    def leave(self, action: AskLeave) -> None:
        """R19: as often as the core wishes. Another purpose, or a wish after one that was accepted, begins anew: that one was given up."""

        async def run() -> None:
            stop = self._stops.get(action.attempt)
            if stop is None or stop.accepted or stop.purpose != action.purpose:
                stop = self._stops[action.attempt] = Stop(action.purpose, time.monotonic())
            request = LeaveRequest(action.attempt, action.deadline_seconds)
            try:
                await self._call(action, "/v1/leave", request, Ack, _SHORT_SECONDS)
            except Failed as error:
                _log.warning("save-and-stop of attempt %d at %s: %s", action.attempt, action.ip, error)
                raise
            if self._stops.get(action.attempt) is stop:
                self._stops[action.attempt] = replace(stop, accepted=True)

        self._tries.start(("leave", action.attempt, action.uid, action.purpose), run)

    def exit(self, action: AskExit) -> None:
        """Told once; where it failed, again at the core's next wish."""
        if action.uid in self._exiting:
            return

        async def run() -> None:
            await self._call(action, "/v1/exit", ExitRequest(action.attempt, action.why), Ack, _SHORT_SECONDS)
            self._exiting.add(action.uid)

        self._tries.start(("exit", action.uid), run)

    def prepared(self, attempt: int, intent_id: str) -> Prepared | None:
        """The newest answer for exactly this number and intent."""
        return self._prepared.get((attempt, intent_id))

    def failed(self, attempt: int, intent_id: str) -> tuple[str, ...]:
        """UIDs of pods that did not answer it, or with nothing of use, oldest first."""
        return tuple(uid for intent, uid in self._failed if intent == (attempt, intent_id))

    def sights(self, attempt: int, intent_id: str) -> dict[str, tuple[Sight, float]]:
        """Pod UID -> its newest word about the storage of this attempt, and when (monotonic) it said so."""
        return self._sights.get((attempt, intent_id), {})

    def announced(self, attempt: int) -> tuple[str, ...]:
        """UIDs of pods that acknowledged the plan of this attempt."""
        return tuple(sorted(uid for number, uid in self._announced if number == attempt))

    def stop_of(self, attempt: int) -> Stop | None:
        """The newest save-and-stop that was tried in this attempt."""
        return self._stops.get(attempt)

    def keep(self, attempt: int, uids: set[str]) -> None:
        """Drop what belongs to older attempts, and to pods that are not there any more."""
        self._announced = {item for item in self._announced if item[0] >= attempt and item[1] in uids}
        self._exiting &= uids
        self._stops = {number: stop for number, stop in self._stops.items() if number >= attempt}
        self._failed = [item for item in self._failed if item[0][0] >= attempt and item[1] in uids]
        self._prepared = {intent: found for intent, found in self._prepared.items() if intent[0] >= attempt}
        self._sights = {
            intent: {uid: sight for uid, sight in sights.items() if uid in uids}
            for intent, sights in self._sights.items()
            if intent[0] >= attempt
        }

    def _take(self, intent: Intent, found: Prepared) -> bool:
        """R4: kept by number and intent, whoever gave it; what settles the question is not replaced by less of another pod: False."""
        before = self._prepared.get(intent)
        if before is not None and before.by != found.by and _weight(before) > _weight(found):
            return False
        if before is not None:
            message = stable_text(before.answer.message, found.answer.message)
            found = replace(found, answer=replace(found.answer, message=message))
        self._prepared[intent] = found
        self._see(intent, found.answer.sights)
        return True

    def _others_that_failed(self, intent: Intent, uid: str) -> list[tuple[Intent, str]]:
        return [item for item in self._failed if item != (intent, uid)]

    def _see(self, intent: Intent, sights: tuple[Sight, ...]) -> None:
        known, now = self._sights.setdefault(intent, {}), time.monotonic()
        for sight in sights:
            known[sight.uid] = (_stable(known.get(sight.uid), sight), now)

    async def _call(
        self,
        action: Prepare | AskSight | Announce | AskLeave | AskExit,
        path: str,
        message: object,
        kind: type[T],
        limit_seconds: float,
    ) -> T:
        """Raises Failed."""
        peer = Peer(action.uid, action.ip)
        try:
            return await self._client.call(self._job_uid, peer, path, message, kind, limit_seconds)
        except (Silent, Refusing, Rejected) as error:
            raise Failed(str(error)) from error


def _weight(found: Prepared) -> int:
    """`ready` and `fenced` settle it; `wait` and `stop` are made anew when asked again; `busy` says nothing yet."""
    return {"ready": 2, "fenced": 2, "wait": 1, "stop": 1, "busy": 0}[found.answer.outcome]


def _stable(before: tuple[Sight, float] | None, sight: Sight) -> Sight:
    if before is None or before[0].storage is None or sight.storage is None:
        return sight
    message = stable_text(before[0].storage.message, sight.storage.message)
    return replace(sight, storage=replace(sight.storage, message=message))


def _knows_no_such_path(error: Failed) -> bool:
    return isinstance(error.__cause__, Rejected) and error.__cause__.status == _NO_SUCH_PATH
