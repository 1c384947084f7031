"""R12: from which checkpoint an attempt resumes, and what must be known before it may start at step 0."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from everstep_protocol import lineage as lineages
from everstep_protocol.lineage import Lineage
from everstep_protocol.plan import Resume
from everstep_protocol.verdict import Verdict

NONE = Resume(kind="none")
NEW_BRANCH: Lineage = (
    (0, -1),
)  # of an attempt that was asked to begin at 0: nothing older counts, and 0 stays allowed until something was saved


@dataclass(frozen=True)
class Remedies:
    """What people are told to do, in the words of the place where they run. Nothing is decided by them."""

    no_usable: str
    stock: str
    imported: str
    off_lineage: str
    num_listed: int  # directories in one message, at most


IN_CLUSTER = Remedies(
    no_usable="repair one, or set spec.resumeFrom to a directory, or to `none` to begin at step 0",
    stock="set spec.resumeFrom to its name to begin from it",
    imported="which was there before this job",
    off_lineage="a later attempt did not build on it",
    num_listed=10,
)
IN_FOLDER = Remedies(
    no_usable="repair one, or remove these to begin at step 0, or choose another directory=",
    stock="copy it to a folder of its own and give that as directory= to begin from it",
    imported="which was there before the first run that is recorded here",
    off_lineage="a later run did not build on it",
    num_listed=sys.maxsize,
)


@dataclass(frozen=True)
class Question:
    """All that the choice depends on, beside what the directories are."""

    lineage: Lineage  # of the last attempt
    last_attempt: int  # the last attempt that was planned: its own checkpoints count; 0: there was none
    condemned: frozenset[str] = frozenset()  # ids that are to be deleted: never a resume (R13)
    bad: frozenset[str] = frozenset()  # ids whose contents failed a hash check (R17)
    ever: bool = (
        False  # status says that a complete checkpoint once existed on this branch: since step 0 was last asked for
    )
    resume_from: str | None = (
        None  # spec.resumeFrom where this generation has not honoured it yet: `none` or a directory
    )
    adopted: bool = False  # the path belonged to a former job of the same name (R11)
    owned: bool = True  # the owner file existed before this job's first fence
    finished: bool = False  # the former job's last attempt finished: `attempts/<n>/finished` is there
    remedies: Remedies = IN_CLUSTER


@dataclass(frozen=True)
class Refusal:
    """A directory that was looked at and not taken, and why."""

    dir: str
    reason: str
    attempt: int = 0  # that made it; 0: a stock directory, or not known


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
    lineage, only if no later attempt ever committed. Step 0 only if there is no complete and no refused one and `ever` is False,
    on a branch that was asked to begin there as on the first.
    `resume_from` wins: `none` starts a new branch at 0, a directory must be complete. Stock directories (attempt 0) count only when
    named by `resume_from`, or at the first attempt in a path that had no owner file (the newest complete one).
    """
    if question.resume_from == "none":
        return Choice("resume", NONE, NEW_BRANCH, "Requested", "begins at step 0, as spec.resumeFrom says", ())
    if question.resume_from is not None:
        return _requested(question, question.resume_from, verdicts)
    if question.adopted and question.finished:
        return _stop(question, verdicts, "FinishedRunInStorage", _FINISHED)
    return (
        _on_lineage(question, verdicts)
        or _first_import(question, verdicts)
        or _off_lineage(question, verdicts)
        or _from_zero(question, verdicts)
        or _stop(question, verdicts, "NoUsableCheckpoint", _no_usable(question, verdicts))
    )


_FINISHED = (
    "a finished run of a former job with this name lies in the storage path; set spec.resumeFrom to one of its directories "
    "to go on from there, or to `none` to begin at step 0"
)


def _requested(question: Question, name: str, verdicts: tuple[Verdict, ...]) -> Choice:
    verdict = next((verdict for verdict in verdicts if verdict.dir == name), None)
    if verdict is None:
        message = f"spec.resumeFrom: {name!r} is not a checkpoint directory in the storage path (their names are step_<number>)"
        return _stop(question, verdicts, "NoUsableCheckpoint", message)
    fault = _fault(question, verdict)
    if fault:
        return _stop(question, verdicts, "NoUsableCheckpoint", f"spec.resumeFrom: {name} cannot be used: {fault}")
    return _take(
        question, verdict, verdict.lineage, verdicts, "Requested", f"resumes from {name}, as spec.resumeFrom says"
    )


def _on_lineage(question: Question, verdicts: tuple[Verdict, ...]) -> Choice | None:
    """R9: the newest usable one that counts."""
    counted = [verdict for verdict in _counted(verdicts) if _is_on_lineage(question, verdict)]
    best = _newest_usable(question, counted)
    if best is None:
        return None
    if best == _newest(counted) and not _is_damaged_later(best, verdicts):
        return _take(question, best, question.lineage, verdicts, "Newest", f"resumes from {best.dir}")
    message = f"resumes from {best.dir}: a newer one cannot be used"
    return _take(question, best, question.lineage, verdicts, "Older", message)


def _is_damaged_later(best: Verdict, verdicts: tuple[Verdict, ...]) -> bool:
    """Whether a refused one whose attempt nobody can read any more has a higher step in its name: people should hear of it."""
    return any(verdict.state == "refused" and not verdict.id and verdict.step > best.step for verdict in verdicts)


