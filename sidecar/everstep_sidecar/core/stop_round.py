"""R19: all ranks stop at one step. What the members' answers to a proposed step lead to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from everstep_protocol.messages import StopAnswer

FIRST_MARGIN = 2  # steps beyond the newest one reported
LARGEST_MARGIN = 256


@dataclass(frozen=True)
class Round:
    """One proposed step."""

    step: int
    margin: int


@dataclass(frozen=True)
class Outcome:
    """`confirm` the step; `again` with `next`, after a withdrawal; `no-library`: nothing reports steps, stop at once."""

    what: Literal["confirm", "again", "no-library"]
    next: Round


def first_round(newest: int) -> Round:
    """The step named first."""
    return Round(max(newest, 0) + FIRST_MARGIN, FIRST_MARGIN)


def judge(proposed: Round, answers: Mapping[str, StopAnswer]) -> Outcome:
    """R19: confirmed only if all agreed. `past` names a later step, with twice the margin, so that fast steps are caught up with."""
    kinds = {answer.answer for answer in answers.values()}
    if "no-library" in kinds:
        return Outcome("no-library", proposed)
    if "past" not in kinds:
        return Outcome("confirm", proposed)
    margin = min(proposed.margin * 2, LARGEST_MARGIN)
    newest = max(answer.step for answer in answers.values())
    return Outcome("again", Round(max(newest, proposed.step) + margin, margin))
