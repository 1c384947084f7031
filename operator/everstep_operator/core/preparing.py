"""R3, R4, R33: from `Preparing` to `Planned`: gather workers, let one of them fence and look, choose members, write the plan."""

from __future__ import annotations

from everstep_protocol.messages import PrepareAnswer

from everstep_operator.core import (
    attempts,
    bookkeeping,
    budget,
    coordinators,
    half_placed,
    phases,
    pods,
    refusals,
    running,
    sights,
    startup,
    workers,
)
from everstep_operator.core.model import Action, JobSpec, Notice, Observed, PodView, Prepare, Settings, WriteStatus
from everstep_operator.core.outcome import Outcome, Trouble

LOOK_AGAIN = 5.0  # seconds: silence grows without an event
SOON = 1.0
UNHURRIED = ("start", "resume")  # nothing was training: worth a wait for all
NEW_WORKER = "a new worker"
STORAGE_REASONS_OF_SPEC = ("FinishedRunInStorage",)

Pods = tuple[PodView, ...]


def decide(seen: Observed, settings: Settings, spec: JobSpec) -> Outcome:
    """The next move of an attempt that is being prepared."""
    status = workers.settle(seen, settings, bookkeeping.forget_resume_request(seen, seen.status))
    phase, answer = phases.of_recovery(seen), seen.prepare
    if status != seen.status:
        return Outcome(phase, "StartingWorkers", "workers are replaced", (WriteStatus(status),))
    if answer and answer.outcome == "fenced":
        return _renumber(seen, settings, f"a newer attempt, {answer.highest}, was found on storage")
    hopeless = startup.verdict(seen, settings)
    if hopeless:
        return running.fail(seen, seen.status, hopeless)
    candidates = attempts.candidates(seen, settings)
    if len(candidates) < spec.min_workers:
        return _too_few(seen, settings, spec, candidates)
    wait = _wait_for_more(seen, settings, spec, candidates) or _back_off(seen, settings)
    if wait:
        return wait
    return _ask_or_plan(seen, settings, spec, candidates)


def _renumber(seen: Observed, settings: Settings, why: str) -> Outcome:
    return Outcome(phases.of_recovery(seen), "Renumbered", why, (WriteStatus(attempts.again(seen, settings, why)),))


def pod_actions(seen: Observed, settings: Settings) -> tuple[Action, ...]:
    """Pods to be made, those of burnt ids to be deleted, and those to be tried whose kubelet is silent."""
    return (*workers.creations(seen, settings), *workers.strays(seen), *workers.probes(seen))


def _too_few(seen: Observed, settings: Settings, spec: JobSpec, members: Pods) -> Outcome:
    """Below min: wait, and say for what. Lost workers' pods go now: they may hold the room that the new ones need."""
    actions = (*pod_actions(seen, settings), *workers.departures(seen))
    cause = pods.current_attempt(seen).cause
    patience = settings.start_window if cause in UNHURRIED else _restart_wait(seen, settings)
    starting = seen.attempt_age_seconds < patience
    phase = phases.of_recovery(seen) if starting else "Waiting"
    reason = "StartingWorkers" if starting else "NotEnoughWorkers"
    message = f"{len(members)} of at least {spec.min_workers} workers can run; waiting for {missing(seen, settings, members) or NEW_WORKER}"
    held = "" if starting else half_placed.why(seen, settings)
    if held:
        reason, message = half_placed.REASON, f"{message}; {held}"
    again = _look_again(seen, settings)
    left = min(again, patience - seen.attempt_age_seconds) if starting else again
    return Outcome(phase, reason, message, actions, left)


def _restart_wait(seen: Observed, settings: Settings) -> float:
    return settings.restart_wait if workers.restarting(seen, settings) else 0.0


def missing(seen: Observed, settings: Settings, members: Pods) -> str:
    """Which workers are missing, and why each is, for people; empty: nothing is known against any."""
    there = {pod.worker_id for pod in members}
    lines = [
        f"worker {number}: {_why_missing(seen, settings, number)}"
        for number in workers.live_ids(seen.status)
        if number not in there
    ]
    return "; ".join(line for line in lines if not line.endswith(": "))


def _why_missing(seen: Observed, settings: Settings, worker: int) -> str:
    pod = pods.by_worker(seen).get(worker)
    return workers.why_unusable(seen, settings, worker) or (sights.why_not(seen, pod) if pod else "")


def _look_again(seen: Observed, settings: Settings) -> float:
    """A node that just came back counts when it was Ready long enough: no event tells that."""
    names = {pod.node for pod in seen.pods}.union(*(pod.avoid for pod in seen.pods))
    waits = [
        settings.node_ready - node.ready_age_seconds
        for node in seen.nodes.values()
        if node.name in names and node.ready_age_seconds < settings.node_ready
    ]
    return max(0.1, min([LOOK_AGAIN, *waits]))


