"""The one word for people: a summary of status, never a rule's input."""

from __future__ import annotations

from everstep_operator.core.model import JobStatus, Observed, Phase

FIRST: tuple[str, ...] = ("start", "resume")


def of_recovery(seen: Observed) -> Phase:
    """The phase on the way to a running attempt."""
    attempt = seen.status.attempt
    return "Starting" if attempt is None or attempt.cause in FIRST else "Recovering"


def is_training(status: JobStatus) -> bool:
    """Whether the current attempt was heard to train. A step after the resume proves it, too: older versions wrote nothing else."""
    attempt = status.attempt
    if attempt is None or attempt.plan is None or attempt.state != "Started":
        return False
    return bool(attempt.training_at) or status.step > attempt.plan.resume.step


def of_status(status: JobStatus) -> Phase:
    """The phase by status alone, where nothing else is decided."""
    attempt = status.attempt
    if status.result:
        return "Succeeded" if status.result == "Complete" else "Failed"
    if attempt is None:
        return "Pending"
    if attempt.state == "Ended":
        return "Suspended"
    if is_training(status):
        return "Running"
    return "Starting" if attempt.cause in FIRST else "Recovering"
