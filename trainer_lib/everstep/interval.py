"""When to save: policies as values. Ranks ask them at the end of every step and must all get the same answer without talking.

An interval in seconds needs one clock: rank 0's. It names the next step at which it wants to be asked again, which travels in
the agreement that ranks make at such steps anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_SAVE_STEPS = (
    3  # an interval in seconds saves first after this many steps of an attempt: the checkpoint proves the path
)


@dataclass(frozen=True)
class EverySteps:
    """Save when the number of finished steps is a multiple."""

    steps: int

    def is_due(self, step: int) -> bool:
        return step % self.steps == 0


@dataclass(frozen=True)
class Clock:
    """Rank 0's view of an interval in seconds: when the last save began, how long a step takes, the last gap in steps."""

    seconds: float
    since_save: float
    usual_step: float
    last_gap: int

    def wants_save(self) -> bool:
        """Whether waiting one more step would miss the interval by more than saving now does."""
        return self.since_save + self.usual_step / 2 >= self.seconds

    def next_gap(self) -> int:
        """In how many steps to ask again. At most twice the last gap: an estimate from the first steps may be far off."""
        left = self.seconds if self.wants_save() else self.seconds - self.since_save
        wanted = round(left / self.usual_step) if self.usual_step > 0 else 1
        return max(1, min(wanted, 2 * self.last_gap))
