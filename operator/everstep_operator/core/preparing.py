"""R3, R4, R33: from `Preparing` to `Planned`: gather workers, let one of them fence and look, choose members, write the plan."""

from __future__ import annotations

from everstep_protocol.messages import PrepareAnswer

from everstep_operator.core import attempts, bookkeeping, budget, phases, pods, refusals, workers
from everstep_operator.core.model import Action, JobSpec, Notice, Observed, PodView, Prepare, Settings, WriteStatus
from everstep_operator.core.outcome import Outcome, Trouble

LOOK_AGAIN = 5.0  # seconds: silence grows without an event
UNHURRIED = ("start", "resume")  # nothing was training: worth a wait for all
STORAGE_REASONS_OF_SPEC = ("FinishedRunInStorage",)


def decide(seen: Observed, settings: Settings, spec: JobSpec) -> Outcome:
    """The next move of an attempt that is being prepared."""
    status = workers.settle(seen, settings, bookkeeping.forget_resume_request(seen, seen.status))
    phase, answer = phases.of_recovery(seen), seen.prepare
    if status != seen.status:
        return Outcome(phase, "StartingWorkers", "workers are replaced", (WriteStatus(status),))
    if answer and answer.outcome == "fenced":
        return _renumber(seen, settings, f"a newer attempt, {answer.highest}, was found on storage")
    members = attempts.choose_members(seen, settings)
    if len(members) < spec.min_workers:
        return _too_few(seen, settings, spec, members)
    wait = _wait_for_more(seen, settings, spec, members) or _back_off(seen, settings)
    if wait:
        return wait
    return _ask_or_plan(seen, settings, spec, members)


def _renumber(seen: Observed, settings: Settings, why: str) -> Outcome:
    return Outcome(phases.of_recovery(seen), "Renumbered", why, (WriteStatus(attempts.again(seen, settings, why)),))


def pod_actions(seen: Observed, settings: Settings) -> tuple[Action, ...]:
    """Pods to be made and those of burnt ids to be deleted."""
    return (*workers.creations(seen, settings), *workers.strays(seen))


def _too_few(seen: Observed, settings: Settings, spec: JobSpec, members: tuple[PodView, ...]) -> Outcome:
    """Below min: wait, and say for what. Lost workers' pods go now: they may hold the room that the new ones need."""
    actions = (*pod_actions(seen, settings), *workers.departures(seen))
    cause = pods.current_attempt(seen).cause
    starting = cause in UNHURRIED and seen.attempt_age_seconds < settings.start_window
    phase = phases.of_recovery(seen) if starting else "Waiting"
    reason = "StartingWorkers" if starting else "NotEnoughWorkers"
    message = (
        f"{len(members)} of at least {spec.min_workers} workers can run; waiting for {missing(seen, settings, members)}"
    )
    again = _look_again(seen, settings)
    left = min(again, settings.start_window - seen.attempt_age_seconds) if starting else again
    return Outcome(phase, reason, message, actions, left)


def missing(seen: Observed, settings: Settings, members: tuple[PodView, ...]) -> str:
    """Which workers are missing, and why each is, for people."""
    there = {pod.worker_id for pod in members}
    lines = [
        f"worker {number}: {workers.why_unusable(seen, settings, number)}"
        for number in workers.live_ids(seen.status)
        if number not in there
    ]
    return "; ".join(line for line in lines if not line.endswith(": ")) or "nothing"


def _look_again(seen: Observed, settings: Settings) -> float:
    """A node that just came back counts when it was Ready long enough: no event tells that."""
    names = {pod.node for pod in seen.pods}
    waits = [
        settings.node_ready - node.ready_age_seconds
        for node in seen.nodes.values()
        if node.name in names | set().union(*(pod.avoid for pod in seen.pods))
        and node.ready_age_seconds < settings.node_ready
    ]
    return max(0.1, min([LOOK_AGAIN, *waits]))