def _first_import(question: Question, verdicts: tuple[Verdict, ...]) -> Choice | None:
    """The newest stock checkpoint, at the very first attempt in a path that nobody owned."""
    is_first = not question.owned and question.last_attempt == 0 and not question.lineage and not question.ever
    best = _newest_usable(question, [verdict for verdict in _counted(verdicts) if verdict.attempt == 0])
    if best is None or not is_first:
        return None
    message = f"resumes from {best.dir}, {question.remedies.imported}"
    return _take(question, best, (), verdicts, "Imported", message)


def _off_lineage(question: Question, verdicts: tuple[Verdict, ...]) -> Choice | None:
    """R12: nothing is left on the lineage. The last attempt that ever committed has a lineage of its own: along that, nothing mixes."""
    made_here = [verdict for verdict in _counted(verdicts) if verdict.attempt > 0]
    if not made_here or question.lineage == NEW_BRANCH:
        return None
    last = _newest(made_here)
    if any(
        attempt > last.attempt for attempt, _ in question.lineage
    ):  # a later attempt committed: its branch is lost, not over
        return None
    chain = [
        verdict
        for verdict in made_here
        if lineages.is_on(last.lineage, (verdict.attempt, verdict.step), current=last.attempt)
    ]
    best = _newest_usable(question, chain)
    if best is None:
        return None
    message = (
        f"resumes from {best.dir}, the newest that can be used; nothing is left on the lineage of the last attempt"
    )
    return _take(question, best, last.lineage, verdicts, "OffLineage", message)


def _from_zero(question: Question, verdicts: tuple[Verdict, ...]) -> Choice | None:
    """R12: 0 needs proof, or the standing request for a new branch."""
    if question.lineage == NEW_BRANCH:
        standing = [verdict for verdict in _counted(verdicts) if _is_on_lineage(question, verdict)]
        message = "begins at step 0: nothing was saved since spec.resumeFrom asked for that"
        return None if standing or question.ever else Choice("resume", NONE, NEW_BRANCH, "Requested", message, ())
    if question.ever or question.lineage or _counted(verdicts):
        return None
    message = "begins at step 0: there is no checkpoint"
    return Choice("resume", NONE, (), "FirstStart", message, _refusals(question, verdicts, None))


def _take(
    question: Question, verdict: Verdict, before: Lineage, verdicts: tuple[Verdict, ...], reason: str, message: str
) -> Choice:
    place = (verdict.attempt, verdict.step)
    kind: Literal["checkpoint", "import"] = "checkpoint" if verdict.id else "import"
    resume = Resume(kind, verdict.id, verdict.dir, verdict.attempt, verdict.step)
    refused = _refusals(question, verdicts, verdict)
    return Choice("resume", resume, lineages.cut(before, place), reason, message, refused)


def _stop(question: Question, verdicts: tuple[Verdict, ...], reason: str, message: str) -> Choice:
    return Choice("stop", NONE, question.lineage, reason, message, _refusals(question, verdicts, None))


def _no_usable(question: Question, verdicts: tuple[Verdict, ...]) -> str:
    refusals = _refusals(question, verdicts, None)[-question.remedies.num_listed :]
    looked = "; ".join(f"{refusal.dir}: {refusal.reason}" for refusal in refusals)
    return (
        f"no checkpoint can be resumed from ({looked or 'there is none, although there was one'}); "
        f"{question.remedies.no_usable}"
    )


def _refusals(question: Question, verdicts: tuple[Verdict, ...], taken: Verdict | None) -> tuple[Refusal, ...]:
    """Every directory that may look newer or better to a person, and why it was not taken."""
    return tuple(
        Refusal(verdict.dir, _fault(question, verdict) or _not_taken(question, verdict, taken), verdict.attempt)
        for verdict in verdicts
        if verdict != taken and (taken is None or _fault(question, verdict) or not _is_on_lineage(question, verdict))
    )


def _not_taken(question: Question, verdict: Verdict, taken: Verdict | None) -> str:
    if verdict.attempt == 0:
        return f"was not written by Everstep: {question.remedies.stock}"
    if not _is_on_lineage(question, verdict):
        return f"is off the lineage: {question.remedies.off_lineage}"
    return "is complete"


def _fault(question: Question, verdict: Verdict) -> str:
    """Why a directory cannot be used at all; empty if it can."""
    if verdict.state != "complete":
        return verdict.reason
    if verdict.id and verdict.id in question.condemned:
        return "is to be deleted"
    if verdict.id and verdict.id in question.bad:
        return "its contents do not match its manifest"
    return ""


def _counted(verdicts: tuple[Verdict, ...]) -> list[Verdict]:
    """Complete and refused ones; what was never finished does not count."""
    return [verdict for verdict in verdicts if verdict.state != "incomplete"]


def _newest_usable(question: Question, verdicts: list[Verdict]) -> Verdict | None:
    usable = [verdict for verdict in verdicts if not _fault(question, verdict)]
    return _newest(usable) if usable else None


def _newest(verdicts: list[Verdict]) -> Verdict:
    return max(verdicts, key=lambda verdict: (verdict.attempt, verdict.step, verdict.dir))


def _is_on_lineage(question: Question, verdict: Verdict) -> bool:
    current = question.last_attempt or None
    return lineages.is_on(question.lineage, (verdict.attempt, verdict.step), current=current)
