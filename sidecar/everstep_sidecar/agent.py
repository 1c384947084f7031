"""This pod as a member of its job: which plan it obeys, and what has to stop because of a higher one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from everstep_protocol import local
from everstep_protocol.messages import Ack, Announce, Peer, Ping, StopAnswer, StopOrder
from everstep_protocol.plan import Member, Plan

from everstep_sidecar.client import Refused, Unanswered
from everstep_sidecar.coordinator import Coordinator
from everstep_sidecar.coordinator_link import CoordinatorLink
from everstep_sidecar.launcher_link import LauncherGone
from everstep_sidecar.pod import Pod
from everstep_sidecar.run import AttemptRun
from everstep_sidecar.sight import Sights
from everstep_sidecar.stop_desk import StopDesk
from everstep_sidecar.tasks import Tasks

PING_SECONDS = 1.0
STOP_GRACE_SECONDS = (
    2.0  # for scripts without the library that were stopped by plan, and all of a failed job: TERM handlers may save
)
T = TypeVar("T")
_log = logging.getLogger(__name__)


class Agent:
    """One plan at a time, only upwards (R8)."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._intake = asyncio.Lock()
        self._tasks = Tasks(pod.on_failure)
        self._run_task: asyncio.Task[None] | None = None
        self._announcing = 0
        self._is_exiting = False
        self.sights = Sights(pod, self._tasks)
        self.plan: Plan | None = None
        self.run: AttemptRun | None = None
        self.coordinator: Coordinator | None = None

    async def start(self) -> None:
        """Take up what is remembered, then go on."""
        remembered = self._pod.remembered
        if remembered.plan is not None:
            self._obey(remembered.plan)
        elif remembered.attempt:
            self._pod.link.forbid(remembered.attempt - 1)
        self.spawn(self._ping_peers())
        self.spawn(self._let_leave())

    async def close(self) -> None:
        """End everything that runs."""
        self._end_run()
        await self._tasks.close()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run beside, until this sidecar ends."""
        return self._tasks.spawn(work)

    @property
    def member(self) -> Member | None:
        """This pod in the plan, by UID and IP (R22)."""
        return own_member(self.plan, self._pod.uid, self._pod.settings.pod_ip) if self.plan else None

    async def announce(self, announce: Announce) -> Ack:
        """R23: attempt n exists. Older ones stop at once, without waiting for the plan."""
        if announce.plan is not None and announce.plan.attempt == announce.attempt:
            await self.offer(announce.plan)
        else:
            await self.see(announce.attempt)
        return self._pod.ack()

    async def see(self, attempt: int) -> None:
        """R8, R23: an attempt's number was seen: to disk, then everything older stops."""
        async with self._intake:
            if attempt > self._pod.highest and await self._pod.remember(attempt):
                _log.info("attempt %d is announced: older ones stop", attempt)
                grace_seconds = self._grace_seconds()
                self._end_run()
                self.plan = None
                self._pod.link.forbid(attempt - 1, grace_seconds)
                self._pod.changes.bump()

    def heard(self, attempt: int) -> None:
        """As `see`, from where nothing can be awaited."""
        if attempt > max(self._pod.highest, self._announcing):
            self._announcing = attempt
            self.spawn(self._see_heard(attempt))

    async def _see_heard(self, attempt: int) -> None:
        try:
            await self.see(attempt)
        except OSError as error:  # the scratch disk; peers and the operator say it again
            _log.warning("attempt %d exists and cannot be noted on this pod's own disk: %s", attempt, error)
        finally:
            self._announcing = 0

    async def offer(self, plan: Plan) -> None:
        """R8: a plan, from the kubelet or over HTTP. Lower ones are ignored for ever, the same one is known already."""
        async with self._intake:
            if plan.job_uid != self._pod.settings.job_uid or plan.attempt < self._pod.highest:
                return
            if self.plan is not None and self.plan.attempt == plan.attempt:
                if self.plan.plan_id != plan.plan_id:
                    _log.error("two plans carry number %d; the first one is kept", plan.attempt)
                return
            if await self._pod.remember(plan.attempt, plan=plan):
                self._obey(plan)

    def stop_order(self, order: StopOrder) -> StopAnswer:
        """R19: an order of the coordinator, for the attempt that runs here."""
        assert self.run is not None
        return self.run.desk.hear(order)

    def exit(self, why: str) -> None:
        """The job has failed: the launcher ends, or as soon as there is one. What is being saved goes on; repeating it is fine."""
        if not self._is_exiting:
            self._is_exiting = True
            _log.info("the job has failed, this pod ends: %s", why)
            self.spawn(self._let_exit(local.Exit("failed", STOP_GRACE_SECONDS, why)))

    async def _let_exit(self, order: local.Exit) -> None:
        link = self._pod.link
        while True:
            await self._pod.changes.wait(lambda: link.connected)
            with contextlib.suppress(LauncherGone):
                link.order(order)
            await self._pod.changes.wait(lambda: not link.connected)

    def _own_step(self) -> int:
        return self.run.training().step if self.run is not None else -1

    def is_drained(self) -> bool:
        """Whether nothing is being persisted or committed here."""
        return (self.run is None or not self.run.saver.is_busy) and (
            self.coordinator is None or not self.coordinator.commits.is_busy
        )

    def _obey(self, plan: Plan) -> None:
        grace_seconds = self._grace_seconds()
        self._end_run()
        self.plan = plan
        member = self.member
        self._pod.link.forbid(plan.attempt - 1 if member else plan.attempt, grace_seconds)
        self._pod.peers.watch(
            frozenset(Peer(one.uid, one.ip) for one in plan.members if one.uid != self._pod.uid)
            if member
            else frozenset()
        )
        if member is None:
            _log.info("this pod is not in the plan of attempt %d: it waits for a later one", plan.attempt)
        else:
            self._begin(plan, member)
        self._pod.changes.bump()

    def _begin(self, plan: Plan, member: Member) -> None:
        if plan.coordinator.uid == self._pod.uid:
            self.coordinator = Coordinator(
                self._pod, plan, on_higher=self.heard, own_stop=self.stop_order, own_step=self._own_step
            )
            self.coordinator.start()
        link = CoordinatorLink(self._pod.client, plan, self._pod.uid, self.coordinator)
        low, high = member.ranks
        desk = StopDesk(self._pod.pages, plan.attempt, high - low)
        self.run = AttemptRun(self._pod, plan, member, link, desk, self.sights)
        self._run_task = self._tasks.spawn(self.run.run())

    def _end_run(self) -> None:
        if self._run_task is not None:
            self._run_task.cancel()
        if self.coordinator is not None:
            self.coordinator.close()
        self._run_task, self.run, self.coordinator = None, None, None

    def _grace_seconds(self) -> float:
        return STOP_GRACE_SECONDS if self.run is not None and self.run.desk.had_no_library else 0.0

    async def _ping_peers(self) -> None:
        """R23: a slow look over HTTP, one peer a second; the answer carries the highest attempt."""
        turn = 0
        while True:
            await asyncio.sleep(PING_SECONDS)
            peers = [one for one in self.plan.members if one.uid != self._pod.uid] if self.plan else []
            if peers:
                turn += 1
                await self._ping(peers[turn % len(peers)])

    async def _ping(self, member: Member) -> None:
        try:
            ping = Ping(self._pod.highest)
            await self._pod.client.post(Peer(member.uid, member.ip), "/v1/ping", ping, Ack, seconds=2.0)
        except (Unanswered, Refused) as error:
            _log.debug("ping: %s", error)

    async def _let_leave(self) -> None:
        """A pod that is leaving and has no part in the newest attempt has nothing left to do."""
        link = self._pod.link
        while True:
            await self._pod.changes.wait(
                lambda: link.leaving and link.connected and self._pod.highest > 0 and self.member is None
            )
            try:
                await self._pod.changes.wait(lambda: link.stopped > 0 or not link.connected, STOP_GRACE_SECONDS)
                link.order(local.Exit("left"))
            except LauncherGone:
                continue
            await self._pod.changes.wait(lambda: not link.connected)


def own_member(plan: Plan, uid: str, ip: str) -> Member | None:
    """R22: membership is by UID at this IP; the same UID at another address is a sandbox made anew: a lost member."""
    member = plan.member(uid)
    return member if member is not None and member.ip == ip else None
