"""Follows one job's attempt: a long poll of its coordinator, or of the others while that is silent, and probes of who is suspected.

A crash is heard at once, because the poll is answered when something happened; a dead host after 2 to 3 s, by the kernel.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from everstep_protocol.messages import Peer, PollRequest, SidecarStatus
from everstep_protocol.plan import Plan

from everstep_operator.cluster import tasks
from everstep_operator.cluster.sidecars import Refusing, Rejected, SidecarClient, Silent

_log = logging.getLogger(__name__)

_WAIT_SECONDS = 4.0
_SUSPICIOUS_WAIT_SECONDS = 0.4
_MARGIN_SECONDS = 6.0
_OTHERS_SECONDS = 2.0
_PAUSE_SECONDS = 0.3
_PROBE_EVERY_SECONDS = 0.5


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
    """`follow` says whom, `seen`, `lost` and `failed_probes` what came of it; `wake` is called when that changed."""

    def __init__(self, client: SidecarClient, wake: Callable[[], None]) -> None:
        self._client = client
        self._wake = wake
        self._target: Target | None = None
        self._task: asyncio.Task[None] | None = None
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._version: str | None = None  # of the coordinator's newest answer, whatever attempt it speaks of
        self.seen: Seen | None = None
        self.gone_at: float | None = None
        self.lost: dict[str, tuple[int, int]] = {}  # pod UID -> (lost by, asked)
        self.failed_probes: dict[str, int] = {}

    def follow(self, target: Target | None) -> None:
        """Follow this from now on; a new plan begins without any memory of the old."""
        before, self._target = self._target, target
        if before is not None and target is not None and before.plan.plan_id == target.plan.plan_id:
            return
        self.stop()
        if target is not None:
            self._task = tasks.start(self._run(), f"follow {target.job_uid}")

    def stop(self) -> None:
        """Ask nobody any more."""
        for task in (self._task, *self._probes.values()):
            if task is not None:
                task.cancel()
        self._task, self._probes, self._version = None, {}, None
        self.seen, self.gone_at, self.lost, self.failed_probes = None, None, {}, {}

    async def _run(self) -> None:
        while True:
            target = self._target
            assert target is not None
            try:
                await self._poll(target)
            except Refusing as error:
                _log.debug("%s", error)
                await self._ask_others(target)
                await asyncio.sleep(_PAUSE_SECONDS)
            except Rejected as error:
                _log.warning("the coordinator rejects a poll: %s", error)
                await asyncio.sleep(5 * _PAUSE_SECONDS)
            except Silent as error:
                _log.info("the coordinator is silent: %s", error)
                self._note(target.coordinator.uid, alive=False)
                self._probe(target.coordinator)
                await self._ask_others(target)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _poll(self, target: Target) -> None:
        suspicious = bool(self._probes)
        wait = _SUSPICIOUS_WAIT_SECONDS if suspicious else _WAIT_SECONDS * random.uniform(0.75, 1.25)
        status = await self._ask(target, target.coordinator, self._version, wait)
        self._version = status.version
        self._note(target.coordinator.uid, alive=True)
        self.lost = {member.uid: (member.lost_by, member.asked) for member in status.members}
        self._take(target, status)

    async def _ask_others(self, target: Target) -> None:
        """The coordinator does not answer: each of the others says what its own kernel saw."""
        asked = [self._ask_one(target, peer) for peer in target.others]
        answers = [status for status in await asyncio.gather(*asked) if status is not None]
        if not answers:
            return
        for member in target.plan.members:
            witnesses = [status for status in answers if status.pod_uid != member.uid]
            lost_by = sum(member.uid in status.lost_peers for status in witnesses)
            self.lost[member.uid] = (lost_by, len(witnesses))
        self._take(target, max(answers, key=lambda status: (status.attempt, status.training.step)))

    async def _ask_one(self, target: Target, peer: Peer) -> SidecarStatus | None:
        try:
            return await self._ask(target, peer, None, 0.0)
        except (Silent, Refusing, Rejected) as error:
            _log.debug("%s", error)
            if isinstance(error, Silent):
                self._note(peer.uid, alive=False)
                self._probe(peer)
            return None

    async def _ask(self, target: Target, peer: Peer, version: str | None, wait: float) -> SidecarStatus:
        request = PollRequest(version, wait, target.plan.attempt, target.condemned)
        limit = wait + (_MARGIN_SECONDS if wait else _OTHERS_SECONDS)
        status = await self._client.call(target.job_uid, peer, "/v1/poll", request, SidecarStatus, limit)
        member = target.plan.member(peer.uid)
        self._client.heard(member.node if member else "")
        return status

    def _take(self, target: Target, status: SidecarStatus) -> None:
        for peer in (target.coordinator, *target.others):
            if self.lost.get(peer.uid, (0, 0))[0] or peer.uid in status.lost_peers:
                self._probe(peer)
            elif not self.failed_probes.get(peer.uid):
                self._end_probe(peer.uid)
        if status.attempt == target.plan.attempt:
            self.seen = Seen(status, time.monotonic())
            if status.gone and self.gone_at is None:
                self.gone_at = time.monotonic()
        self._wake()

    def _probe(self, peer: Peer) -> None:
        if peer.uid not in self._probes:
            self._probes[peer.uid] = tasks.start(self._probe_forever(peer), f"probe {peer.ip}")

    def _end_probe(self, uid: str) -> None:
        if (task := self._probes.pop(uid, None)) is not None:
            task.cancel()

    async def _probe_forever(self, peer: Peer) -> None:
        """A probe every half second, each with a second to succeed: two that fail are known after a second and a half."""

        async def probe_once() -> None:
            self._note(peer.uid, alive=await self._client.probe(peer.ip))

        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                task = asyncio.create_task(probe_once())
                running.add(task)
                task.add_done_callback(running.discard)
                await asyncio.sleep(_PROBE_EVERY_SECONDS)
        finally:
            for task in running:
                task.cancel()

    def _note(self, uid: str, *, alive: bool) -> None:
        before = self.failed_probes.get(uid, 0)
        self.failed_probes[uid] = 0 if alive else before + 1
        if (before == 0) != alive or before in (1, 2):
            self._wake()
