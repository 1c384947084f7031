"""R12: from which checkpoint an attempt resumes, and what must be known before it may start at step 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from everstep_protocol.complete import Verdict
from everstep_protocol.lineage import Lineage
from everstep_protocol.plan import Resume


@dataclass(frozen=True)
class Question:
    """All that the choice depends on, beside what the directories are."""

    lineage: Lineage  # of the last attempt
    last_attempt: int  # the last attempt that was planned: its own checkpoints count; 0: there was none
    condemned: frozenset[str] = frozenset()  # ids that are to be deleted: never a resume (R13)
    bad: frozenset[str] = frozenset()  # ids whose contents failed a hash check (R17)
    ever: bool = False  # status says that a complete checkpoint once existed
    resume_from: str | None = (
        None  # spec.resumeFrom where this generation has not honoured it yet: `none` or a directory
    )
    adopted: bool = False  # the path belonged to a former job of the same name (R11)
    owned: bool = True  # the owner file existed before this job's first fence
    finished: bool = False  # the former job's last attempt finished: `attempts/<n>/finished` is there


@dataclass(frozen=True)
class Refusal:
    """A directory that was looked at and not taken, and why."""

    dir: str
    reason: str


@dataclass(frozen=True)
class Choice:
    """`resume`: begin there. `stop`: nothing may be chosen; `reason` is one word for a condition, `message` a sentence."""

    outcome: Literal["resume", "stop"]
    resume: Resume
    lineage: Lineage  # of the attempt that will begin
    reason: str  # Newest | Older | OffLineage | FirstStart | Requested | Imported | NoUsableCheckpoint | FinishedRunInStorage | ...
    message: str
    refused: tuple[Refusal, ...] = ()


def choose(question: Question, verdicts: tuple[Verdict, ...]) -> Choice:
    """R12: the newest complete checkpoint on the lineage; order is attempt, then step, never a name or a time.

    Falls back along the lineage to older ones. None left on it: a complete one off the lineage, with its own manifest's
    lineage, only if no later attempt ever committed. Step 0 only if there is no complete and no refused one and `ever` is False.
    `resume_from` wins: `none` starts a new branch at 0, a directory must be complete. Stock directories (attempt 0) count only when
    named by `resume_from`, or at the first attempt in a path that had no owner file (the newest complete one).
    """
    raise NotImplementedError