def _wait_for_more(seen: Observed, settings: Settings, spec: JobSpec, members: Pods) -> Outcome | None:
    """A start waits a while for all that are wanted; survivors of a failure go on at once."""
    left = settings.start_window - seen.attempt_age_seconds
    if pods.current_attempt(seen).cause not in UNHURRIED or len(members) >= spec.max_workers or left <= 0:
        return None
    message = (
        f"{len(members)} of {spec.max_workers} workers can run; "
        f"waiting up to {settings.start_window:g} s for {missing(seen, settings, members) or NEW_WORKER}"
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
    message = f"{count} attempts in a row ended and reported no checkpoint: the next one waits {wait:g} s{attempts.why_again(seen)}"
    return Outcome("Waiting", "BackOff", message, pod_actions(seen, settings), left)


def _ask_or_plan(seen: Observed, settings: Settings, spec: JobSpec, candidates: Pods) -> Outcome:
    answer = seen.prepare
    if answer is None:
        return _ask(seen, settings, candidates)
    if _is_outdated(seen, answer):
        return _renumber(seen, settings, "the spec was changed")
    if answer.outcome == "ready":
        return _with_members(seen, settings, spec, candidates, answer)
    if answer.outcome == "busy":
        return _wait_for_look(seen, settings, candidates, answer)
    return _wait_for_storage(seen, settings, candidates, answer)


def _is_outdated(seen: Observed, answer: PrepareAnswer) -> bool:
    """The question was another one: the spec may have been changed to settle what stopped it, or to choose the resume (R12)."""
    if pods.current_attempt(seen).intent_generation == seen.generation:
        return False
    return answer.outcome == "stop" or attempts.resume_asked(seen) is not None


LOOKING = "older attempts are fenced and the storage is read"


def _ask(seen: Observed, settings: Settings, candidates: Pods) -> Outcome:
    """R4: fence, then look; an unanswered one is repeated with the same number and intent, and told once nobody is left to ask."""
    actions = (_prepare(seen, settings, candidates), *pod_actions(seen, settings))
    if any(pod.uid not in seen.prepare_failed for pod in candidates):
        return Outcome(phases.of_recovery(seen), "Preparing", LOOKING + attempts.why_again(seen), actions, LOOK_AGAIN)
    silent = ", ".join(sights.where(pod) for pod in candidates)
    message = (
        f"no worker that could prepare attempt {pods.current_attempt(seen).number} answers the operator ({silent}): "
        "does a NetworkPolicy forbid it to reach the pods?"
    )
    return Outcome("Waiting", "WorkersSilent", message, actions, LOOK_AGAIN)


def _prepare(seen: Observed, settings: Settings, candidates: Pods) -> Prepare:
    return _prepare_at(seen, coordinators.choose(seen, settings, candidates), candidates)


def _prepare_at(seen: Observed, head: PodView, candidates: Pods) -> Prepare:
    return Prepare(head.uid, head.ip, attempts.prepare_request(seen, candidates))


def _wait_for_look(seen: Observed, settings: Settings, candidates: Pods, answer: PrepareAnswer) -> Outcome:
    """R4: the look is under way: the same pod is asked for its answer; one that does not get on is told, and another one asked."""
    actions = (_prepare(seen, settings, candidates), *pod_actions(seen, settings))
    if not coordinators.is_stalled(answer):
        return Outcome(phases.of_recovery(seen), "Preparing", LOOKING, actions, SOON)
    message = (
        f"the storage hangs at {coordinators.named(seen)}: {answer.message or 'calls into it do not return'}; "
        "look at the mount there and at the storage's server; other workers are asked meanwhile"
    )
    return Outcome("Waiting", "StorageHangs", message, actions, SOON, trouble=Trouble("StorageHangs", message))


def _wait_for_storage(seen: Observed, settings: Settings, candidates: Pods, answer: PrepareAnswer) -> Outcome:
    """R11, R12: unknown is not empty; what a person must settle is told, and asked for again all the same.

    Not what only an odd mount says: that the checkpoints are gone is told where most others see the same storage.
    """
    other = _ask_another_mount(seen, settings, candidates, answer)
    if other:
        return other
    pause = settings.wait_retry if answer.outcome == "wait" else settings.stop_retry
    due = seen.prepare_age_seconds >= pause
    actions = ((_prepare(seen, settings, candidates),) if due else ()) + pod_actions(seen, settings)
    left = pause if due else pause - seen.prepare_age_seconds
    refused = "; ".join(f"{refusal.dir}: {refusal.reason}" for refusal in answer.refused)
    message = f"{answer.message} (refused: {refused})" if refused else answer.message
    trouble = Trouble(answer.reason, message, answer.reason in STORAGE_REASONS_OF_SPEC)
    return Outcome("Waiting", answer.reason, message, actions, left, trouble=trouble)


def _with_members(
    seen: Observed, settings: Settings, spec: JobSpec, candidates: Pods, answer: PrepareAnswer
) -> Outcome:
    """R11, R32: the resume is known; members are those that see the storage and have their launcher, which may be on its way."""
    wait = _ask_another_mount(seen, settings, candidates, answer) or _wait_for_launchers(seen, settings, candidates)
    if wait:
        return wait
    members = attempts.choose_members(seen, settings)
    if len(members) < spec.min_workers:
        return _too_few_see(seen, settings, spec, candidates)
    return _plan(seen, settings, spec, members, answer)


def _ask_another_mount(seen: Observed, settings: Settings, candidates: Pods, answer: PrepareAnswer) -> Outcome | None:
    """R11: most others do not see what this one wrote: its own mount may be the odd one. Each is asked once, within a bounded time."""
    other = coordinators.following(seen, candidates)
    late = seen.attempt_age_seconds >= settings.storage_deadline
    if other is None or late or not sights.do_most_others_miss(seen, answer):
        return None
    message = f"most workers do not see what {coordinators.named(seen)} wrote into the storage: {sights.where(other)} is asked"
    actions = (_prepare_at(seen, other, candidates), *pod_actions(seen, settings))
    return Outcome(phases.of_recovery(seen), "Preparing", message, actions, SOON)


def _wait_for_launchers(seen: Observed, settings: Settings, candidates: Pods) -> Outcome | None:
    """R32: a container that the kubelet starts again at once is one crash: the next attempt waits a while for it."""
    absent = tuple(
        pod for pod in _worth_waiting_for(seen, settings, candidates) if sights.is_without_launcher(seen, pod)
    )
    awaited = (*workers.restarting(seen, settings), *absent)
    left = settings.restart_wait - seen.prepare_age_seconds
    if not awaited or left <= 0:
        return None
    names = ", ".join(sights.where(pod) for pod in awaited)
    message = f"waiting up to {settings.restart_wait:g} s for the trainer container of {names}, which the kubelet starts again"
    actions = (*sights.questions(seen, settings, absent), *pod_actions(seen, settings))
    return Outcome(phases.of_recovery(seen), "RestartingWorkers", message, actions, min(left, SOON))


def _worth_waiting_for(seen: Observed, settings: Settings, candidates: Pods) -> Pods:
    """Survivors of a failure that are enough go on without those that only just come: these join later."""
    assert seen.spec is not None
    joined = {row.id for row in seen.status.workers if row.state == "Joined"}
    survivors = [pod for pod in attempts.choose_members(seen, settings) if pod.worker_id in joined]
    if len(survivors) < seen.spec.min_workers or pods.current_attempt(seen).cause in UNHURRIED:
        return candidates
    return tuple(pod for pod in candidates if pod.worker_id in joined)


def _too_few_see(seen: Observed, settings: Settings, spec: JobSpec, candidates: Pods) -> Outcome:
    """R11: nothing is lost by waiting, and nothing may be decided by those that see too little."""
    actions = (
        *_ask_by_turns(seen, settings, candidates),
        *sights.questions(seen, settings, candidates),
        *pod_actions(seen, settings),
        *workers.departures(seen),
    )
    blind = tuple(pod for pod in candidates if sights.is_blind(seen, pod))
    count = len(attempts.choose_members(seen, settings))
    why = sights.lines(seen, candidates)
    if not blind:
        message = f"{count} of at least {spec.min_workers} workers can run; {why}"
        return Outcome("Waiting", "NotEnoughWorkers", message, actions, SOON)
    message = f"{count} of at least {spec.min_workers} workers see the storage of this job; {why}"
    reason = sights.reason(seen, blind)
    return Outcome("Waiting", reason, message, actions, LOOK_AGAIN, trouble=Trouble(reason, message))


def _ask_by_turns(seen: Observed, settings: Settings, candidates: Pods) -> tuple[Prepare, ...]:
    """While most others do not see what one wrote, each of them has its turn again and again: a mount may come back."""
    other = coordinators.another(seen, candidates)
    is_odd = seen.prepare is not None and sights.do_most_others_miss(seen, seen.prepare)
    if other is None or not is_odd or seen.prepare_age_seconds < settings.stop_retry:
        return ()
    return (_prepare_at(seen, other, candidates),)


def _plan(seen: Observed, settings: Settings, spec: JobSpec, members: Pods, answer: PrepareAnswer) -> Outcome:
    """R3: the second write. R12: a fall-back is told."""
    plan = attempts.plan(seen, settings, spec, members, answer)
    status = attempts.planned(seen, settings, plan, answer)
    message = f"attempt {plan.attempt}: {len(plan.members)} workers from step {plan.resume.step}"
    notices = (Notice("Normal", "AttemptPlanned", message), *refusals.notices(answer))
    return Outcome(phases.of_recovery(seen), "StartingAttempt", message, (WriteStatus(status),), notices=notices)
