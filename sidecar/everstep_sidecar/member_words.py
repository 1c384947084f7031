"""What the members of one attempt said of themselves to the coordinator, and when, by its own clock."""

from __future__ import annotations

import time
from typing import Literal

from everstep_protocol.messages import Exited, MemberState, MemberSummary
from everstep_protocol.plan import Plan

from everstep_sidecar.core import membership
from everstep_sidecar.core.membership import Heard, visible
from everstep_sidecar.core.overdue import ADVANCING_SECONDS
from everstep_sidecar.troubles import mark


class MemberWords:
    """The newest word of each. `held`: members whose hello is held until it is known whether the attempt had started before."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._states: dict[str, tuple[MemberState, float]] = {}
        self._heard_at: dict[str, float] = {}
        self._left: set[str] = set()  # members whose trainers ended because their pod leaves
        self.held: set[str] = set()

    def hear(self, uid: str) -> None:
        """A member said something."""
        self._heard_at[uid] = time.monotonic()

    def note(self, uid: str, state: MemberState) -> bool:
        """A member says how it is; gives whether that is worth an answer to a poll."""
        self.hear(uid)
        before = self._mark(uid)
        self._states[uid] = (state, time.monotonic())
        return self._mark(uid) != before

    def note_exited(self, uid: str, exited: Exited) -> None:
        """A member's trainers ended: its word of itself may come after the cause is chosen."""
        self.hear(uid)
        if exited.leaving:
            self._left.add(uid)

    def all_are(self, state: Literal["stopped", "finished"]) -> bool:
        """Whether every member said this of itself; R31: `finished` after its own last snapshot was committed."""
        return all(
            member.uid in self._states and self._states[member.uid][0].state == state for member in self._plan.members
        )

    def finished_step(self) -> int:
        """R31: the step whose checkpoint must be on storage, -1: none; when all have finished."""
        return max((state.finished_step for state, _ in self._states.values()), default=-1)

    def newest_step(self) -> int:
        """The newest step that was reported, -1: none."""
        return max((state.step for state, _ in self._states.values()), default=-1)

    def bytes_age_seconds(self) -> float | None:
        """Since bytes of a save last reached the storage from any member; None: nobody saves."""
        return membership.bytes_age_seconds(self.heard())

    def idle_seconds(self) -> float | None:
        """Since the last sign of life of any member's trainers, where they report no steps; None: not known."""
        return membership.idle_seconds(self.heard())

    def is_stopped_and_stalled(self) -> bool:
        """Whether all ranks have stopped, and no bytes of a save get on."""
        age_seconds = self.bytes_age_seconds()
        is_advancing = age_seconds is not None and age_seconds <= ADVANCING_SECONDS
        return self.all_are("stopped") and not is_advancing

    def summaries(self, ready: frozenset[str], *, gone: bool) -> tuple[MemberSummary, ...]:
        """One line a member; `ready` said hello."""
        return membership.summarize(self._plan, self.heard(), ready=ready | self.held, gone=gone)

    def heard(self) -> dict[str, Heard]:
        """By pod UID."""
        now = time.monotonic()
        said = {uid: self._states.get(uid, (None, at)) for uid, at in self._heard_at.items()}
        return {
            uid: Heard(state, now - at, now - self._heard_at[uid], uid in self._left)
            for uid, (state, at) in said.items()
        }

    def _mark(self, uid: str) -> object:
        state, _ = self._states.get(uid, (None, 0.0))
        lost = state and frozenset(state.lost_peers)
        return state and (visible(state.state), state.step >= 0, lost, state.leaving, mark(state.trouble))
