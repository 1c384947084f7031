"""One attempt on this pod: old processes gone, share verified, hello, start once, then whatever happens to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from typing import Literal

from everstep_protocol import codec, local
from everstep_protocol.messages import Exited, Hello, HelloAnswer, Training, Trouble
from everstep_protocol.plan import Member, Plan
from everstep_protocol.shared_memory import Progress

from everstep_sidecar import snapshots, unsaved
from everstep_sidecar.backoff import Backoff
from everstep_sidecar.client import Refused, Unanswered
from everstep_sidecar.coordinator_link import CoordinatorLink
from everstep_sidecar.core import training as trainings
from everstep_sidecar.launcher_link import LauncherGone
from everstep_sidecar.pod import Pod
from everstep_sidecar.progress import now_ns
from everstep_sidecar.saver import Saver
from everstep_sidecar.sight import Arrival, Sights
from everstep_sidecar.state_reporter import Stage, StateName, StateReporter, state_name
from everstep_sidecar.stop_desk import StopDesk
from everstep_sidecar.store import go as go_files
from everstep_sidecar.verification import Verification

LOOK_SECONDS = 2.0  # R31: how often a member that has finished looks for the word that all have, where nobody tells it
DRAIN_SECONDS = 30.0  # R31: for so long the last save may still be on its way when the script fails after its last step
HELLO_PAUSE_SECONDS = 1.0  # all others wait for the last one's hello
RESENT_SECONDS = 1.0  # after a restart: how long a launcher may take to say again how the attempt ended
_log = logging.getLogger(__name__)


class AttemptRun:
    """A member's part in one attempt; cancelled when a higher one is seen."""

    def __init__(
        self,
        pod: Pod,
        plan: Plan,
        member: Member,
        coordinator: CoordinatorLink,
        desk: StopDesk,
        sights: Sights,
    ) -> None:
        self._pod = pod
        self._plan = plan
        self._member = member
        self._coordinator = coordinator
        self.desk = desk
        self.saver = Saver(pod, plan, member, coordinator)
        self._verification = Verification(pod, plan, member)
        self._arrival = Arrival(sights, plan.attempt)
        self._stage: Stage = "waiting"
        self._confirmed_finished = False

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.saver.run())
            group.create_task(self._report())
            group.create_task(self._go_through())

    def training(self) -> Training:
        """R25's T, read from shared memory now."""
        remembered = self._pod.remembered
        has_trainers = self._stage != "waiting" and remembered.started and remembered.attempt == self._plan.attempt
        started = remembered.started_at_ns if has_trainers else None
        silent_seconds = self._pod.link.silent_seconds(self._plan.attempt)
        return trainings.summarize(self._pages(), started_at_ns=started, now_ns=now_ns(), silent_seconds=silent_seconds)

    def num_skipped_saves(self) -> int:
        """Saves that this attempt's ranks skipped."""
        return max((page.num_skipped_saves for page in self._pages()), default=0)

    def num_failed_saves(self) -> int:
        """B14: saves of this attempt that never became whole in memory."""
        return max((page.num_failed_saves for page in self._pages()), default=0)

    def unsaved(self) -> Trouble | None:
        """B14: why saves fail in this pod's trainers at present."""
        return unsaved.failure(self._pod.settings.memory, self._plan.attempt, self._num_processes, now_ns())

    def _pages(self) -> tuple[Progress, ...]:
        return self._pod.pages.progress(self._plan.attempt, self._num_processes)

    @property
    def _num_processes(self) -> int:
        low, high = self._member.ranks
        return high - low

    @property
    def state_name(self) -> StateName:
        """Where this member is in the attempt."""
        if self._stage == "waiting" and self._verification.is_advancing:
            return "preparing"
        return state_name(self._stage, self.training().phase)

    @property
    def trouble(self) -> Trouble | None:
        """What keeps this member from its part at present: its mount, its storage."""
        return self._arrival.trouble or self._verification.trouble or self._pod.calls.trouble()

    async def _report(self) -> None:
        def confirm() -> None:
            self._confirmed_finished = True
            self._pod.changes.stir()

        await StateReporter(self._pod, self, self._plan.attempt, self._coordinator, on_finished=confirm).run()

    async def _go_through(self) -> None:
        nonce = await self._start_once()
        if nonce is not None:
            await self._watch(nonce)

    # ------------------------------------------------------------ start

    async def _start_once(self) -> str | None:
        """R7: the nonce of the launcher that runs the attempt; None: it is over before it began here."""
        link, attempt = self._pod.link, self._plan.attempt
        bad: tuple[str, ...] | None = None
        while True:
            await self._pod.changes.wait(lambda: link.is_stopped(attempt - 1))
            nonce = link.nonce
            if self._pod.remembered.started:
                return await self._found_started(nonce)
            if bad is None:
                await asyncio.to_thread(snapshots.drop_foreign, self._pod.settings.memory, attempt)
                await self._arrival.run()
                bad = await self._verification.run()
            elif (answer := await self._hello(nonce, bad)) is not None:
                return await self._obey(answer, nonce)

    async def _found_started(self, nonce: str) -> str | None:
        """This sidecar was restarted in mid-attempt. The launcher must still have it, or say how it ended."""
        link, attempt = self._pod.link, self._plan.attempt
        self._stage = "started"
        known = await self._pod.changes.wait(lambda: link.running == attempt or self._has_ended(nonce), RESENT_SECONDS)
        if known:
            return nonce
        await self._exited("launcher-gone", None)
        return None

    async def _hello(self, nonce: str, bad: tuple[str, ...]) -> HelloAnswer | None:
        """Say hello until it is answered; None: the launcher changed meanwhile, begin again."""
        link = self._pod.link
        asked = asyncio.create_task(self._insist_on_hello(Hello(self._plan.attempt, self._plan.plan_id, nonce, bad)))
        changed = asyncio.create_task(self._pod.changes.wait(lambda: link.nonce != nonce or not link.connected))
        try:
            await asyncio.wait({asked, changed}, return_when=asyncio.FIRST_COMPLETED)
            return asked.result() if asked.done() else None
        finally:
            asked.cancel()
            changed.cancel()

    async def _insist_on_hello(self, hello: Hello) -> HelloAnswer:
        backoff = Backoff(most=HELLO_PAUSE_SECONDS)
        while True:
            try:
                return await self._coordinator.hello(hello)
            except (Unanswered, Refused) as error:
                _log.log(logging.DEBUG if backoff.has_paused else logging.INFO, "hello was not answered: %s", error)
            await backoff.pause()

    async def _obey(self, answer: HelloAnswer, nonce: str) -> str | None:
        if answer.answer == "over":
            self._stage = "ended"
            return None
        attempt = self._plan.attempt
        remembered = await self._pod.remember(
            attempt,
            started=True,
            started_at_ns=now_ns(),
            master_addr=answer.master_addr,
            master_port=answer.master_port,
        )
        if not remembered:
            return None
        if self._pod.link.nonce != nonce or not self._pod.link.connected:
            await self._exited("launcher-gone", None)
            return None
        return await self._order_start(answer, nonce)

    async def _order_start(self, answer: HelloAnswer, nonce: str) -> str | None:
        self.desk.reset()
        resume = self._plan.resume
        start = local.Start(
            attempt=self._plan.attempt,
            plan=codec.dumps(self._plan),
            ranks=self._member.ranks,
            world=self._plan.world,
            master_addr=answer.master_addr,
            master_port=answer.master_port,
            resume_dir="" if resume.kind == "none" else str(self._pod.settings.job_storage / resume.dir),
        )
        try:
            self._pod.link.order(start)
        except LauncherGone:
            await self._exited("launcher-gone", None)
            return None
        self._stage = "started"
        _log.info("attempt %d starts here with ranks %s", self._plan.attempt, list(self._member.ranks))
        self._pod.changes.bump()
        return nonce

    # ------------------------------------------------------------ run and end

    def _has_ended(self, nonce: str) -> bool:
        link, attempt = self._pod.link, self._plan.attempt
        exited = link.exited is not None and link.exited.attempt == attempt
        return exited or link.finished == attempt or link.nonce != nonce or not link.connected

    async def _watch(self, nonce: str) -> None:
        link, attempt = self._pod.link, self._plan.attempt
        await self._pod.changes.wait(lambda: self._has_ended(nonce))
        if link.finished == attempt and link.nonce == nonce:
            await self._finish()
        elif link.exited is not None and link.exited.attempt == attempt and link.nonce == nonce:
            await self._exited(self._cause(link.exited), link.exited)
        else:
            await self._exited("launcher-gone", None)

    def _cause(self, exited: local.ProcessExited) -> Literal["crash", "peer-lost", "launcher-gone"]:
        """A pod that leaves ends its trainers itself: no crash."""
        if self._pod.link.leaving and (exited.signal == signal.SIGTERM or exited.exit_code == 128 + signal.SIGTERM):
            return "launcher-gone"
        return "peer-lost" if exited.peer_lost else "crash"

    async def _exited(
        self, cause: Literal["crash", "peer-lost", "launcher-gone"], end: local.ProcessExited | None
    ) -> None:
        """Tell the coordinator, until it knows."""
        self._stage = "ended"
        self._pod.changes.bump()
        died_at = time.monotonic()
        if self._finished_step >= 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await self.saver.drained()
        backoff = Backoff()
        while True:
            with contextlib.suppress(Unanswered, Refused):
                await self._coordinator.exited(self._exited_message(cause, end, time.monotonic() - died_at))
                return
            await backoff.pause()

    def _exited_message(
        self,
        cause: Literal["crash", "peer-lost", "launcher-gone"],
        end: local.ProcessExited | None,
        age_seconds: float,
    ) -> Exited:
        attempt = self._plan.attempt
        end = end or local.ProcessExited(attempt, self._member.ranks[0], None, None, False, False, "")
        how = (end.exit_code, end.signal, end.oom_killed, end.last_lines[-2048:])
        told = (age_seconds, self._finished_step, self._pod.link.leaving, end.refused)
        return Exited(attempt, end.rank, cause, *how, *told)

    @property
    def _finished_step(self) -> int:
        """The last step that the script asked for, -1: not all ranks of this pod have saved it. It may be the resume's."""
        training = self.training()
        return max(training.step, self._plan.resume.step) if training.phase == "finished" else -1

    @property
    def finished_step(self) -> int:
        """R31: the newest step that was to be saved here, -1: none. The coordinator knows whether it is committed."""
        return max(self._finished_step, self.saver.newest_step)

    @property
    def bytes_age_seconds(self) -> float | None:
        """Since bytes of a save last reached the storage from here; None: nothing is being written."""
        return self.saver.bytes_age_seconds

    async def _finish(self) -> None:
        """R31: finished is said when nothing waits in memory any more; the launcher stays until the coordinator knows that it is saved."""
        await self.saver.drained()
        self._stage = "finished"
        self._pod.changes.bump()
        while not await self._pod.changes.wait(lambda: self._confirmed_finished, LOOK_SECONDS):
            if await self._is_marked_finished():
                break
        with contextlib.suppress(LauncherGone):
            self._pod.link.order(local.Exit("finished"))

    async def _is_marked_finished(self) -> bool:
        """R31: the coordinator's pod may have ended, as it should, before this member heard it say so; storage knows."""
        try:
            return await self._pod.storage(go_files.is_finished, self._plan.attempt)
        except OSError as error:
            _log.warning("cannot see whether the job is finished, will look again: %s", error)
            return False
