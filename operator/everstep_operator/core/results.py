"""R31: the end of a job, and what is left to do after it: no pod keeps running, and those that trained stay for their logs until the TTL."""

from __future__ import annotations

from dataclasses import replace

from everstep_operator.core import attempts, clock, pods, workers
from everstep_operator.core.budget import Stop
from everstep_operator.core.model import (
    Action,
    AskExit,
    DeleteJob,
    JobStatus,
    Observed,
    PodView,
    Settings,
    WorkerStatus,
)

# Whose pods end by themselves: after Complete their launchers know that by themselves, after Failed they are asked.
_END_BY_THEMSELVES = {"Complete": ("Finished",), "Failed": ("Finished", "Joined")}
_LONGEST_WHY = 500  # characters


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
    ending = _ending(seen) if age < settings.finish_grace else ()
    spared = {pod.uid for pod in ending}
    doomed = tuple(pod for pod in seen.pods if not pods.is_over(pod) and pod.uid not in spared)
    waits = [limit - age for limit in (ttl, _grace_of(seen, settings)) if limit is not None and limit > age]
    return (*_exits(seen, ending), *workers.deletions(seen, doomed)), min(waits, default=None)


def _ending(seen: Observed) -> tuple[PodView, ...]:
    """Pods that are about to end by themselves, with their logs; all others go at once: they have not trained lately, or are lost."""
    states = _END_BY_THEMSELVES[seen.status.result]
    ids = {row.id for row in seen.status.workers if row.state in states}
    return tuple(
        pod for pod in seen.pods if pod.worker_id in ids and not pods.is_over(pod) and not pods.is_leaving(pod)
    )


def _exits(seen: Observed, ending: tuple[PodView, ...]) -> tuple[AskExit, ...]:
    """After Failed no launcher ends before it is told to."""
    attempt, status = seen.status.attempt, seen.status
    if status.result != "Failed" or attempt is None:
        return ()
    why = f"{status.result_reason}: {status.result_message}"[:_LONGEST_WHY]
    there = sorted((pod for pod in ending if pod.sidecar_running and pod.ip), key=lambda pod: pod.worker_id)
    return tuple(AskExit(pod.uid, pod.ip, attempt.number, why) for pod in there)


def _grace_of(seen: Observed, settings: Settings) -> float | None:
    running = any(not pods.is_over(pod) and pod.deletion_age_seconds is None for pod in seen.pods)
    return settings.finish_grace if running else None
