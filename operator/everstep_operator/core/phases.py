"""The one word for people: a summary of status, never a rule's input."""

from __future__ import annotations

from everstep_operator.core.model import JobStatus, Observed, Phase

FIRST: tuple[str, ...] = ("start", "resume")


def of_recovery(seen: Observed) -> Phase:
    """The phase on the way to a running attempt."""
    attempt = seen.status.attempt
    return "Starting" if attempt is None or attempt.cause in FIRST else "Recovering"


def of_status(status: JobStatus) -> Phase:
    """The phase by status alone, where nothing else is decided."""
    attempt = status.attempt
    if status.result:
        return "Succeeded" if status.result == "Complete" else "Failed"
    if attempt is None:
        return "Pending"
    if attempt.state == "Ended":
        return "Suspended"
    if attempt.state == "Started":
        return "Running"
    return "Starting" if attempt.cause in FIRST else "Recovering"
