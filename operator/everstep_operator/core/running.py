"""From `Planned` on: say the plan, watch the attempt, end it when something ends it, keep the books."""

from __future__ import annotations

from dataclasses import replace

from everstep_operator.core import (
    attempts,
    bookkeeping,
    budget,
    endings,
    leaving,
    phases,
    pods,
    results,
    suspicion,
    workers,
)
from everstep_operator.core.attempts import Ending
from everstep_operator.core.model import (
    Action,
    Announce,
    JobSpec,
    JobStatus,
    Notice,
    Observed,
    Phase,
    PodView,
    PublishPlan,
    Settings,
    WriteStatus,
)
from everstep_operator.core.outcome import Outcome

SOON = 0.5  # seconds until the next look while something is suspected


def decide(seen: Observed, settings: Settings, spec: JobSpec) -> Outcome:
    """The next move of an attempt that is Planned or Started."""
    status = bookkeeping.update(seen, settings)
    if bookkeeping.is_finished(seen, status):
        return _completed(seen, status)
    if spec.suspend:
        return _suspend(seen, settings, status)
    ending = endings.find(seen, settings)
    if ending:
        return conclude(seen, settings, spec, status, ending)
    status = bookkeeping.maintain(seen, settings, status)
    if status != seen.status:
        return _write(seen, status)
    return _keep_going(seen, settings)


def is_done(seen: Observed, settings: Settings) -> bool:
    """R31: whether the attempt said that the job is finished: then no deadline can fail it any more."""
    attempt = seen.status.attempt
    if attempt is None or attempt.plan is None:
        return False
    return bookkeeping.is_finished(seen, bookkeeping.update(seen, settings))


def _completed(seen: Observed, status: JobStatus) -> Outcome:
    done = results.complete(seen, status)
    notice = Notice("Normal", "Complete", done.result_message)
    return Outcome("Succeeded", done.result_reason, done.result_message, (WriteStatus(done),), notices=(notice,))


def _suspend(seen: Observed, settings: Settings, status: JobStatus) -> Outcome:
    """R30: save-and-stop if it runs; then the attempt ends, and with its row each worker's pod."""
    answer = pods.sidecar_of(seen)
    late = (leaving.asked_age(seen, "suspend") or 0.0) >= settings.grow_deadline
    stopped = answer is not None and answer.over is not None
    if not pods.has_started(seen) or stopped or late or suspicion.losses(seen, settings):
        return suspended(seen, status)
    ask = leaving.request(seen, settings)
    actions = _tell(seen) + ((ask,) if ask else ())
    return Outcome("Running", "Suspending", "the attempt saves and stops", actions, 1.0)


def suspended(seen: Observed, status: JobStatus) -> Outcome:
    """R30: `Ended(suspended)`; every id is burnt, so that every pod becomes a stray and is deleted by UID."""
    ended = replace(attempts.end(seen, status, "suspended"), workers=(), started_at="", step=pods.newest_step(seen))
    notice = Notice("Normal", "Suspended", "the job is suspended")
    return Outcome("Suspended", "Suspended", "the job is suspended", (WriteStatus(ended),), notices=(notice,))


def conclude(seen: Observed, settings: Settings, spec: JobSpec, status: JobStatus, ending: Ending) -> Outcome:
    """R32: the budget is charged; then the next attempt is prepared, or the job fails."""
    number = pods.current_attempt(seen).number
    newest = status.checkpoints.newest
    ended = budget.Ended(number, ending.cause, newest is not None and newest.attempt == number)
    status = replace(status, budget=budget.spend(status.budget, ended, now=seen.now, policy=spec.restart))
    stop = budget.stop(status.budget, now=seen.now, policy=spec.restart, settings=settings)
    if stop and ending.cause not in budget.PLANNED:
        return fail(seen, status, stop, ending.message)
    following = attempts.begin(seen, settings, status, ending)
    planned = ending.cause in budget.PLANNED
    notice = Notice("Normal" if planned else "Warning", "AttemptEnded", f"{ending.cause}: {ending.message}")
    return Outcome("Recovering", "Preparing", ending.message, (WriteStatus(following),), notices=(notice,))


