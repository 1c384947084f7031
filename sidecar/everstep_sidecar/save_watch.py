"""The coordinator's eye on saves that were due: what the members report, by its own clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from everstep_protocol.messages import MemberState, Trouble
from everstep_protocol.plan import Plan

from everstep_sidecar.core import overdue
from everstep_sidecar.core.naming import member_name
from everstep_sidecar.core.overdue import Course, Word
from everstep_sidecar.core.saves import Book

REASON = "SavesOverdue"


class SaveWatch:
    """One attempt's saves. `clock` gives monotonic seconds."""

    def __init__(self, plan: Plan, clock: Callable[[], float] = time.monotonic) -> None:
        self._plan = plan
        self._clock = clock
        self._course = Course(plan.interval, plan.resume.step)
        self._heard: dict[str, tuple[MemberState, float]] = {}

    def note(self, uid: str, state: MemberState) -> None:
        """A member says how it is."""
        self._heard[uid] = (state, self._clock())
        self._course = overdue.stepped(self._course, state.step, self._clock())

    def begun(self, step: int) -> None:
        """A member's word of a save."""
        self._course = overdue.begun(self._course, step, self._clock())

    def committed(self, step: int) -> None:
        """A save is on storage."""
        self._course = overdue.committed(self._course, step, self._clock())

    def dropped(self, step: int) -> None:
        """A save was given up."""
        self._course = overdue.dropped(self._course, step)

    def bytes_age_seconds(self) -> float | None:
        """Since bytes of a save last reached the storage, from any member; None: nobody writes."""
        now = self._clock()
        ages = (
            now - at + state.bytes_age_seconds
            for state, at in self._heard.values()
            if state.bytes_age_seconds is not None
        )
        return min(ages, default=None)

    def failure(self, book: Book) -> Trouble | None:
        """R16: saves that were due and have not come."""
        now = self._clock()
        since = overdue.since(self._course, now, self.bytes_age_seconds())
        if since is None:
            return None
        words = {member.uid: self._word(member.uid, now) for member in self._plan.members}
        message = overdue.sentence(self._course, book, words, self._plan.coordinator.uid)
        return Trouble(REASON, message, now - since)

    def _word(self, uid: str, now: float) -> Word:
        state, at = self._heard.get(uid, (None, 0.0))
        is_silent = state is None or now - at > overdue.SILENT_SECONDS
        return Word(member_name(self._plan, uid), is_silent, state.trouble.message if state and state.trouble else "")
