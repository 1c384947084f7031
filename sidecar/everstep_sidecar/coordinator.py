"""The coordinator's side of one attempt: hello and go, what ends it, what it knows of its members."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Any

from everstep_protocol.messages import (
    Ack,
    Exited,
    Hello,
    HelloAnswer,
    MemberState,
    MemberSummary,
    Over,
    StopAnswer,
    StopOrder,
    Trouble,
)
from everstep_protocol.plan import Plan
from everstep_protocol.records import FORMAT, Go

from everstep_sidecar.backoff import Backoff
from everstep_sidecar.commits import Commits
from everstep_sidecar.core import causes
from everstep_sidecar.core import roll as rolls
from everstep_sidecar.core.causes import Report
from everstep_sidecar.member_words import MemberWords
from everstep_sidecar.pod import Pod
from everstep_sidecar.stop_rounds import StopRounds, Ways
from everstep_sidecar.store import go as go_files
from everstep_sidecar.tasks import Tasks

COLLECT_SECONDS = 0.1  # R32: reports that come within this time belong to one failure
COLLECT_CAUSE_SECONDS = 0.4  # more, while all that was heard is peer-lost
PORT_SECONDS = 15.0  # within which the own launcher must name a port
LAUNCHER_SECONDS = 20.0  # after a restart: how long to wait for the own launcher to connect again
_log = logging.getLogger(__name__)


class Coordinator:
    """One attempt, from hello to over. `on_higher` is told of higher attempts; `own_stop` answers a stop order for this pod,
    `own_step` says which step its own trainers have finished."""

    def __init__(
        self,
        pod: Pod,
        plan: Plan,
        *,
        on_higher: Callable[[int], None],
        own_stop: Callable[[StopOrder], StopAnswer],
        own_step: Callable[[], int],
    ) -> None:
        self._pod = pod
        self._plan = plan
        self._own_stop = own_stop
        self._own_step = own_step
        self._roll = rolls.Roll(frozenset(member.uid for member in plan.members))
        self._over_at = time.monotonic()
        self._reports: list[Report] = []
        self.words = MemberWords(plan)
        self._recovered = False
        self._tasks = Tasks(pod.on_failure)
        self._stopping: asyncio.Task[None] | None = None
        self._rounds: StopRounds | None = None
        self._finishing = False
        self.finished = False
        self.commits = Commits(pod, plan, on_higher=on_higher, heard=self.words.heard)

    @property
    def over(self) -> Over | None:
        """How the attempt ended, and how long ago; None while it has not."""
        over = self._roll.over
        return over and dataclasses.replace(over, age_seconds=time.monotonic() - self._over_at)

    @property
    def gone(self) -> bool:
        """Whether go was given."""
        return self._roll.gone

    def start(self) -> None:
        """Look whether this attempt has started before (R7), and what is on storage."""
        self._tasks.spawn(self._recover())
        self._tasks.spawn(self._learn_storage())

    def close(self) -> None:
        """A higher attempt exists."""
        self._tasks.cancel()
        self.commits.close()
        self._pod.changes.stir()

    async def hello(self, uid: str, hello: Hello, seconds: float | None = None) -> HelloAnswer | None:
        """R7: held until go or over; None: `seconds` are over and others are missing."""
        self.words.hear(uid)
        if not self._recovered:
            self.words.held.add(uid)
            self._pod.changes.bump()
        if not await self._pod.changes.wait(lambda: self._recovered, seconds):
            return None
        before = self._roll
        self._roll, verdict = rolls.hear(self._roll, uid, hello)
        if self._roll != before:
            self._pod.changes.bump()
        if verdict == "open":
            self._tasks.spawn(self._open())
        await self._pod.changes.wait(lambda: self._is_decided(uid, hello), seconds)
        return self._hello_answer(uid, hello)

    def exited(self, uid: str, exited: Exited) -> Ack:
        """R32: a member's first bad end. The first report starts a short collection, then the cause is chosen."""
        self.words.note_exited(uid, exited)
        if all(report.uid != uid for report in self._reports):
            self._reports.append(Report(uid, exited, time.monotonic() - exited.age_seconds))
            if len(self._reports) == 1:
                self._tasks.spawn(self._settle())
            self._pod.changes.stir()
        return self._pod.ack()

    def state(self, uid: str, state: MemberState) -> Ack:
        """What a member says of itself."""
        if self.words.note(uid, state):
            self._pod.changes.bump()
        self.commits.note_step(state.step)
        if not self._finishing and self.over is None and self.words.all_are("finished"):
            self._conclude(self.words.finished_step())
        return self._pod.ack(finished=self.finished)

    def leave(self, deadline_seconds: float) -> Ack:
        """R19: begin a save-and-stop; one that is under way goes on. One that is being withdrawn gives way: some may never hear of it."""
        if self._stopping is not None and self._rounds is not None and self._rounds.is_withdrawing:
            self._stopping.cancel()
            self._stopping = None
        if self.over is None and (self._stopping is None or self._stopping.done()):
            self._stopping = self._tasks.spawn(self._new_rounds().run(deadline_seconds))
        return self._pod.ack()

    def hear(self, uid: str) -> None:
        """A member said something."""
        self.words.hear(uid)

    def failing(self, unsaved: Trouble | None) -> Trouble | None:
        """R16: why nothing is saved at present, by what trainers say too (`unsaved`), or why a save-and-stop does not end."""
        stop = self._rounds.trouble() if self._rounds and self.over is None else None
        return self.commits.failure(unsaved or stop)

    def members(self) -> tuple[MemberSummary, ...]:
        """One line a member."""
        return self.words.summaries(frozenset(self._roll.nonces), gone=self._roll.gone)

    def end(self, over: Over) -> None:
        """The attempt is over; the first cause stays."""
        if self._roll.over is None:
            self._over_at = time.monotonic()
            _log.warning("attempt %d is over (%s): %s", self._plan.attempt, over.cause, over.message)
        self._roll = rolls.ended(self._roll, over)
        self._pod.changes.bump()

    def _is_decided(self, uid: str, hello: Hello) -> bool:
        roll = self._roll
        return roll.gone or roll.over is not None or roll.nonces.get(uid) != hello.nonce

    def _hello_answer(self, uid: str, hello: Hello) -> HelloAnswer | None:
        if not self._is_decided(uid, hello):
            return None
        if self._roll.over is not None or self._roll.nonces.get(uid) != hello.nonce:
            return HelloAnswer("over", highest=self._pod.highest)
        remembered = self._pod.remembered
        return HelloAnswer("go", self._plan.coordinator.ip, remembered.master_port, self._pod.highest)

    async def _recover(self) -> None:
        """R7: `go` that is there before anybody said hello means that this sidecar was restarted, or the pod was."""
        attempt = self._plan.attempt
        found = await self._insist(go_files.has_go, attempt)
        if found:
            link = self._pod.link
            await self._pod.changes.wait(lambda: link.connected, LAUNCHER_SECONDS)
            self._roll, goes_on = rolls.restarted_coordinator(
                self._roll,
                self._pod.remembered.nonces,
                uid=self._pod.uid,
                nonce=link.nonce,
                still_running=attempt in (link.running, link.finished),
            )
            _log.info("go was found: the attempt %s", "goes on" if goes_on else "is over")
            self.finished = await self._insist(go_files.is_finished, attempt)
            if goes_on:
                self._resume_stop()
        self._recovered = True
        self.words.held.clear()
        self._pod.changes.bump()

    def _resume_stop(self) -> None:
        """R19 after a restart: confirmed orders are told again, others withdrawn, or ranks would wait for ever."""
        remembered = self._pod.remembered
        if remembered.stop_confirmed:
            self._stopping = self._tasks.spawn(self._new_rounds().confirm(remembered.stop_step))
        elif remembered.stop_step >= 0:
            self._stopping = self._tasks.spawn(self._new_rounds().withdraw(remembered.stop_step))

    async def _learn_storage(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self.commits.start()
            except OSError as error:
                _log.warning("cannot list the storage, will try again: %s", error)
            else:
                return
            await backoff.pause()

    async def _open(self) -> None:
        """R7: plan.json, then go, exclusively; only then is anybody told."""
        attempt = self._plan.attempt
        port = await self._choose_port()
        nonces = dict(self._roll.nonces)
        if port is None or not await self._pod.remember(attempt, nonces=nonces, master_port=port):
            return
        await self._insist(go_files.write_plan, self._plan)
        if not await self._insist(go_files.give_go, attempt, Go(FORMAT, self._plan.plan_id, nonces)):
            self.end(Over("not-started", f"attempt {attempt} has been started before; it cannot start twice"))
            return
        self._roll = rolls.opened(self._roll)
        _log.info("go for attempt %d", attempt)
        self._pod.changes.bump()

    async def _choose_port(self) -> int | None:
        link, attempt = self._pod.link, self._plan.attempt
        nonce = self._roll.nonces[self._pod.uid]
        link.choose_port(attempt)
        answered = await self._pod.changes.wait(
            lambda: link.port is not None or not link.connected or link.nonce != nonce, PORT_SECONDS
        )
        if not answered:
            message = f"the launcher in the trainer container of {self._pod.settings.place} does not answer; its sidecar waited for a port"
            self.end(Over("not-started", message, uid=self._pod.uid))
            return None
        if link.port is None or link.nonce != nonce or link.port.attempt != attempt:
            self.end(Over("launcher-gone", "the coordinator's trainer container ended before go", uid=self._pod.uid))
            return None
        return link.port.port

    async def _settle(self) -> None:
        await asyncio.sleep(COLLECT_SECONDS)
        await self._pod.changes.wait(self._has_own_cause, COLLECT_CAUSE_SECONDS)
        first = causes.first_cause(tuple(self._reports))
        self.end(causes.over_of(first, self._plan, is_saved=self._is_on_storage(first.exited.finished_step)))

    def _is_on_storage(self, step: int) -> bool:
        return step <= self._plan.resume.step or self.commits.is_committed(step)

    def _has_own_cause(self) -> bool:
        return any(report.exited.cause != "peer-lost" for report in self._reports)

    def _conclude(self, step: int) -> None:
        """R31: all members have finished. So has the job, when the state after the last step is committed; one that is lost ends the attempt."""
        if self._is_on_storage(step):
            self._finishing = True
            self._tasks.spawn(self._finish())
        elif why := self.commits.why_lost(step):
            self.end(causes.lost_at_the_end(step, why, uid=self._pod.uid))

    async def _finish(self) -> None:
        await self._insist(go_files.mark_finished, self._plan.attempt)
        self.finished = True
        _log.info("attempt %d is finished and its last checkpoint is committed", self._plan.attempt)
        self._pod.changes.bump()

    def _new_rounds(self) -> StopRounds:
        ways = Ways(
            own=self._own_stop,
            newest=self._newest_step,
            is_committed=self.commits.is_committed,
            why_dropped=self.commits.why_dropped,
            is_stalled=self.words.is_stopped_and_stalled,
            end=self.end,
        )
        self._rounds = StopRounds(self._pod, self._plan, ways)
        return self._rounds

    def _newest_step(self) -> int:
        """Where no step is reported yet, the ranks stand at the resume's."""
        return max(self._plan.resume.step, self._own_step(), self.words.newest_step())

    async def _insist(self, function: Callable[..., Any], *args: Any) -> Any:
        """A call into the storage, repeated until it answers; meanwhile the pod's `storage` trouble says that it does not."""
        backoff = Backoff()
        while True:
            try:
                return await self._pod.storage(function, *args)
            except OSError as error:
                _log.warning("the storage failed, will try again: %s", error)
            await backoff.pause()