def _wait_for_more(seen: Observed, settings: Settings, spec: JobSpec, members: tuple[PodView, ...]) -> Outcome | None:
    """A start waits a while for all that are wanted; survivors of a failure go on at once."""
    left = settings.start_window - seen.attempt_age_seconds
    if pods.current_attempt(seen).cause not in UNHURRIED or len(members) >= spec.max_workers or left <= 0:
        return None
    message = (
        f"{len(members)} of {spec.max_workers} workers can run; "
        f"waiting up to {settings.start_window:g} s for {missing(seen, settings, members)}"
    )
    again = min(left, _look_again(seen, settings))
    return Outcome(phases.of_recovery(seen), "StartingWorkers", message, pod_actions(seen, settings), again)


def _back_off(seen: Observed, settings: Settings) -> Outcome | None:
    """R32: free restarts without a commit wait."""
    wait = budget.backoff_seconds(seen.status.budget, settings)
    left = wait - seen.attempt_age_seconds
    if left <= 0 or pods.current_attempt(seen).cause in budget.PLANNED:
        return None
    count = seen.status.budget.attempts_without_commit
    message = f"{count} attempts in a row ended without a checkpoint in between: the next one waits {wait:g} s"
    return Outcome("Waiting", "BackOff", message, pod_actions(seen, settings), left)


def _ask_or_plan(seen: Observed, settings: Settings, spec: JobSpec, members: tuple[PodView, ...]) -> Outcome:
    answer = seen.prepare
    if answer is None:
        return _ask(seen, settings, members)
    if _is_outdated(seen, answer):
        return _renumber(seen, settings, "the spec was changed")
    if answer.outcome == "ready":
        return _plan(seen, settings, spec, members, answer)
    return _wait_for_storage(seen, settings, members, answer)


def _is_outdated(seen: Observed, answer: PrepareAnswer) -> bool:
    """The question was another one: the spec may have been changed to settle what stopped it, or to choose the resume (R12)."""
    if pods.current_attempt(seen).intent_generation == seen.generation:
        return False
    return answer.outcome == "stop" or attempts.resume_asked(seen) is not None


def _ask(seen: Observed, settings: Settings, members: tuple[PodView, ...]) -> Outcome:
    """R4: fence, then look; an unanswered one is repeated with the same number and intent."""
    actions = (_prepare(seen, members), *pod_actions(seen, settings))
    return Outcome(
        phases.of_recovery(seen), "Preparing", "older attempts are fenced and the storage is read", actions, LOOK_AGAIN
    )


def _prepare(seen: Observed, members: tuple[PodView, ...]) -> Prepare:
    head = attempts.choose_coordinator(seen, members)
    return Prepare(head.uid, head.ip, attempts.prepare_request(seen))


def _wait_for_storage(
    seen: Observed, settings: Settings, members: tuple[PodView, ...], answer: PrepareAnswer
) -> Outcome:
    """R11, R12: unknown is not empty; what a person must settle is told, and asked for again all the same."""
    pause = settings.wait_retry if answer.outcome == "wait" else settings.stop_retry
    due = seen.prepare_age_seconds >= pause
    actions = ((_prepare(seen, members),) if due else ()) + pod_actions(seen, settings)
    left = pause if due else pause - seen.prepare_age_seconds
    refused = "; ".join(f"{refusal.dir}: {refusal.reason}" for refusal in answer.refused)
    message = f"{answer.message} (refused: {refused})" if refused else answer.message
    trouble = Trouble(answer.reason, message, answer.reason in STORAGE_REASONS_OF_SPEC)
    return Outcome("Waiting", answer.reason, message, actions, left, trouble=trouble)


def _plan(
    seen: Observed, settings: Settings, spec: JobSpec, members: tuple[PodView, ...], answer: PrepareAnswer
) -> Outcome:
    """R3: the second write. R12: a fall-back is told."""
    plan = attempts.plan(seen, spec, members, answer, api_port=settings.api_port)
    status = attempts.planned(seen, plan, answer)
    message = f"attempt {plan.attempt}: {len(plan.members)} workers from step {plan.resume.step}"
    notices = (Notice("Normal", "AttemptPlanned", message), *refusals.notices(answer))
    return Outcome(phases.of_recovery(seen), "StartingAttempt", message, (WriteStatus(status),), notices=notices)
