"""A decision before its conditions and suspects are put on."""

from __future__ import annotations

from dataclasses import dataclass, field

from everstep_operator.core.model import Action, JobStatus, Notice, Observed, Phase, WriteStatus


@dataclass(frozen=True)
class Trouble:
    """Why checkpoints are not healthy; `reason` empty: they are, as far as this outcome knows."""

    reason: str = ""
    message: str = ""
    is_users_fault: bool = False  # the spec must change: Valid=False


@dataclass(frozen=True)
class Outcome:
    """What to do and what to say, in short."""

    phase: Phase
    reason: str
    message: str
    actions: tuple[Action, ...] = ()
    requeue_after: float | None = None
    notices: tuple[Notice, ...] = ()
    trouble: Trouble = field(default_factory=Trouble)

    def status_after(self, seen: Observed) -> JobStatus:
        """The status once this outcome's write, if there is one, has succeeded."""
        first = self.actions[0] if self.actions else None
        return first.status if isinstance(first, WriteStatus) else seen.status
