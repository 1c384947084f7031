"""When to save, as tables of step numbers and clock readings."""

from __future__ import annotations

import pytest
from everstep.interval import Clock, EverySteps


def test_every_steps() -> None:
    assert [step for step in range(1, 26) if EverySteps(10).is_due(step)] == [10, 20]
    assert all(EverySteps(1).is_due(step) for step in range(1, 5))


@pytest.mark.parametrize(
    ("since_save", "usual_step", "wants"),
    [
        (0.0, 1.0, False),
        (9.4, 1.0, False),
        (9.6, 1.0, True),
        (30.0, 1.0, True),
        (4.0, 20.0, True),
        (9.999, 0.0, False),
        (10.0, 0.0, True),
    ],
)
def test_a_save_is_wanted_when_waiting_a_step_misses_the_interval_by_more(
    since_save: float, usual_step: float, wants: bool
) -> None:
    assert Clock(10.0, since_save, usual_step, 3).wants_save() is wants


@pytest.mark.parametrize(
    ("since_save", "usual_step", "last_gap", "gap"),
    [
        (10.0, 1.0, 100, 10),  # saved now: an interval's worth of steps
        (4.0, 1.0, 100, 6),  # not yet: what is left of it
        (10.0, 0.01, 3, 6),  # never more than twice the last gap: the estimate may be wrong
        (10.0, 60.0, 3, 1),  # steps longer than the interval: each
        (3.0, 0.0, 3, 1),  # nothing known of a step yet
    ],
)
def test_the_next_question(since_save: float, usual_step: float, last_gap: int, gap: int) -> None:
    assert Clock(10.0, since_save, usual_step, last_gap).next_gap() == gap
