"""R31: the end of a job, and what is left to do after it: no pod keeps running, finished pods stay for their logs until the TTL."""

from __future__ import annotations

from dataclasses import replace

from everstep_operator.core import attempts, clock, pods, workers
from everstep_operator.core.budget import Stop
from everstep_operator.core.model import Action, DeleteJob, JobStatus, Observed, PodView, Settings, WorkerStatus


def complete(seen: Observed, status: JobStatus) -> JobStatus:
    """All members said that they finished, and the last commit is confirmed."""
    members = {member.id for member in pods.current_plan(seen).members}
    rows = tuple(WorkerStatus(row.id, "Finished", row.node) for row in status.workers if row.id in members)
    return replace(
        attempts.end(seen, status, "finished"),
        workers=rows,
        step=pods.newest_step(seen),
        completed_at=clock.rfc3339(seen.now),
        result="Complete",
        result_reason="Finished",
        result_message="every worker finished and the last checkpoint is committed",
    )


def failed(seen: Observed, status: JobStatus, stop: Stop, details: str = "") -> JobStatus:
    """The job stops by itself; `details`: what the trainers said last."""
    ended = attempts.end(seen, status, "failed") if status.attempt else status
    return replace(
        ended,
        completed_at=clock.rfc3339(seen.now),
        result="Failed",
        result_reason=stop.reason,
        result_message=f"{stop.message}. {details}".rstrip() if details else stop.message,
    )


def overdue(seen: Observed) -> Stop | None:
    """`spec.activeDeadlineSeconds` is over; time in suspension does not count."""
    limit = seen.spec.active_deadline_seconds if seen.spec else None
    age = clock.seconds_between(seen.status.started_at, seen.now)
    if limit is None or age is None or age <= limit:
        return None
    return Stop("DeadlineExceeded", f"the job was active for more than activeDeadlineSeconds ({limit:g} s)")


def clean_up(seen: Observed, settings: Settings) -> tuple[tuple[Action, ...], float | None]:
    """Actions after the end, and the seconds until more is due."""
    age = clock.seconds_between(seen.status.completed_at, seen.now) or 0.0
    ttl = seen.spec.ttl_seconds_after_finished if seen.spec else None
    if ttl is not None and age >= ttl:
        return (DeleteJob(),), None
    doomed = tuple(pod for pod in seen.pods if not pods.is_over(pod) and _is_due(seen, settings, pod, age))
    waits = [limit - age for limit in (ttl, _grace_of(seen, settings)) if limit is not None and limit > age]
    return workers.deletions(seen, doomed), min(waits, default=None)


def _is_due(seen: Observed, settings: Settings, pod: PodView, age: float) -> bool:
    """Those that finished end by themselves; pods that still run after a while, and all others, are deleted."""
    finished = any(row.id == pod.worker_id and row.state == "Finished" for row in seen.status.workers)
    return seen.status.result == "Failed" or not finished or age >= settings.finish_grace


def _grace_of(seen: Observed, settings: Settings) -> float | None:
    running = any(not pods.is_over(pod) and pod.deletion_age_seconds is None for pod in seen.pods)
    return settings.finish_grace if running else None
