"""From `Planned` on: say the plan, watch the attempt, end it when something ends it, keep the books."""

from __future__ import annotations

from dataclasses import replace

from everstep_operator.core import (
    attempts,
    bookkeeping,
    budget,
    endings,
    growth,
    leaving,
    phases,
    pods,
    results,
    suspicion,
    timers,
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
SLOWLY = 2.0  # and while something is waited for that may take long: a GET, the storage, a verification
SILENT_SECONDS = 60.0  # nobody answered for so long: said, nothing is done


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
        return _write(seen, settings, status)
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
    """R30: save-and-stop if it runs; then the attempt ends, and with its row each worker's pod. Nobody's silence keeps it."""
    answer = pods.sidecar_of(seen)
    stopped = answer is not None and answer.over is not None
    if not pods.has_started(seen) or stopped or suspicion.losses(seen, settings):
        return suspended(seen, status)
    if _is_suspension_late(seen, settings):
        return suspended(seen, status, unsaved=timers.waits_for_save(seen) or "no worker confirmed the save")
    ask = leaving.request(seen, settings)
    actions = _tell(seen) + ((ask,) if ask else ())
    return Outcome("Running", "Suspending", "the attempt saves and stops", actions, 1.0)


def _is_suspension_late(seen: Observed, settings: Settings) -> bool:
    """From the first try on, whether the coordinator took it or not; one that is silent for long cannot save anything either."""
    asked = leaving.asked_age(seen, "suspend") or 0.0
    return asked >= settings.grow_deadline or seen.coordinator_age_seconds >= settings.coordinator_deadline


def suspended(seen: Observed, status: JobStatus, unsaved: str = "") -> Outcome:
    """R30: `Ended(suspended)`; every id is burnt, so that every pod becomes a stray and is deleted by UID. `unsaved`: why it is."""
    ended = replace(attempts.end(seen, status, "suspended"), workers=(), started_at="", step=pods.newest_step(seen))
    notices = [Notice("Normal", "Suspended", "the job is suspended")]
    if unsaved:
        text = f"the steps since the newest checkpoint are not saved: {unsaved}"
        notices.append(Notice("Warning", "SuspendedWithoutSave", text))
    return Outcome("Suspended", "Suspended", "the job is suspended", (WriteStatus(ended),), notices=tuple(notices))


def conclude(seen: Observed, settings: Settings, spec: JobSpec, status: JobStatus, ending: Ending) -> Outcome:
    """R32: the budget is charged; then the next attempt is prepared, or the job fails."""
    number = pods.current_attempt(seen).number
    newest = status.checkpoints.newest
    ended = budget.Ended(number, ending.cause, newest is not None and newest.attempt == number)
    status = replace(status, budget=budget.spend(status.budget, ended, now=seen.now, policy=spec.restart))
    stop = budget.stop(status.budget, now=seen.now, policy=spec.restart, settings=settings)
    if ending.refused:
        stop = budget.Stop("WorkerCannotStart", "the command cannot work, and is not tried again")
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


def _write(seen: Observed, settings: Settings, status: JobStatus) -> Outcome:
    """Nothing but the books: what is shown follows the new status."""
    shown = replace(seen, status=status)
    phase, reason, message = _said(shown, settings)
    notices: tuple[Notice, ...] = ()
    if _has_just_started(seen, status):
        notices = (Notice("Normal", "AttemptStarted", _workers_of(seen)),)
    return Outcome(phase, reason, message, (WriteStatus(status),), notices=notices)


def _has_just_started(seen: Observed, status: JobStatus) -> bool:
    return (
        status.attempt is not None
        and status.attempt.state == "Started"
        and pods.current_attempt(seen).state == "Planned"
    )


def _workers_of(seen: Observed) -> str:
    plan = pods.current_plan(seen)
    return f"attempt {plan.attempt}: {len(plan.members)} workers from step {plan.resume.step}"


def _said(seen: Observed, settings: Settings) -> tuple[Phase, str, str]:
    workers_of = _workers_of(seen)
    unsaved, hanging = timers.waits_for_save(seen), timers.waits_for_storage(seen)
    if unsaved:
        return "Waiting", "StoppedWithoutSave", f"{workers_of} stopped, and wait for their save: {unsaved}"
    is_training = phases.is_training(seen.status) and not pods.is_first_step_awaited(seen)
    phase: Phase = "Running" if is_training else phases.of_recovery(seen)
    if pods.current_attempt(seen).state == "Started":
        stalled = timers.waits_for_steps(seen, settings)
        if stalled:
            return phase, "NotProgressing", f"{workers_of}: {stalled}"
        if not is_training:
            return phase, "StartingTrainers", f"{workers_of}: {_awaited(seen)}"
        return "Running", "Training", workers_of
    if hanging:
        return phase, "WaitingForStorage", f"{workers_of} wait for the storage: {hanging}"
    return phase, "StartingAttempt", workers_of + attempts.why_again(seen)


def _awaited(seen: Observed) -> str:
    """What is waited for after go."""
    since = f" at {pods.current_attempt(seen).go_at}" if pods.current_attempt(seen).go_at else ""
    return f"the trainers were told to start{since}, and no first step is reported yet"


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
        *leaving.questions(seen, settings),
        *workers.probes(seen),
    )
    phase, reason, message = _said(seen, settings)
    return Outcome(phase, reason, message + _hint(seen, settings), actions, _next_look(seen, settings))


