"""Conditions: the truth for machines, each with a reason and a sentence that says what to do. No step, age or count that changes by itself."""

from __future__ import annotations

from typing import Literal

from everstep_operator.core import attempts, growth, half_placed, leaving, pods, preparing, sights, troubles, workers
from everstep_operator.core.model import Condition, JobStatus, Observed, PodView, Settings
from everstep_operator.core.outcome import Outcome

LONGEST = 4096
STOPPING_SECONDS = 30.0
SAVES_FAIL = ", but saves fail at present, and stopping must not lose steps"


def build(seen: Observed, settings: Settings, outcome: Outcome) -> tuple[Condition, ...]:
    """All seven, always, as they are once the outcome's status is written."""
    status = outcome.status_after(seen)
    found = (
        _valid(seen, outcome),
        _ready(outcome),
        _degraded(seen, settings, outcome, status),
        _checkpoints(seen, outcome, status),
        _suspended(outcome),
        _result("Complete", status),
        _result("Failed", status),
    )
    return tuple(Condition(c.type, c.status, c.reason, _cut(c.message)) for c in found)


def _cut(message: str) -> str:
    return message if len(message) <= LONGEST else message[: LONGEST - 1] + "…"


def _valid(seen: Observed, outcome: Outcome) -> Condition:
    if seen.spec is None or seen.problems:
        problems = "; ".join(seen.problems) or "the spec cannot be read"
        return Condition("Valid", "False", "InvalidSpec", problems + _obeyed(seen))
    if outcome.trouble.is_users_fault:
        return Condition("Valid", "False", outcome.trouble.reason, outcome.trouble.message)
    return Condition("Valid", "True", "Accepted", "the spec is valid")


def _obeyed(seen: Observed) -> str:
    if seen.spec is None:
        return ""
    pods_too = "" if seen.has_template else ", but the operator was started since, so it can make no new pods"
    return (
        f"; until this is put right, the job goes on with the spec of generation {seen.accepted_generation}{pods_too}"
    )


def _ready(outcome: Outcome) -> Condition:
    if outcome.phase == "Running" and outcome.reason == "Training":
        return Condition("Ready", "True", "Training", outcome.message)
    return Condition("Ready", "False", outcome.reason, outcome.message)


def _degraded(seen: Observed, settings: Settings, outcome: Outcome, status: JobStatus) -> Condition:
    attempt, refused = status.attempt, troubles.refused(seen)
    if outcome.reason in ("NotEnoughWorkers", half_placed.REASON):
        return Condition("Degraded", "True", outcome.reason, "; ".join(filter(None, (outcome.message, refused))))
    if refused:
        return Condition("Degraded", "True", "ApiRefuses", refused)
    if attempt is None or attempt.plan is None or seen.spec is None:
        remain = troubles.pods_that_remain(seen, status)
        if remain:
            return Condition("Degraded", "True", "PodsRemain", remain)
        return Condition("Degraded", "False", "NothingRuns", "no attempt runs")
    if _runs_another_template(seen, attempt.number):
        why = SAVES_FAIL if leaving.is_save_failing(seen) else _why_not_stopped(seen)
        return Condition(
            "Degraded", "True", "OldTemplate", f"the template was changed, and the job restarts with the new one{why}"
        )
    have, wanted = len(attempt.plan.members), seen.spec.max_workers
    if have > wanted and _why_not_stopped(seen):
        return Condition(
            "Degraded", "True", "MoreWorkers", f"{have} of {wanted} workers; the others leave{_why_not_stopped(seen)}"
        )
    if have >= wanted:
        return Condition("Degraded", "False", "AllWorkers", "as many workers as wanted")
    why = _why_fewer(seen, settings, attempt.number) + attempts.why_again(seen)
    return Condition("Degraded", "True", "FewerWorkers", f"{have} of {wanted} workers; {why}")


def _runs_another_template(seen: Observed, number: int) -> bool:
    current = seen.status.attempt
    is_current = current is not None and current.plan is not None and current.number == number
    return is_current and leaving.is_of_another_template(seen)


def _why_fewer(seen: Observed, settings: Settings, number: int) -> str:
    current = seen.status.attempt
    if current is None or current.plan is None or current.number != number:
        return "more join when they can"
    if not leaving.joiners(seen, settings):
        return f"waiting for {_missing(seen, settings)}"
    if leaving.is_save_failing(seen):
        return "more can join, but saves fail at present, and joining must not lose steps"
    if pods.has_started(seen) and not pods.reports_steps(seen):
        return "more can join, but the script has made no everstep.Checkpointer, so it is not stopped for them: they join at the next restart"
    held = growth.why_not_yet(seen, settings, leaving.joiners(seen, settings))
    if held and leaving.asked_age(seen, "change") is None:
        return held
    return "more are about to join" + _why_not_stopped(seen)


def _why_not_stopped(seen: Observed) -> str:
    """The attempt was asked to stop for them, a good while ago."""
    age = leaving.asked_age(seen, "change")
    if age is None or age < STOPPING_SECONDS:
        return ""
    head = next(m for m in pods.current_plan(seen).members if m.uid == pods.current_plan(seen).coordinator.uid)
    return (
        f", once the attempt has saved and stopped, which worker {head.id} on node {head.node} was asked for in vain so far; "
        "look at the sidecars' output"
    )


def _missing(seen: Observed, settings: Settings) -> str:
    members = tuple(pod for pod in seen.pods if pod.uid in pods.members_by_uid(seen))
    settled = leaving.settled(seen, settings)
    known = {pod.uid for pod in (*members, *settled)}
    fresh = tuple(pod for pod in workers.usable(seen, settings) if pod.uid not in known)
    unasked = tuple(pod for pod in settled if sights.of(seen, pod) is None)
    lines = [
        preparing.missing(seen, settings, (*members, *fresh, *unasked)),
        _until(fresh, f"to have run for {settings.grow_settle:g} s"),
        _until(unasked, "to say that the storage is seen there; look at the sidecar if it does not"),
    ]
    return "; ".join(filter(None, lines)) or preparing.NEW_WORKER


def _until(those: tuple[PodView, ...], what: str) -> str:
    return f"{', '.join(sights.where(pod) for pod in those)} {what}" if those else ""


def _checkpoints(seen: Observed, outcome: Outcome, status: JobStatus) -> Condition:
    kind: Literal["CheckpointHealthy"] = "CheckpointHealthy"
    trouble = outcome.trouble if outcome.trouble.reason else troubles.of_saving(seen)
    if trouble is not None:
        return Condition(kind, "False", trouble.reason, trouble.message)
    if status.checkpoints.newest is None:
        return Condition(kind, "Unknown", "NoneYet", "no checkpoint was committed yet")
    return Condition(kind, "True", "Committed", "the newest checkpoint is complete")


def _suspended(outcome: Outcome) -> Condition:
    if outcome.phase == "Suspended":
        return Condition("Suspended", "True", "Suspended", "spec.suspend is true; set it to false to go on")
    return Condition("Suspended", "False", "NotSuspended", "the job is not suspended")


def _result(kind: Literal["Complete", "Failed"], status: JobStatus) -> Condition:
    if status.result == kind:
        return Condition(kind, "True", status.result_reason, status.result_message)
    if not status.result:
        return Condition(kind, "False", "NotFinished", "the job has not ended")
    return Condition(kind, "False", status.result_reason, f"the job has ended otherwise: see condition {status.result}")
