"""What status learns from the running attempt while nothing changes its course: commits, steps, go, workers that finished."""

from __future__ import annotations

from dataclasses import replace

from everstep_protocol.messages import CheckpointInfo, SidecarStatus
from everstep_protocol.plan import Plan

from everstep_operator.core import attempts, budget, clock, growth, history, phases, pods, retention, workers
from everstep_operator.core.model import CheckpointStatus, JobStatus, Observed, Settings, WorkerStatus

MOST_CONDEMNED = 100


def update(seen: Observed, settings: Settings) -> JobStatus:
    """The status with all that was heard of the current attempt; equal to the old one if there is nothing new (then nothing is written)."""
    status = forget_resume_request(seen, replace(seen.status, workers=_with_finished(seen)))
    answer = pods.sidecar_of(seen)
    if answer is None:
        return status
    status = _with_checkpoints(seen, settings, status, answer)
    status = _with_training(seen, settings, _with_go(seen, status), answer)
    return _with_steps(seen, settings, status, answer)


def maintain(seen: Observed, settings: Settings, status: JobStatus) -> JobStatus:
    """R13, R20: what may change only while no attempt is being prepared: the condemned, and the rows of those outside the attempt."""
    touch = workers.Touch(members=frozenset(member.id for member in pods.current_plan(seen).members))
    return workers.settle(seen, settings, _with_condemned(seen, status), touch)


def forget_resume_request(seen: Observed, status: JobStatus) -> JobStatus:
    """R12: `spec.resumeFrom` was taken out, so the same value may be asked for again."""
    taken_out = seen.spec is not None and seen.spec.resume_from is None and bool(status.honoured_resume_from)
    return replace(status, honoured_resume_from="") if taken_out else status


def _with_finished(seen: Observed) -> tuple[WorkerStatus, ...]:
    """R31: a worker's state `Finished` survives its pod's end."""
    number = pods.current_attempt(seen).number
    members = {member.id: member.uid for member in pods.current_plan(seen).members}
    done = {
        pod.worker_id for pod in seen.pods if members.get(pod.worker_id) == pod.uid and pods.has_finished(pod, number)
    }
    return tuple(replace(row, state="Finished") if row.id in done else row for row in seen.status.workers)


def is_finished(seen: Observed, status: JobStatus) -> bool:
    """R31: done is said, not inferred: by the coordinator, or by every member's last word."""
    answer = pods.sidecar_of(seen)
    states = {row.id: row.state for row in status.workers}
    said_by_all = all(states.get(member.id) == "Finished" for member in pods.current_plan(seen).members)
    return said_by_all or (answer is not None and answer.finished)


def _with_checkpoints(seen: Observed, settings: Settings, status: JobStatus, answer: SidecarStatus) -> JobStatus:
    plan = pods.current_plan(seen)
    gone = set(answer.deleted)
    left = tuple(number for number in status.checkpoints.condemned if number not in gone)
    kept = tuple(info for info in answer.checkpoints if info.id not in gone)
    checkpoints = _with_newest(replace(status.checkpoints, condemned=left), attempts.branch(plan), kept)
    is_new = checkpoints.newest is not None and checkpoints.newest != seen.status.checkpoints.newest
    fresh = is_new and checkpoints.newest is not None and checkpoints.newest.attempt == plan.attempt
    if not is_new and not _is_step_due(seen, settings):  # nothing waits for status to forget what is gone
        checkpoints = replace(checkpoints, condemned=status.checkpoints.condemned)
    return replace(
        status,
        checkpoints=checkpoints,
        budget=budget.committed(status.budget) if fresh else status.budget,
        step=max(status.step, answer.training.step, _committed_step(checkpoints, plan)) if is_new else status.step,
    )


def _committed_step(checkpoints: CheckpointStatus, plan: Plan) -> int:
    """A step of this attempt that is saved was finished, whatever was last reported."""
    newest = checkpoints.newest
    return newest.step if newest is not None and newest.attempt == plan.attempt else -1


def _with_newest(
    checkpoints: CheckpointStatus, line: retention.Branch, infos: tuple[CheckpointInfo, ...]
) -> CheckpointStatus:
    """A coordinator may not know yet what prepare found: an older one never replaces a newer one."""
    seen = attempts.found(checkpoints, line, infos)
    old, new = checkpoints.newest, seen.newest
    if new is None or (old is not None and (new.attempt, new.step) <= (old.attempt, old.step)):
        return replace(seen, newest=old)
    return seen


def _with_condemned(seen: Observed, status: JobStatus) -> JobStatus:
    """R13: deletion is authorised in status first, never while `Preparing`, only once the attempt has started, and so many at a time."""
    answer = pods.sidecar_of(seen)
    if answer is None or seen.spec is None or not pods.has_started(seen):
        return status
    known = status.checkpoints.condemned
    spared = frozenset(known) | set(status.checkpoints.bad) | set(answer.deleted)
    policy = retention.KeepLatest(seen.spec.keep_last)
    doomed = retention.condemn(policy, attempts.branch(pods.current_plan(seen)), answer.checkpoints, spared)
    oldest_first = [info.id for info in sorted(answer.checkpoints, key=retention.place) if info.id in doomed]
    condemned = (*known, *oldest_first[: max(0, MOST_CONDEMNED - len(known))])
    return replace(status, checkpoints=replace(status.checkpoints, condemned=condemned))


def _with_go(seen: Observed, status: JobStatus) -> JobStatus:
    """R7: go was given."""
    attempt = pods.current_attempt(seen)
    if attempt.state == "Planned" and pods.has_started(seen):
        return replace(status, attempt=replace(attempt, state="Started", go_at=clock.rfc3339(seen.now)))
    return status


def _with_training(seen: Observed, settings: Settings, status: JobStatus, answer: SidecarStatus) -> JobStatus:
    """Something trains, since now."""
    attempt = status.attempt
    is_new = attempt is not None and attempt.state == "Started" and not phases.is_training(status)
    if attempt is None or not is_new or not _trains(seen, settings, answer):
        return status
    return replace(status, attempt=replace(attempt, training_at=clock.rfc3339(seen.now)))


def _trains(seen: Observed, settings: Settings, answer: SidecarStatus) -> bool:
    """A step was finished; where nobody reports steps: a sign of life came long enough after go."""
    if answer.training.step >= 0:
        return True
    lived = seen.go_age_seconds - answer.training.age_seconds - seen.sidecar_age_seconds
    return not answer.training.library and lived >= settings.plain_start


def _with_steps(seen: Observed, settings: Settings, status: JobStatus, answer: SidecarStatus) -> JobStatus:
    """The first step at once, for the ledger; others with the next commit, or every `step_write` seconds."""
    if answer.training.step < 0:
        return status
    marked = history.first_step(status, now=seen.now)
    if marked == status and not _is_step_due(seen, settings):
        return status
    costed = growth.measured(marked) if marked != status else marked
    return replace(costed, step=max(marked.step, answer.training.step))


def _is_step_due(seen: Observed, settings: Settings) -> bool:
    """Whether what may wait, a newer step and condemned ids that are gone, is worth a write of its own."""
    return seen.step_age_seconds >= max(settings.step_write, seen.step_pause)
