"""What a member tells the coordinator of itself: on change, and every second. Changes wake the polls of this sidecar, too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal, Protocol

from everstep_protocol.messages import MemberState, Training, Trouble

from everstep_sidecar.backoff import Backoff
from everstep_sidecar.client import Refused, Unanswered
from everstep_sidecar.coordinator_link import CoordinatorLink
from everstep_sidecar.core.membership import visible
from everstep_sidecar.core.training import idle_seconds
from everstep_sidecar.pod import Pod
from everstep_sidecar.troubles import mark

TICK_SECONDS = 0.05
REPORT_SECONDS = 1.0
FINISHED_SECONDS = 0.2  # the launcher waits for the word that all are

Stage = Literal["waiting", "started", "ended", "finished"]
StateName = Literal["waiting", "preparing", "starting", "running", "saving", "stopped", "finished"]


class Reported(Protocol):
    """What is reported: one attempt's run."""

    def training(self) -> Training: ...

    @property
    def state_name(self) -> StateName: ...

    @property
    def trouble(self) -> Trouble | None: ...

    @property
    def bytes_age_seconds(self) -> float | None: ...

    @property
    def finished_step(self) -> int: ...


class StateReporter:
    """Looks at shared memory every 50 ms; speaks when something that others wait for has changed (not on every step)."""

    def __init__(
        self,
        pod: Pod,
        run: Reported,
        attempt: int,
        coordinator: CoordinatorLink,
        *,
        on_finished: Callable[[], None],
    ) -> None:
        self._pod = pod
        self._run = run
        self._attempt = attempt
        self._coordinator = coordinator
        self._on_finished = on_finished

    async def run(self) -> None:
        """Until cancelled."""
        told: object = None
        told_at = 0.0
        backoff = Backoff(most=REPORT_SECONDS)
        while True:
            training = self._run.training()
            state = self._state(training)
            now = _mark(state, training)
            if now != told:
                self._pod.changes.bump()
            if now != told or time.monotonic() - told_at >= _interval_seconds(state):
                told, told_at = now, time.monotonic()
                await self._tell(state, backoff)
            await asyncio.sleep(TICK_SECONDS)

    async def _tell(self, state: MemberState, backoff: Backoff) -> None:
        try:
            answer = await self._coordinator.state(state)
        except (Unanswered, Refused):  # told again, whatever the interval says
            await backoff.pause()
            return
        backoff.reset()
        if answer.finished:
            self._on_finished()

    def _state(self, training: Training) -> MemberState:
        state = self._run.state_name
        stopped = training.step if state == "stopped" else -1
        lost = self._pod.peers.lost()
        return MemberState(
            self._attempt,
            state,
            training.step,
            lost,
            stopped,
            self._pod.link.leaving,
            self._run.trouble,
            self._run.bytes_age_seconds,
            self._run.finished_step if state == "finished" else -1,
            idle_seconds(training),
        )


def _interval_seconds(state: MemberState) -> float:
    return FINISHED_SECONDS if state.state == "finished" else REPORT_SECONDS


def state_name(stage: Stage, phase: str) -> StateName:
    """A member's state from where its attempt is and what its trainers publish."""
    if stage == "finished":
        return "finished"
    if stage in ("waiting", "ended"):
        return "waiting"
    if phase == "saving":
        return "saving"
    if phase == "stopped":
        return "stopped"
    return "running" if phase in ("training", "finished") else "starting"


def _mark(state: MemberState, training: Training) -> object:
    """What makes a change."""
    lost = frozenset(state.lost_peers)
    phase = "training" if training.phase == "saving" else training.phase
    trouble = mark(state.trouble)
    return (
        visible(state.state),
        state.step >= 0,
        state.stopped_step,
        lost,
        state.leaving,
        trouble,
        phase,
        training.library,
    )
