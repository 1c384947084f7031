"""R19: a change that is known beforehand first saves and stops: drain, eviction, preemption, shrink, grow, suspension.

Prepare at once would fence the very checkpoint that the grace is for.
"""

from __future__ import annotations

from everstep_protocol.plan import Cause

from everstep_operator.core import growth, pods, sights, suspicion, workers
from everstep_operator.core.attempts import Ending
from everstep_operator.core.model import AskLeave, AskSight, LeavePurpose, Observed, PodView, Settings

NO_SAVE_FAILS = "DeletionFails"  # the one `failing` that is not about saving


def leaving_members(seen: Observed) -> tuple[PodView, ...]:
    """Members of the running attempt whose pods are being deleted or were told that they will be."""
    uids = {member.uid for member in pods.current_plan(seen).members}
    return tuple(pod for pod in seen.pods if pod.uid in uids and pods.is_leaving(pod) and not _is_done(seen, pod))


def _is_done(seen: Observed, pod: PodView) -> bool:
    member = pods.members_by_uid(seen).get(pod.uid)
    return member is not None and suspicion.has_finished(seen, member, pod, pods.current_attempt(seen).number)


def cause_of(leaving: tuple[PodView, ...]) -> Cause:
    """`preemption` where the scheduler said so, else `drain`."""
    return "preemption" if any(pod.disruption == pods.PREEMPTED for pod in leaving) else "drain"


def seconds_left(seen: Observed, settings: Settings, pod: PodView) -> float:
    """R19: until save-and-stop must be over: the pod's grace less a margin, less what has passed."""
    assert seen.spec is not None
    grace = seen.spec.grace_seconds if pod.deletion_grace_seconds is None else pod.deletion_grace_seconds
    return grace - settings.leave_margin - (pod.deletion_age_seconds or 0.0)


def deadline(seen: Observed, settings: Settings, leaving: tuple[PodView, ...]) -> float:
    """Seconds until the first of them must have saved. A pod that was only warned counts from when we asked for its sake."""
    asked = asked_age(seen, "departure") or 0.0
    return min(
        seconds_left(seen, settings, pod) - (asked if pod.deletion_age_seconds is None else 0.0) for pod in leaving
    )


def graceful(seen: Observed, settings: Settings) -> Ending | None:
    """R19: members leave and have saved, or cannot save any more: nothing has begun to train, or the time is up."""
    leaving = leaving_members(seen)
    if not leaving:
        return None
    if pods.has_started(seen) and deadline(seen, settings, leaving) > 0:
        return None
    return departure(leaving)


def departure(leaving: tuple[PodView, ...]) -> Ending:
    """The attempt goes on without those that leave."""
    cause = cause_of(leaving)
    names = ", ".join(f"worker {pod.worker_id} on node {pod.node}" for pod in leaving)
    verb = "was preempted by the scheduler" if cause == "preemption" else "was told to leave"
    return Ending(cause, f"{names} {verb}", max(pod.deletion_age_seconds or 0.0 for pod in leaving))


def planned_change(seen: Observed, settings: Settings) -> Ending | None:
    """What else the attempt should be stopped for at a step of its own choice; None: nothing. R16: never while saves fail."""
    if is_save_failing(seen):
        return None
    return _renew(seen) or _shrink(seen) or _grow(seen, settings)


def is_of_another_template(seen: Observed) -> bool:
    """R29: whether the attempt runs with a template that was edited since: suspended, edited and resumed before anybody looked."""
    assert seen.spec is not None
    return pods.current_plan(seen).template_hash != seen.spec.template_hash


def _renew(seen: Observed) -> Ending | None:
    if not is_of_another_template(seen):
        return None
    return Ending("template", "the template was changed: all workers are made anew", _asked_age(seen))


def change_after_stop(seen: Observed, settings: Settings) -> Ending | None:
    """What the attempt that has saved and stopped is continued with: it costs nothing more, whoever else may be on the way."""
    return _renew(seen) or _shrink(seen) or _joining(seen, settings)