def fail(seen: Observed, status: JobStatus, stop: budget.Stop, details: str = "") -> Outcome:
    """The job stops by itself and says why."""
    end = results.failed(seen, status, stop, details)
    notice = Notice("Warning", stop.reason, end.result_message)
    return Outcome("Failed", stop.reason, end.result_message, (WriteStatus(end),), notices=(notice,))


def _write(seen: Observed, status: JobStatus) -> Outcome:
    """Nothing but the books: what is shown follows the new status."""
    shown = replace(seen, status=status)
    phase, reason, message = _said(shown)
    notices: tuple[Notice, ...] = ()
    if _has_just_started(seen, status):
        notices = (Notice("Normal", "AttemptStarted", message),)
    return Outcome(phase, reason, message, (WriteStatus(status),), notices=notices)


def _has_just_started(seen: Observed, status: JobStatus) -> bool:
    return (
        status.attempt is not None
        and status.attempt.state == "Started"
        and pods.current_attempt(seen).state == "Planned"
    )


def _said(seen: Observed) -> tuple[Phase, str, str]:
    plan = pods.current_plan(seen)
    workers_of = f"attempt {plan.attempt}: {len(plan.members)} workers from step {plan.resume.step}"
    if pods.current_attempt(seen).state == "Started":
        return "Running", "Training", workers_of
    return phases.of_recovery(seen), "StartingAttempt", workers_of


def _keep_going(seen: Observed, settings: Settings) -> Outcome:
    """Plans before pods (R26); lost and leaving pods are deleted once the attempt has started."""
    started = pods.current_attempt(seen).state == "Started"
    ask = leaving.request(seen, settings)
    actions: tuple[Action, ...] = (
        *_tell(seen),
        *((ask,) if ask else ()),
        *workers.creations(seen, settings),
        *workers.strays(seen),
        *(workers.departures(seen) if started else ()),
    )
    phase, reason, message = _said(seen)
    return Outcome(phase, reason, _with_silence(seen, settings, message), actions, _next_look(seen, settings))


def _with_silence(seen: Observed, settings: Settings, message: str) -> str:
    """Nobody answers us although the API does: a person can help."""
    silent = seen.sidecar is None and seen.attempt_age_seconds >= settings.hello_deadline
    hint = "; no worker answers the operator: does a NetworkPolicy forbid it to reach the pods?"
    return message + hint if silent else message


def _tell(seen: Observed) -> tuple[Action, ...]:
    """R2, R23: the plan to every live pod, members and non-members; over HTTP to those whose kubelet does not, or not yet, bring it."""
    plan = pods.current_plan(seen)
    live = [pod for pod in sorted(seen.pods, key=lambda pod: pod.worker_id) if not pods.is_over(pod)]
    published = tuple(
        PublishPlan(pod.name, pod.uid, pod.plan_attempt, plan)
        for pod in live
        if pod.plan_attempt < plan.attempt and pod.deletion_age_seconds is None
    )
    announced = tuple(
        Announce(pod.uid, pod.ip, plan.attempt, plan)
        for pod in live
        if pod.ip and pod.sidecar_running and pod.uid not in seen.announced and _is_hard_to_reach(pod, plan.attempt)
    )
    return published + announced


def _is_hard_to_reach(pod: PodView, attempt: int) -> bool:
    return pod.deletion_age_seconds is not None or pod.plan_attempt < attempt


def _next_look(seen: Observed, settings: Settings) -> float:
    """Seconds until a timer may have something to say."""
    answer = pods.sidecar_of(seen)
    if suspicion.is_any_suspected(seen) or (answer and answer.over):
        return SOON
    if leaving.leaving_members(seen):
        return max(SOON, min(leaving.deadline(seen, settings, leaving.leaving_members(seen)), 5.0))
    if not pods.has_started(seen):
        return max(SOON, settings.hello_deadline - seen.attempt_age_seconds)
    return settings.step_write
