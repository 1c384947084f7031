"""The ledger: what each attempt was for and what it cost. For people only: no rule reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from everstep_protocol.plan import Plan

from everstep_operator.core import clock
from everstep_operator.core.model import AttemptStatus, HistoryEntry, JobStatus, StageSeconds

LONGEST_MESSAGE = 300
MOST_NODES = 16  # with more workers only their number is kept; who was lost is in the message of the next line

Change = Callable[[HistoryEntry], HistoryEntry]


def begin(status: JobStatus, attempt: AttemptStatus, *, now: float, length: int) -> JobStatus:
    """`status` with `attempt` and a line for it; an attempt that is still open ends, one that was only being prepared is replaced."""
    kept = [
        end(entry, now)
        for entry in status.history
        if entry.number != attempt.number and not _was_never_planned(status, entry)
    ]
    entry = HistoryEntry(
        number=attempt.number,
        cause=attempt.cause,
        world_size=0,
        resumed_step=-1,
        steps_lost=None,
        seconds=StageSeconds(detected=clock.seconds_between(attempt.failure_at, now)),
        nodes=(),
        message=attempt.message[:LONGEST_MESSAGE],
        started_at=clock.rfc3339(now),
    )
    return replace(status, attempt=attempt, history=(*kept, entry)[-length:])


def _was_never_planned(status: JobStatus, entry: HistoryEntry) -> bool:
    preparing = status.attempt is not None and status.attempt.state == "Preparing"
    return preparing and status.attempt is not None and entry.number == status.attempt.number


def planned(status: JobStatus, plan: Plan, *, now: float) -> JobStatus:
    """The line of the current attempt with its members, its resume, and what was lost: newest reported step - resumed step."""
    lost = max(0, status.step - plan.resume.step) if status.step >= 0 else 0

    def fill(entry: HistoryEntry) -> HistoryEntry:
        return replace(
            entry,
            world_size=plan.world,
            resumed_step=plan.resume.step,
            steps_lost=lost,
            seconds=replace(entry.seconds, planned=_since_failure(status, now)),
            nodes=tuple(member.node for member in plan.members) if len(plan.members) <= MOST_NODES else (),
            num_workers=len(plan.members),
        )

    return _with_current(status, fill)


def first_step(status: JobStatus, *, now: float) -> JobStatus:
    """The line of the current attempt, once its first step was reported."""
    return _with_current(
        status,
        lambda entry: (
            entry
            if entry.seconds.first_step is not None
            else replace(entry, seconds=replace(entry.seconds, first_step=_since_failure(status, now)))
        ),
    )


def closed(status: JobStatus, *, now: float) -> JobStatus:
    """No attempt follows: the line of the current one ends."""
    return _with_current(status, lambda entry: end(entry, now))


def end(entry: HistoryEntry, now: float) -> HistoryEntry:
    """The line with its end, if it has none."""
    return entry if entry.ended_at else replace(entry, ended_at=clock.rfc3339(now))


def _since_failure(status: JobStatus, now: float) -> float | None:
    return clock.seconds_between(status.attempt.failure_at, now) if status.attempt else None


def _with_current(status: JobStatus, change: Change) -> JobStatus:
    number = status.attempt.number if status.attempt else 0
    return replace(
        status, history=tuple(change(entry) if entry.number == number else entry for entry in status.history)
    )