def is_save_failing(seen: Observed) -> bool:
    """R16: planned changes wait for a fresh checkpoint; failures do not. What cannot be deleted keeps nobody from saving."""
    answer = pods.sidecar_of(seen)
    return answer is not None and answer.failing is not None and answer.failing.reason != NO_SAVE_FAILS


def _shrink(seen: Observed) -> Ending | None:
    assert seen.spec is not None
    have, most = len(pods.current_plan(seen).members), seen.spec.max_workers
    if have <= most:
        return None
    return Ending("shrink", f"spec.workers.max is {most}: {have - most} of {have} workers leave", _asked_age(seen))


def _grow(seen: Observed, settings: Settings) -> Ending | None:
    """More workers can join, the job can stop without losing steps, and it is worth it now; what was asked for is not taken back."""
    if not _can_be_stopped_for_growth(seen):
        return None
    is_asked = asked_age(seen, "change") is not None
    held = "" if is_asked else growth.why_not_yet(seen, settings, joiners(seen, settings))
    return None if held else _joining(seen, settings)


def _joining(seen: Observed, settings: Settings) -> Ending | None:
    count = len(joiners(seen, settings))
    if not count:
        return None
    return Ending("grow", f"{count} more worker{'s' if count > 1 else ''} can join", _asked_age(seen))


def joiners(seen: Observed, settings: Settings) -> tuple[PodView, ...]:
    """Settled pods outside the attempt that said that they see its storage (R11), as many as there is room for."""
    assert seen.spec is not None
    room = max(0, seen.spec.max_workers - len(pods.current_plan(seen).members))
    return tuple(pod for pod in settled(seen, settings) if sights.is_ready(seen, pod))[:room]


def settled(seen: Observed, settings: Settings) -> tuple[PodView, ...]:
    """Usable pods outside the attempt that were there for a while, by ascending id."""
    members = pods.members_by_uid(seen)
    return tuple(
        pod
        for pod in workers.usable(seen, settings)
        if pod.uid not in members and pod.sidecar_age_seconds >= settings.grow_settle
    )


def questions(seen: Observed, settings: Settings) -> tuple[AskSight, ...]:
    """R11: the job is not stopped for one that may not see its storage: it is asked first."""
    assert seen.spec is not None
    is_room = len(pods.current_plan(seen).members) < seen.spec.max_workers
    if not is_room or not pods.has_started(seen):
        return ()
    return sights.questions(seen, settings, settled(seen, settings))


def _can_be_stopped_for_growth(seen: Observed) -> bool:
    answer = pods.sidecar_of(seen)
    if answer is None or not pods.has_started(seen) or not answer.training.library:
        return False
    return answer.training.step >= 0 and answer.training.phase != "finished"


def _asked_age(seen: Observed) -> float:
    return seen.leave_age_seconds or 0.0


def request(seen: Observed, settings: Settings) -> AskLeave | None:
    """R19: ask the coordinator for save-and-stop until it accepts, and once more for another purpose; a change that was given up much later."""
    purpose = _purpose(seen, settings)
    if not purpose or not pods.has_started(seen) or _is_asked(seen, settings, purpose):
        return None
    seconds = deadline(seen, settings, leaving_members(seen)) if purpose == "departure" else settings.grow_deadline
    head = pods.current_plan(seen).coordinator
    return AskLeave(head.uid, head.ip, pods.current_attempt(seen).number, seconds, purpose)


def asked_age(seen: Observed, purpose: LeavePurpose) -> float | None:
    """Seconds since we first tried to ask for this purpose. None: not yet, or for another one, which may have been given up since."""
    return seen.leave_age_seconds if seen.leave_purpose in ("", purpose) else None


def _is_asked(seen: Observed, settings: Settings, purpose: LeavePurpose) -> bool:
    age = asked_age(seen, purpose)
    patience = 2 * settings.grow_deadline if purpose == "change" else settings.grow_deadline
    return age is not None and age < patience and seen.leave_accepted


def _purpose(seen: Observed, settings: Settings) -> LeavePurpose:
    assert seen.spec is not None
    if leaving_members(seen):
        return "departure"
    if seen.spec.suspend:
        return "suspend"
    return "change" if planned_change(seen, settings) else ""
