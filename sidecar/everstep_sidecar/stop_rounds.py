"""R19 on the coordinator: name a step, ask all, confirm or withdraw; then wait for that step's commit."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from everstep_protocol.messages import Over, Peer, StopAnswer, StopOrder, Trouble
from everstep_protocol.plan import Member, Plan

from everstep_sidecar.backoff import Backoff
from everstep_sidecar.client import Refused, Unanswered
from everstep_sidecar.core import stop_round
from everstep_sidecar.pod import Pod
from everstep_sidecar.troubles import Lasting

ASK_SECONDS = 2.0
LATE_SECONDS = 10.0  # an order that was not heard for so long, or a save that does not get on, is told
_log = logging.getLogger(__name__)


class NotAnswered(Exception):
    """A member did not answer within the deadline."""


@dataclass(frozen=True)
class Ways:
    """What the rounds need of the rest: this pod's own answer, the newest step heard of, what is committed or given up, whether all
    ranks have stopped and no bytes of a save reach the storage, how to end."""

    own: Callable[[StopOrder], StopAnswer]
    newest: Callable[[], int]
    is_committed: Callable[[int], bool]
    why_dropped: Callable[[int], str]
    is_stalled: Callable[[], bool]
    end: Callable[[Over], None]


class StopRounds:
    """One save-and-stop of one attempt. It ends with the commit, with a withdrawal that all heard, or with the attempt."""

    def __init__(self, pod: Pod, plan: Plan, ways: Ways) -> None:
        self._pod = pod
        self._plan = plan
        self._ways = ways
        self._order: StopOrder | None = None  # the last one that is told until it is known
        self._unheard: set[int] = set()  # worker ids that have not answered it
        self._lasting = Lasting()
        self.is_withdrawing = (
            False  # then another round may take this one's place: its order tells ranks to go on as well
        )

    def trouble(self) -> Trouble | None:
        """Who does not hear an order that all must hear, or which save does not come; None within a usual time."""
        order = self._order
        if order is not None and self._unheard:
            self._lasting.note("StopNotHeard", self._unheard_by(order))
        elif order is not None and order.order == "confirm" and self._ways.is_stalled():
            what = f"all ranks have stopped at step {order.step} as asked"
            self._lasting.note("StopNotSaved", f"{what}, and no bytes of that save reach the storage")
        else:
            self._lasting.clear()
        trouble = self._lasting.trouble()
        return trouble if trouble is not None and trouble.age_seconds >= LATE_SECONDS else None

    def _unheard_by(self, order: StopOrder) -> str:
        names = ", ".join(f"w{number}" for number in sorted(self._unheard))
        what = "to stop at" if order.order == "confirm" else "to go on after"
        return (
            f"the sidecars of workers {names} do not answer the order {what} step {order.step}: "
            "see those pods and their nodes"
        )

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
        await self._insist(StopOrder(self._plan.attempt, step, "confirm"))
        await self._pod.changes.wait(lambda: self._ways.is_committed(step) or self._ways.why_dropped(step) != "")
        self._order = None
        if self._ways.is_committed(step):
            self._end(step, f"step {step} is saved")
        else:  # no rank goes on from here: what is lost is done again
            self._end(-1, f"its last state, after step {step}, could not be saved: {self._ways.why_dropped(step)}")

    async def withdraw(self, step: int) -> None:
        """Ranks that wait at the step go on."""
        self.is_withdrawing = True
        await self._insist(StopOrder(self._plan.attempt, step, "withdraw"))
        await self._pod.remember(self._plan.attempt, stop_step=-1, stop_confirmed=False)
        self._order = None

    async def _propose(self, proposed: stop_round.Round, until: float) -> stop_round.Outcome | None:
        await self._pod.remember(self._plan.attempt, stop_step=proposed.step, stop_confirmed=False)
        try:
            answers = await self._tell(StopOrder(self._plan.attempt, proposed.step, "propose"), until=until)
            outcome = stop_round.judge(proposed, answers)
            if outcome.what != "confirm":
                await self._tell(StopOrder(self._plan.attempt, proposed.step, "withdraw"), until=until)
        except NotAnswered:
            await self.withdraw(proposed.step)
            return None
        return outcome

    async def _insist(self, order: StopOrder) -> None:
        """Until every member knows; `trouble` says who does not."""
        self._order = order
        self._unheard = {member.id for member in self._plan.members}
        await self._tell(order, until=None)

    async def _tell(self, order: StopOrder, *, until: float | None) -> dict[str, StopAnswer]:
        members = self._plan.members
        answers = await asyncio.gather(*(self._ask(member, order, until) for member in members), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return {m.uid: a for m, a in zip(members, answers, strict=True) if isinstance(a, StopAnswer)}

    async def _ask(self, member: Member, order: StopOrder, until: float | None) -> StopAnswer:
        backoff = Backoff()
        while until is None or time.monotonic() < until:
            try:
                answer = await self._ask_once(member, order)
            except (Unanswered, Refused) as error:
                _log.info("a stop order was not answered: %s", error)
            else:
                self._unheard.discard(member.id)
                return answer
            await backoff.pause()
        raise NotAnswered(member.uid)

    async def _ask_once(self, member: Member, order: StopOrder) -> StopAnswer:
        if member.uid == self._pod.uid:
            return self._ways.own(order)
        peer = Peer(member.uid, member.ip)
        return await self._pod.client.post(peer, "/v1/stop", order, StopAnswer, seconds=ASK_SECONDS)

    def _end(self, step: int, why: str) -> None:
        self._ways.end(Over("stopped", f"the attempt was stopped as asked: {why}", uid=self._pod.uid, step=step))
