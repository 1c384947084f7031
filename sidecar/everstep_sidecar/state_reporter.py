"""What a member tells the coordinator of itself: on change, and every second. Changes wake the polls of this sidecar, too."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Literal, Protocol

from everstep_protocol.messages import MemberState, Training

from everstep_sidecar.client import Refused, Unanswered
from everstep_sidecar.coordinator_link import CoordinatorLink
from everstep_sidecar.core.membership import visible
from everstep_sidecar.pod import Pod

TICK_SECONDS = 0.05
REPORT_SECONDS = 1.0
FINISHED_SECONDS = 0.1  # the launcher waits for the word that all are

Stage = Literal["waiting", "started", "ended", "finished"]
StateName = Literal["waiting", "preparing", "starting", "running", "saving", "stopped", "finished"]


class Reported(Protocol):
    """What is reported: one attempt's run."""

    def training(self) -> Training: ...

    @property
    def state_name(self) -> StateName: ...


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
        while True:
            training = self._run.training()
            state = self._state(training)
            mark = _mark(state, training)
            if mark != told:
                self._pod.changes.bump()
            if mark != told or time.monotonic() - told_at >= _interval_seconds(state):
                told, told_at = mark, time.monotonic()
                await self._tell(state)
            await asyncio.sleep(TICK_SECONDS)

    async def _tell(self, state: MemberState) -> None:
        with contextlib.suppress(Unanswered, Refused):  # told again within a second
            if (await self._coordinator.state(state)).finished:
                self._on_finished()

    def _state(self, training: Training) -> MemberState:
        state = self._run.state_name
        stopped = training.step if state == "stopped" else -1
        lost = self._pod.peers.lost()
        return MemberState(self._attempt, state, training.step, lost, stopped, self._pod.link.leaving)


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
    return visible(state.state), state.step >= 0, state.stopped_step, lost, state.leaving, phase, training.library
