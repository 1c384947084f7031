"""One asyncio task a job: observe -> decide -> write status | apply -> report, then wait until something happens.

It never ends by itself and lets no exception out while the job exists.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from everstep_protocol import codec

from everstep_operator.api.status import cut
from everstep_operator.cluster.apply import Blocked, Stale, apply_action
from everstep_operator.cluster.client import ApiError, Conflict, Leaving, NotFound, Unavailable
from everstep_operator.cluster.observe import observe
from everstep_operator.cluster.report import post_event, write_status
from everstep_operator.cluster.room import Cluster, JobRoom
from everstep_operator.core.model import CreatePod, Decision, Notice, Observed, Settings, WriteStatus
from everstep_operator.log import attempt_of_task, job_of_task

Raw = dict[str, Any]
Decide = Callable[[Observed, Settings], Decision]

_log = logging.getLogger(__name__)

_COALESCE_SECONDS = 0.05
_RESYNC_SECONDS = 30.0
_BACKOFF_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
_LEAST_BACKOFF_SECONDS = 2.0
_STALE_SECONDS = 0.1  # doubled each time: what is refused for ever must not be asked for ten times a second
_MOST_STALE_SECONDS = 5.0
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
        failures = 0
        try:
            while True:
                pause, failures = await self._guarded_pass(failures)
                await self._rest(pause, failing=failures > 0)
        except JobGone:
            _log.info("the job is gone")
        finally:
            self._cluster.wakes.forget(self.room.uid)
            self.room.close()

    async def look(self) -> float:
        """One pass. Returns how many seconds may go by before the next one, if nothing wakes it."""
        started = time.monotonic()
        self._woken.clear()
        seen = await observe(self._cluster, self.room)
        attempt_of_task.set(seen.status.attempt.number if seen.status.attempt else 0)
        await self._warn()
        decision = self._decide(seen, self._cluster.settings.timers)
        pause = await self._carry_out(seen, decision)
        self._cluster.metrics.reconcile.observe(time.monotonic() - started)
        return pause

    async def _carry_out(self, seen: Observed, decision: Decision) -> float:
        self._note(decision)
        writes = [action for action in decision.actions if isinstance(action, WriteStatus)]
        status = writes[0].status if writes else seen.status
        try:
            await write_status(self._cluster, self.room, seen, decision, status)
        except Conflict:
            await self._read_again()
            return 0.0
        if writes:
            return 0.0  # effects come from the written status (R3)
        await self._apply(decision)
        pause = _RESYNC_SECONDS if decision.requeue_after is None else decision.requeue_after
        return min(pause, _RESYNC_SECONDS, self._seconds_to_retry(decision))

    def _seconds_to_retry(self, decision: Decision) -> float:
        """A pod that was not admitted is tried again by and by; that slows nothing else down."""
        wanted = [action.worker_id for action in decision.actions if isinstance(action, CreatePod)]
        return min((self.room.refused.seconds_left(number) for number in wanted), default=_RESYNC_SECONDS)

    async def _apply(self, decision: Decision) -> None:
        """All of them, side by side: one that is refused must not keep the others back."""
        _log.debug("%s", decision.actions)
        calls = [apply_action(self._cluster, self.room, action) for action in decision.actions]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, Blocked):
                await self._say_once(Notice("Warning", "PodNotCreated", str(outcome)))
            elif isinstance(outcome, BaseException):
                raise outcome

    async def _guarded_pass(self, failures: int) -> tuple[float, int]:
        """(pause, failures in a row)."""
        try:
            return await self._look_or_read(), 0
        except Stale as error:
            _log.info("looked again: %s", error)
            return min(_STALE_SECONDS * 2**failures, _MOST_STALE_SECONDS), failures + 1
        except Leaving as error:
            _log.log(logging.DEBUG if failures else logging.INFO, "nothing is made any more: %s", error.message)
            return _BACKOFF_SECONDS[-1], failures + 1
        except (ApiError, Unavailable) as error:
            _log.warning("the API server does not do it: %s", cut(str(error), _LONGEST_LOG))
        except codec.InvalidDocument as error:
            text = f"status cannot be read, so the job is left alone: {error}; it was changed by hand, or by a newer version"
            await self._say_once(Notice("Warning", "StatusUnreadable", text))
        except JobGone:
            raise
        except Exception:  # noqa: BLE001 - whatever it is, the job must not be left without its operator
            _log.exception("a pass failed")
            self._cluster.metrics.reconcile_errors.inc()
        return _BACKOFF_SECONDS[min(failures, len(_BACKOFF_SECONDS) - 1)], failures + 1

    async def _look_or_read(self) -> float:
        """A pass; a 404 in it may mean that the job itself is gone."""
        try:
            return await self.look()
        except NotFound:
            await self._read_again()
            raise

    async def _rest(self, pause: float, *, failing: bool) -> None:
        """Wait for a reason to look; never look twice within 50 ms, nor at once again after a failure, whatever wakes."""
        least = min(pause, _LEAST_BACKOFF_SECONDS if failing else _COALESCE_SECONDS)
        await asyncio.sleep(least)
        if pause > least:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._woken.wait(), pause - least)

    async def _read_again(self) -> None:
        """R1: a GET, not a cache. Raises JobGone."""
        try:
            body = await self._cluster.client.request("GET", self.room.path)
        except NotFound as error:
            raise JobGone(self.room.name) from error
        if body["metadata"]["uid"] != self.room.uid:
            raise JobGone(self.room.name)
        self.room.take(body)

    def _note(self, decision: Decision) -> None:
        self.phase = decision.phase
        said = f"{decision.phase} {decision.reason}: {decision.message}"
        if said != self._said:
            self._said = said
            _log.info("%s", said)

    async def _warn(self) -> None:
        for warning in self.room.parsed().warnings:
            await self._say_once(Notice("Warning", "NotObeyed", warning))

    async def _say_once(self, notice: Notice) -> None:
        if notice.message not in self.room.warned:
            self.room.warned.add(notice.message)
            await post_event(self._cluster.client, self.room, notice)