def _hint(seen: Observed, settings: Settings) -> str:
    """What a person should know while nothing has failed: who verifies, or that nobody answers us although the API does."""
    silent = seen.sidecar is None or seen.sidecar_age_seconds >= SILENT_SECONDS
    if silent and seen.attempt_age_seconds >= settings.hello_deadline:
        return "; no worker answers the operator: does a NetworkPolicy forbid it to reach the pods?"
    if pods.has_started(seen) or seen.attempt_age_seconds < settings.hello_deadline:
        return ""
    if timers.waits_for_go(seen):
        return f"; {timers.waits_for_go(seen)}"
    names = ", ".join(f"worker {member.id} on node {member.node}" for member in timers.verifying(seen))
    return f"; {names} still verify their part of the checkpoint" if names else ""


def _tell(seen: Observed) -> tuple[Action, ...]:
    """R2, R23: the plan to every live pod, members and non-members; over HTTP to those whose kubelet does not, or not yet, bring it."""
    plan = pods.current_plan(seen)
    acknowledged = frozenset(seen.announced)
    live = [pod for pod in sorted(seen.pods, key=lambda pod: pod.worker_id) if not pods.is_over(pod)]
    published = tuple(
        PublishPlan(pod.name, pod.uid, pod.plan_attempt, plan)
        for pod in live
        if pod.plan_attempt < plan.attempt and pod.deletion_age_seconds is None
    )
    announced = tuple(
        Announce(pod.uid, pod.ip, plan.attempt, plan)
        for pod in live
        if pod.ip and pod.sidecar_running and pod.uid not in acknowledged and _is_hard_to_reach(pod, plan.attempt)
    )
    return published + announced


def _is_hard_to_reach(pod: PodView, attempt: int) -> bool:
    return pod.deletion_age_seconds is not None or pod.plan_attempt < attempt


def _is_member_hidden(seen: Observed) -> bool:
    """A member's pod or node is not in our caches: whether it is gone is asked for."""
    members = pods.current_plan(seen).members
    finished = {row.id for row in seen.status.workers if row.state == "Finished"}
    there = pods.by_uid(seen)
    return any(m.id not in finished and (m.uid not in there or m.node not in seen.nodes) for m in members)


def _next_look(seen: Observed, settings: Settings) -> float:
    """Seconds until a timer may have something to say."""
    answer = pods.sidecar_of(seen)
    if suspicion.is_any_suspected(seen) or (answer and answer.over):
        return SOON
    if _is_member_hidden(seen):
        return SLOWLY
    if leaving.leaving_members(seen):
        return max(SOON, min(leaving.deadline(seen, settings, leaving.leaving_members(seen)), 5.0))
    if not pods.has_started(seen):
        left = settings.hello_deadline - seen.attempt_age_seconds
        return max(SOON, left) if left > 0 else SLOWLY
    if not phases.is_training(seen.status):
        return SLOWLY
    quiet = max(settings.step_write, seen.look_pause)
    return max(SOON, min(quiet, growth.seconds_to_look(seen, settings)))
