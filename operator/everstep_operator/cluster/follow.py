"""Follows one job's attempt: a long poll of its coordinator, or of the others while that is silent, and probes of who is suspected.

A crash is heard at once, because the poll is answered when something happened; a dead host after 2 to 3 s, by the kernel.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from everstep_protocol.messages import Peer, PollRequest, SidecarStatus
from everstep_protocol.plan import Plan

from everstep_operator.cluster import tasks
from everstep_operator.cluster.backoff import Backoff, Clock, Rate
from everstep_operator.cluster.news import gets_on, news
from everstep_operator.cluster.pace import Pace
from everstep_operator.cluster.probes import Prober
from everstep_operator.cluster.sidecars import Refusing, Rejected, SidecarClient, Silent

_log = logging.getLogger(__name__)

_SUSPICIOUS_WAIT_SECONDS = 0.4
_MARGIN_SECONDS = 6.0
_OTHERS_SECONDS = 2.0
_PAUSE_SECONDS = (0.3, 2.0)  # after a poll that failed: first, longest
_SUSPECTED = "followed"  # why a host is probed


@dataclass(frozen=True)
class Target:
    """Whom to ask."""

    job_uid: str
    plan: Plan
    condemned: tuple[str, ...]

    @property
    def coordinator(self) -> Peer:
        return Peer(self.plan.coordinator.uid, self.plan.coordinator.ip)

    @property
    def others(self) -> tuple[Peer, ...]:
        peers = [Peer(member.uid, member.ip) for member in self.plan.members]
        return tuple(peer for peer in peers if peer.uid != self.plan.coordinator.uid)


@dataclass(frozen=True)
class Seen:
    """The newest answer for the attempt that is followed."""

    status: SidecarStatus
    at: float  # monotonic


class Follower:
    """`follow` says whom, `seen` and `lost` what came of it, and `prober` who is silent.

    `wake` is called when something has happened, and with each answer while anybody is suspected or lost.
    """

    def __init__(
        self,
        client: SidecarClient,
        prober: Prober,
        clock: Clock,
        wake: Callable[[], None],
        pace: Pace | None = None,
    ) -> None:
        self._client = client
        self._prober = prober
        self._clock = clock
        self._wake = wake
        self._pace = pace or Pace()
        self._target: Target | None = None
        self._task: asyncio.Task[None] | None = None
        self._version: str | None = None  # of the coordinator's newest answer, whatever attempt it speaks of
        self._nodes: dict[str, str] = {}  # of the members, by pod UID
        self._rate = Rate(clock)  # of this job's polls, whatever the plan
        self.seen: Seen | None = None
        self.gone_at: float | None = None
        self.coordinator_at = (
            time.monotonic()
        )  # when the coordinator itself last spoke of this attempt, or was first asked
        self.lost: dict[str, tuple[int, int]] = {}  # pod UID -> (lost by, asked)

    def follow(self, target: Target | None) -> None:
        """Follow this from now on; a new plan begins without any memory of the old."""
        before, self._target = self._target, target
        if before is not None and target is not None and before.plan.plan_id == target.plan.plan_id:
            return
        self.stop()
        self._nodes = {member.uid: member.node for member in target.plan.members} if target else {}
        if target is not None:
            self.coordinator_at = time.monotonic()
            self._task = tasks.keep_running(self._run, f"follow {target.job_uid}", self._clock)

    @property
    def is_following(self) -> bool:
        """Whether there is a coordinator to be asked."""
        return self._target is not None

    def stop(self) -> None:
        """Ask nobody any more."""
        if self._task is not None:
            self._task.cancel()
        self._prober.forget(_SUSPECTED)
        self._task, self._version, self.seen, self.gone_at, self.lost = None, None, None, None, {}

    async def _run(self) -> None:
        backoff = Backoff(self._clock, first=_PAUSE_SECONDS[0], most=_PAUSE_SECONDS[1])
        while True:
            await self._rate.wait()
            target = self._target
            assert target is not None
            try:
                await self._poll(target)
                backoff.succeed()
                continue
            except Rejected as error:
                _log.warning("the coordinator rejects a poll: %s", error)
            except Refusing as error:
                _log.debug("%s", error)
            except Silent as error:
                _log.info("the coordinator is silent: %s", error)
                self._suspect(target.coordinator)
            await self._ask_others(target)
            await self._clock.sleep(backoff.fail())

    async def _poll(self, target: Target) -> None:
        suspicious = self._prober.is_any(_SUSPECTED)
        calm = self._pace.poll_seconds(is_quiet=self._is_quiet(target)) * random.uniform(0.75, 1.25)
        wait = _SUSPICIOUS_WAIT_SECONDS if suspicious else calm
        status = await self._ask(target, target.coordinator, self._version, wait)
        self._version = status.version
        self._prober.note(target.coordinator.uid, alive=True)
        self.lost = {member.uid: (member.lost_by, member.asked) for member in status.members}
        if status.attempt == target.plan.attempt:
            self.coordinator_at = time.monotonic()
        self._take(target, status)

    async def _ask_others(self, target: Target) -> None:
        """The coordinator does not answer: each of the others says what its own kernel saw."""
        asked = [self._ask_one(target, peer) for peer in target.others]
        answers = [status for status in await asyncio.gather(*asked) if status is not None]
        if not answers:
            return
        spoke = {status.pod_uid for status in answers}
        lost_by = Counter(uid for status in answers for uid in status.lost_peers if uid != status.pod_uid)
        for member in target.plan.members:
            self.lost[member.uid] = (lost_by[member.uid], len(answers) - (member.uid in spoke))
        self._take(target, max(answers, key=lambda status: (status.attempt, status.training.step)))

    async def _ask_one(self, target: Target, peer: Peer) -> SidecarStatus | None:
        try:
            return await self._ask(target, peer, None, 0.0)
        except (Silent, Refusing, Rejected) as error:
            _log.debug("%s", error)
            if isinstance(error, Silent):
                self._suspect(peer)
            return None

    async def _ask(self, target: Target, peer: Peer, version: str | None, wait: float) -> SidecarStatus:
        request = PollRequest(version, wait, target.plan.attempt, target.condemned)
        limit = wait + (_MARGIN_SECONDS if wait else _OTHERS_SECONDS)
        status = await self._client.call(target.job_uid, peer, "/v1/poll", request, SidecarStatus, limit)
        self._client.heard(self._nodes.get(peer.uid, ""))
        return status

    def _take(self, target: Target, status: SidecarStatus) -> None:
        for peer in (target.coordinator, *target.others):
            if self.lost.get(peer.uid, (0, 0))[0] or peer.uid in status.lost_peers:
                self._prober.start(peer, _SUSPECTED)
            elif not self._prober.failed(peer.uid):
                self._prober.end(peer.uid, _SUSPECTED)
        before = self.seen
        if status.attempt == target.plan.attempt:
            self.seen = Seen(status, time.monotonic())
            if status.gone and self.gone_at is None:
                self.gone_at = time.monotonic()
        if before is None or news(before.status) != news(status) or not self._is_quiet(target):
            self._wake()

    def _is_quiet(self, target: Target) -> bool:
        """Whether the coordinator answers, its trainers get on, and nobody is suspected: then only what happens is worth a pass."""
        if self.seen is None or self._prober.is_any(_SUSPECTED):
            return False
        return self.seen.status.pod_uid == target.coordinator.uid and gets_on(self.seen.status.training)

    def _suspect(self, peer: Peer) -> None:
        self._prober.note(peer.uid, alive=False)
        self._prober.start(peer, _SUSPECTED)
