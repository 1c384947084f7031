"""R19, R25, R32: what ends the attempt that is Planned or Started, and under which cause the next one begins."""

from __future__ import annotations

from everstep_protocol.messages import Over
from everstep_protocol.plan import Cause

from everstep_operator.core import leaving, pods, suspicion, timers
from everstep_operator.core.attempts import Ending
from everstep_operator.core.model import Observed, PodView, Settings
from everstep_operator.core.suspicion import Kind, Loss

# By kind of loss, the most serious first.
LOSS_CAUSES: dict[Kind, Cause] = {
    "node": "node-lost",
    "reboot": "node-lost",
    "pod": "node-lost",
    "pressure": "drain",
    "restart": "pod-restart",
    "evicted": "evicted",
    "oom": "oom",
    "trainer": "crash",
}


def find(seen: Observed, settings: Settings) -> Ending | None:
    """The end of the running attempt, the surest first; None: it goes on."""
    lost = suspicion.losses(seen, settings)
    answer = pods.sidecar_of(seen)
    if answer and answer.over:
        return _by_word(seen, settings, answer.over, lost)
    if lost:
        return _by_loss(seen, lost)
    return leaving.graceful(seen, settings) or timers.find(seen, settings)


def _by_word(seen: Observed, settings: Settings, over: Over, lost: tuple[Loss, ...]) -> Ending | None:
    """R32: the coordinator said that the attempt is over; what happened to a pod or a node comes before what its peers felt.

    Where only broken connections were felt, somebody vanished without a word: its silence is waited for, that it is not called a crash.
    """
    if over.cause == "stopped":
        return _stopped(seen, settings, lost)
    if over.cause == "bad-checkpoint":
        return Ending("bad-checkpoint", _said(over), seen.sidecar_age_seconds, bad=over.bad)
    real = _real_cause(seen, over, lost)
    age = over.age_seconds + seen.sidecar_age_seconds
    if real is None and age < settings.victim_wait and _is_unexplained(seen, over):
        return None
    return real or _unconfirmed_departure(seen, over) or _spoken(over, age)


def _spoken(over: Over, age_seconds: float) -> Ending:
    return Ending(_spoken_cause(over), _said(over), age_seconds, refused=over.refused)


def _said(over: Over) -> str:
    """What the coordinator said of the end, with the last lines of who died first."""
    return f"{over.message}: {over.details}" if over.details else over.message


def _spoken_cause(over: Over) -> Cause:
    if over.cause == "hang":
        return "hang"
    if over.oom:
        return "oom"
    return "not-delivered" if over.cause == "not-started" else "crash"


def _stopped(seen: Observed, settings: Settings, lost: tuple[Loss, ...]) -> Ending:
    """R19: save-and-stop is done and committed; the next attempt is for what it was asked for."""
    gone = leaving.leaving_members(seen)
    if gone:
        return leaving.departure(gone)
    change = leaving.change_after_stop(seen, settings)
    if change:
        return change
    if lost:
        return _by_loss(seen, lost)
    return Ending("grow", "stopped for a change that is not needed any more", seen.leave_age_seconds or 0.0)


def _real_cause(seen: Observed, over: Over, lost: tuple[Loss, ...]) -> Ending | None:
    """R32: a member that leaves or is lost explains its peers' broken connections; only its own crash explains a crash."""
    peers_only = over.cause in ("peer-lost", "launcher-gone", "not-started")
    victims = tuple(loss for loss in lost if loss.kind != "trainer" and (peers_only or _is_at(seen, over.uid, loss.id)))
    if victims:
        return _by_loss(seen, victims)
    gone = tuple(pod for pod in leaving.leaving_members(seen) if peers_only or pod.uid == over.uid)
    if gone:
        return leaving.departure(gone)
    killed = _killed_container(seen, over)
    if killed:
        return _by_loss(seen, (killed,))
    return _on_silent_node(seen) if peers_only else None


def _is_at(seen: Observed, uid: str, worker: int) -> bool:
    member = pods.members_by_uid(seen).get(uid)
    return member is not None and member.id == worker


def _killed_container(seen: Observed, over: Over) -> Loss | None:
    """R32: the container vanished without a word of its launcher; the kubelet says that it was killed for want of memory, in this attempt."""
    pod, member = pods.by_uid(seen).get(over.uid), pods.current_plan(seen).member(over.uid)
    if over.cause != "launcher-gone" or pod is None or member is None or not _ended_lately(seen, pod):
        return None
    return suspicion.containers_end(member, pod) if pod.trainer_end == suspicion.OUT_OF_MEMORY else None


def _ended_lately(seen: Observed, pod: PodView) -> bool:
    return pod.trainer_end_age_seconds <= seen.attempt_age_seconds


def _is_unexplained(seen: Observed, over: Over) -> bool:
    """Whether more may be heard: connections broke and nobody said why; a container vanished, or a pod leaves, and the kubelet has not said why."""
    if over.cause == "peer-lost" or _told_to_leave(seen):
        return True
    pod = pods.by_uid(seen).get(over.uid)
    return over.cause == "launcher-gone" and pod is not None and not _ended_lately(seen, pod)


def _told_to_leave(seen: Observed) -> tuple[PodView, ...]:
    """Members whose launcher got SIGTERM."""
    answer = pods.sidecar_of(seen)
    told = {member.uid for member in answer.members if member.leaving} if answer else set()
    return tuple(pod for pod in seen.pods if pod.uid in told)


def _unconfirmed_departure(seen: Observed, over: Over) -> Ending | None:
    """The kubelet stopped a member's containers, and nobody deletes its pod: they will be started anew in it."""
    stopped = tuple(pod for pod in _told_to_leave(seen) if over.cause != "crash" or pod.uid == over.uid)
    if not stopped:
        return None
    names = ", ".join(f"worker {pod.worker_id} on node {pod.node}" for pod in stopped)
    return Ending(
        "pod-restart", f"the containers of {names} were stopped, and nobody deletes the pod: {suspicion.SANDBOX}"
    )


def _on_silent_node(seen: Observed) -> Ending | None:
    """Peers lost a connection and a kubelet is silent too: two independent causes."""
    plan = pods.current_plan(seen)
    silent = [member for member in plan.members if pods.is_node_bad(seen, member.node)]
    if not silent:
        return None
    lost = tuple(Loss(m.id, m.node, "node", f"worker {m.id} on node {m.node} does not answer") for m in silent)
    return _by_loss(seen, lost)


def _by_loss(seen: Observed, lost: tuple[Loss, ...]) -> Ending:
    """R25: the most serious loss names the cause. A pod that left before it was lost has left (R19)."""
    worst = min(lost, key=lambda loss: tuple(LOSS_CAUSES).index(loss.kind))
    age = seen.training_age_seconds if pods.reports_steps(seen) and worst.kind == "node" else 0.0
    given_up = frozenset(loss.id for loss in lost if loss.kind in ("node", "pod", "pressure", "evicted"))
    return Ending(_loss_cause(seen, worst), "; ".join(loss.why for loss in lost), age, lost=given_up)


def _loss_cause(seen: Observed, loss: Loss) -> Cause:
    pod = pods.by_worker(seen).get(loss.id)
    if loss.kind == "pod" and pod is None:
        return "node-lost" if pods.is_node_bad(seen, loss.node) else "drain"
    if loss.kind in ("pod", "trainer") and pod is not None and pods.is_leaving(pod):
        return leaving.cause_of((pod,))
    return LOSS_CAUSES[loss.kind]
