"""What the directories of a folder say about its runs: values in, values out.

A run is to its folder what an attempt is to a job's storage, so a job's rules choose here, too. What a cluster keeps in the job's
status, the number and lineage of the last run, is read from the newest checkpoint that a run has left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from everstep_protocol import lineage as lineages
from everstep_protocol import storage
from everstep_protocol.lineage import Lineage
from everstep_protocol.resume import IN_FOLDER, Choice, Question
from everstep_protocol.verdict import Verdict


@dataclass(frozen=True)
class Run:
    """A run that writes a folder."""

    number: int
    lineage: Lineage  # what counts, beside its own checkpoints
    base: str  # directory that it resumed from or committed last; empty: step 0, nothing committed
    step: int | None = None  # that it committed last


def question(verdicts: Iterable[Verdict]) -> Question:
    """R12: what `resume.choose` must know. No run has left a checkpoint: what is there was there before, an import."""
    made_here = [verdict for verdict in verdicts if verdict.attempt > 0 and verdict.state != "incomplete"]
    if not made_here:
        return Question((), 0, owned=False, remedies=IN_FOLDER)
    last = max(made_here, key=_order)
    return Question(last.lineage, last.attempt, ever=True, remedies=IN_FOLDER)


def begin(choice: Choice, verdicts: Collection[Verdict]) -> Run:
    """R9: the run that resumes as chosen, with a number of its own."""
    places = {(verdict.attempt, verdict.step) for verdict in verdicts}
    return Run(highest(verdicts) + 1, lineages.prune(choice.lineage, places), choice.resume.dir)


def commit(run: Run, name: str, step: int) -> Run:
    """The run after it committed `step` as directory `name`."""
    return dataclasses.replace(run, base=name, step=step)


def go_on(run: Run, verdicts: Collection[Verdict]) -> Run:
    """R9: the run after it had given the folder away. Where another one wrote meanwhile it branches off: under a new number."""
    number = highest(verdicts)
    if number < run.number or (number == run.number and run.step is not None):
        return run
    lineage = run.lineage if run.step is None else lineages.cut(run.lineage, (run.number, run.step))
    return Run(number + 1, lineage, run.base)


def highest(verdicts: Iterable[Verdict]) -> int:
    """The highest number that any directory has, in its record or in its name alone."""
    return max(
        (max(verdict.attempt, storage.parse_attempt_of_step_name(verdict.dir)) for verdict in verdicts), default=0
    )


def expired(verdicts: Iterable[Verdict], *, keep_last: int, base: str) -> list[str]:
    """R13: the complete ones that may go, oldest first: all but the `keep_last` newest, and never the one that the run stands on."""
    found = sorted((verdict for verdict in verdicts if verdict.state == "complete"), key=_order)
    return [verdict.dir for verdict in found[:-keep_last] if verdict.dir != base]


def _order(verdict: Verdict) -> tuple[int, int, str]:
    return verdict.attempt, verdict.step, verdict.dir
