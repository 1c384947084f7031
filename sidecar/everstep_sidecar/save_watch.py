"""The coordinator's eye on saves that were due, by its own clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from everstep_protocol.messages import Trouble
from everstep_protocol.plan import Plan

from everstep_sidecar.core import membership, overdue
from everstep_sidecar.core.membership import Heard
from everstep_sidecar.core.naming import member_name
from everstep_sidecar.core.overdue import Course, Word
from everstep_sidecar.core.saves import Book

LOOK_SECONDS = 1.0  # all members report every second: one look at all of them is enough
REASON = "SavesOverdue"


class SaveWatch:
    """One attempt's saves. `heard`: the members' words, by pod UID; `clock` gives monotonic seconds."""

    def __init__(
        self, plan: Plan, heard: Callable[[], Mapping[str, Heard]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._plan = plan
        self._heard = heard
        self._clock = clock
        self._course = Course(plan.interval, plan.resume.step)
        self._looked_at = -LOOK_SECONDS

    def stepped(self, step: int) -> bool:
        """A member reports a step; gives whether it is time to look for what is overdue."""
        now = self._clock()
        self._course = overdue.stepped(self._course, step, now)
        is_time = now - self._looked_at >= LOOK_SECONDS
        if is_time:
            self._looked_at = now
        return is_time

    def begun(self, step: int) -> None:
        """A member's word of a save."""
        self._course = overdue.begun(self._course, step, self._clock())

    def committed(self, step: int) -> None:
        """A save is on storage."""
        self._course = overdue.committed(self._course, step, self._clock())

    def dropped(self, step: int) -> None:
        """A save was given up."""
        self._course = overdue.dropped(self._course, step)

    def failure(self, book: Book) -> Trouble | None:
        """R16: saves that were due and have not come."""
        now, heard = self._clock(), self._heard()
        since = overdue.since(self._course, now, membership.bytes_age_seconds(heard))
        if since is None:
            return None
        words = {member.uid: self._word(member.uid, heard.get(member.uid)) for member in self._plan.members}
        message = overdue.sentence(self._course, book, words, self._plan.coordinator.uid)
        return Trouble(REASON, message, now - since)

    def _word(self, uid: str, heard: Heard | None) -> Word:
        is_silent = heard is None or heard.age_seconds > overdue.SILENT_SECONDS
        trouble = heard.state.trouble if heard is not None and heard.state is not None else None
        return Word(member_name(self._plan, uid), is_silent, trouble.message if trouble else "")
