"""One asyncio task a job: observe -> decide -> write status | apply -> report, then wait until something happens.

It never ends by itself and lets no exception out while the job exists.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Any

from everstep_protocol import codec

from everstep_operator.api.status import cut
from everstep_operator.cluster.apply import begin
from everstep_operator.cluster.backoff import Backoff
from everstep_operator.cluster.check import NotChecked
from everstep_operator.cluster.client import ApiError, Conflict, NotFound, Unavailable
from everstep_operator.cluster.observe import observe
from everstep_operator.cluster.report import NotDue, say_once, seconds_to_write, write_status
from everstep_operator.cluster.room import Cluster, JobRoom
from everstep_operator.core import half_placed
from everstep_operator.core.model import Decision, Notice, Observed, Settings, WriteStatus
from everstep_operator.log import attempt_of_task, job_of_task

Raw = dict[str, Any]
Decide = Callable[[Observed, Settings], Decision]

_log = logging.getLogger(__name__)

_COALESCE_SECONDS = 0.05
_RESYNC_SECONDS = 30.0
_BACKOFF_SECONDS = (1.0, 30.0)  # after a pass that failed: first, longest
_LEAST_BACKOFF_SECONDS = 2.0  # whatever wakes
_EFFECTS_SECONDS = 1.0  # a pass waits for what it began no longer than this: a call that hangs keeps nothing else back
_LONGEST_LOG = 500  # bytes; the API server may repeat a whole object in its answer


class JobGone(Exception):
    """The object is not there any more, or another has its name."""


class Actor:
    """Runs one job. `hear` gives it a newer object, `wake` a reason to look."""

    def __init__(self, cluster: Cluster, body: Raw, decide: Decide) -> None:
        self._cluster = cluster
        self._decide = decide
        self._woken = asyncio.Event()
        self.room = JobRoom(cluster, body, self.wake)
        self.phase = str((body.get("status") or {}).get("phase") or "Pending")
        self._said = ""
        self._failing = Backoff(cluster.clock, first=_BACKOFF_SECONDS[0], most=_BACKOFF_SECONDS[1])

    def wake(self) -> None:
        """Look soon."""
        self._woken.set()

    def hear(self, body: Raw) -> None:
        """The object changed."""
        if self.room.take(body):
            self.wake()

    async def run(self) -> None:
        """Until the job is gone."""
        job_of_task.set(f"{self.room.namespace}/{self.room.name}")
        self._cluster.wakes.register(self.room.uid, self.wake)
        try:
            while True:
                await self._rest(await self._guarded_pass())
        except JobGone:
            _log.info("the job is gone")
        finally:
            self._cluster.wakes.forget(self.room.uid)
            self._cluster.unwritten.forget(self.room.uid)
            self._cluster.rivals.forget(self.room.uid)
            self.room.close()

    async def look(self) -> float:
        """One pass. Returns how many seconds may go by before the next one, if nothing wakes it."""
        started = time.monotonic()
        self._woken.clear()
        self.room.tries.begin_pass()
        body = self.room.body
        try:
            seen = await observe(self._cluster, self.room, body)
        except NotChecked:
            return self.room.checking.seconds_left()
        attempt_of_task.set(seen.status.attempt.number if seen.status.attempt else 0)
        await self._warn()
        decision = self._decide(seen, self._cluster.settings.timers)
        pause = await self._carry_out(body, seen, decision)
        self._cluster.metrics.reconcile.observe(time.monotonic() - started)
        return pause

    async def _carry_out(self, body: Raw, seen: Observed, decision: Decision) -> float:
        self._note(decision)
        writes = [action for action in decision.actions if isinstance(action, WriteStatus)]
        status, is_said = writes[0].status if writes else seen.status, True
        try:
            await write_status(self._cluster, self.room, body, seen, decision, status)
        except (Conflict, NotFound):
            await self._read_again()
            return seconds_to_write(self.room)
        except NotDue:
            is_said = False
        except (ApiError, Unavailable) as error:
            is_said = False
            _log.warning("status is not written: %s", cut(str(error), _LONGEST_LOG))
        if writes:
            return seconds_to_write(self.room)  # effects come from the written status (R3)
        await self._apply(decision)
        pause = _RESYNC_SECONDS if decision.requeue_after is None else decision.requeue_after
        left = math.inf if is_said else seconds_to_write(self.room, is_decision=False)
        return min(pause, _RESYNC_SECONDS, self.room.tries.seconds_to_next(), left)

    async def _apply(self, decision: Decision) -> None:
        """All of them, side by side: one that is refused, or not answered, must not keep the others back."""
        _log.debug("%s", decision.actions)
        begun = begin(self._cluster, self.room, decision.actions)
        await self._cluster.clock.wait_for_tasks(begun, _EFFECTS_SECONDS)

    async def _guarded_pass(self) -> float:
        """A pass, whatever happens in it; seconds until the next one."""
        try:
            pause = await self.look()
        except (ApiError, Unavailable) as error:
            _log.warning("the API server does not do it: %s", cut(str(error), _LONGEST_LOG))
        except codec.InvalidDocument as error:
            text = f"status cannot be read, so the job is left alone: {error}; it was changed by hand, or by a newer version"
            await say_once(self._cluster, self.room, Notice("Warning", "StatusUnreadable", text))
        except JobGone:
            raise
        except Exception:  # noqa: BLE001 - whatever it is, the job must not be left without its operator
            _log.exception("a pass failed")
            self._cluster.metrics.reconcile_errors.inc()
        else:
            self._failing.succeed()
            return pause
        return self._failing.fail()

    async def _rest(self, pause: float) -> None:
        """Wait for a reason to look; never look twice within 50 ms, nor at once again after a failure, whatever wakes."""
        clock = self._cluster.clock
        least = min(pause, _LEAST_BACKOFF_SECONDS if self._failing.failures else _COALESCE_SECONDS)
        await clock.sleep(least)
        if pause > least:
            await clock.wait(self._woken, pause - least)

    async def _read_again(self) -> None:
        """R1: a GET, not a cache. Raises JobGone."""
        try:
            body = await self._cluster.client.request("GET", self.room.path)
        except NotFound as error:
            raise JobGone(self.room.name) from error
        if body["metadata"]["uid"] != self.room.uid:
            raise JobGone(self.room.name)
        self.room.believe(body)

    def _note(self, decision: Decision) -> None:
        self.phase = decision.phase
        name = f"{self.room.namespace}/{self.room.name}"
        self._cluster.rivals.note(self.room.uid, name, is_rival=decision.reason == half_placed.REASON)
        said = f"{decision.phase} {decision.reason}: {decision.message}"
        if said != self._said:
            self._said = said
            _log.info("%s", said)

    async def _warn(self) -> None:
        for warning in self.room.parsed().warnings:
            await say_once(self._cluster, self.room, Notice("Warning", "NotObeyed", warning))
