"""R19 on the coordinator: name a step, ask all, confirm or withdraw; then wait for that step's commit."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from everstep_protocol.messages import Over, Peer, StopAnswer, StopOrder
from everstep_protocol.plan import Member, Plan

from everstep_sidecar.client import Refused, Unanswered
from everstep_sidecar.core import stop_round
from everstep_sidecar.pod import Pod

ASK_SECONDS = 2.0
RETRY_SECONDS = 0.2
_log = logging.getLogger(__name__)


class NotAnswered(Exception):
    """A member did not answer within the deadline."""


@dataclass(frozen=True)
class Ways:
    """What the rounds need of the rest: this pod's own answer, the newest step heard of, what is committed, how to end."""

    own: Callable[[StopOrder], StopAnswer]
    newest: Callable[[], int]
    is_committed: Callable[[int], bool]
    end: Callable[[Over], None]


class StopRounds:
    """One save-and-stop of one attempt."""

    def __init__(self, pod: Pod, plan: Plan, ways: Ways) -> None:
        self._pod = pod
        self._plan = plan
        self._ways = ways

    async def run(self, deadline_seconds: float) -> None:
        """Until the attempt is over, or the deadline came before all agreed: then everything is as before."""
        until = time.monotonic() + deadline_seconds
        proposed = stop_round.first_round(self._ways.newest())
        while True:
            outcome = await self._propose(proposed, until)
            if outcome is None:
                _log.warning("save-and-stop was given up: not all members agreed on a step in time")
                return
            if outcome.what == "no-library":
                self._end(-1, "its trainers report no steps")
                return
            if outcome.what == "confirm":
                await self.confirm(proposed.step)
                return
            proposed = outcome.next

    async def confirm(self, step: int) -> None:
        """All agreed: from here on there is no way back, so each member is told until it knows."""
        await self._pod.remember(self._plan.attempt, stop_step=step, stop_confirmed=True)
        await self._tell(StopOrder(self._plan.attempt, step, "confirm"), until=None)
        await self._pod.changes.wait(lambda: self._ways.is_committed(step))
        self._end(step, f"step {step} is saved")

    async def withdraw(self, step: int) -> None:
        """Ranks that wait at the step go on."""
        await self._tell(StopOrder(self._plan.attempt, step, "withdraw"), until=None)
        await self._pod.remember(self._plan.attempt, stop_step=-1, stop_confirmed=False)

    async def _propose(self, proposed: stop_round.Round, until: float) -> stop_round.Outcome | None:
        await self._pod.remember(self._plan.attempt, stop_step=proposed.step, stop_confirmed=False)
        try:
            answers = await self._tell(StopOrder(self._plan.attempt, proposed.step, "propose"), until=until)
        except NotAnswered:
            await self.withdraw(proposed.step)
            return None
        outcome = stop_round.judge(proposed, answers)
        if outcome.what != "confirm":
            await self.withdraw(proposed.step)
        return outcome

    async def _tell(self, order: StopOrder, *, until: float | None) -> dict[str, StopAnswer]:
        members = self._plan.members
        answers = await asyncio.gather(*(self._ask(member, order, until) for member in members), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return {m.uid: a for m, a in zip(members, answers, strict=True) if isinstance(a, StopAnswer)}

    async def _ask(self, member: Member, order: StopOrder, until: float | None) -> StopAnswer:
        if member.uid == self._pod.uid:
            return self._ways.own(order)
        while until is None or time.monotonic() < until:
            try:
                peer = Peer(member.uid, member.ip)
                return await self._pod.client.post(peer, "/v1/stop", order, StopAnswer, seconds=ASK_SECONDS)
            except (Unanswered, Refused) as error:
                _log.info("a stop order was not answered: %s", error)
            await asyncio.sleep(RETRY_SECONDS)
        raise NotAnswered(member.uid)

    def _end(self, step: int, why: str) -> None:
        self._ways.end(Over("stopped", f"the attempt was stopped as asked: {why}", uid=self._pod.uid, step=step))
