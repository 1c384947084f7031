"""R19, R25, R32: what ends the attempt that is Planned or Started, and under which cause the next one begins."""

from __future__ import annotations

from everstep_protocol.messages import Over
from everstep_protocol.plan import Cause

from everstep_operator.core import leaving, pods, suspicion, timers
from everstep_operator.core.attempts import Ending
from everstep_operator.core.model import Observed, PodView, Settings
from everstep_operator.core.suspicion import Loss

LOSS_CAUSES: dict[str, Cause] = {"node": "node-lost", "reboot": "node-lost", "pod": "node-lost", "trainer": "crash"}


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
    if real is None and over.cause == "peer-lost" and age < settings.victim_wait:
        return None
    return real or Ending(_spoken_cause(over), _said(over), age)


def _said(over: Over) -> str:
    """What the coordinator said of the end, with the last lines of who died first."""
    return f"{over.message}: {over.details}" if over.details else over.message


def _spoken_cause(over: Over) -> Cause:
    if over.cause == "hang":
        return "hang"
    return "not-delivered" if over.cause == "not-started" else "crash"


def _stopped(seen: Observed, settings: Settings, lost: tuple[Loss, ...]) -> Ending:
    """R19: save-and-stop is done and committed; the next attempt is for what it was asked for."""
    gone = leaving.leaving_members(seen)
    if gone:
        return leaving.departure(gone)
    change = leaving.planned_change(seen, settings)
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
    gone = tuple(pod for pod in _going(seen) if peers_only or pod.uid == over.uid)
    if gone:
        return leaving.departure(gone)
    return _on_silent_node(seen) if peers_only else None


def _is_at(seen: Observed, uid: str, worker: int) -> bool:
    member = pods.members_by_uid(seen).get(uid)
    return member is not None and member.id == worker


def _going(seen: Observed) -> tuple[PodView, ...]:
    """Members that leave, by the API or by their own launcher's SIGTERM, which may be heard first."""
    answer = pods.sidecar_of(seen)
    told = {member.uid for member in answer.members if member.leaving} if answer else set()
    known = {pod.uid for pod in leaving.leaving_members(seen)}
    return tuple(pod for pod in seen.pods if pod.uid in told | known)


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
    worst = min(lost, key=lambda loss: ("node", "reboot", "pod", "trainer").index(loss.kind))
    age = seen.training_age_seconds if pods.reports_steps(seen) and worst.kind == "node" else 0.0
    given_up = frozenset(loss.id for loss in lost if loss.kind in ("node", "pod"))
    return Ending(_loss_cause(seen, worst), "; ".join(loss.why for loss in lost), age, lost=given_up)


def _loss_cause(seen: Observed, loss: Loss) -> Cause:
    pod = pods.by_worker(seen).get(loss.id)
    if loss.kind == "pod" and pod is None:
        return "node-lost" if pods.is_node_bad(seen, loss.node) else "drain"
    if loss.kind in ("pod", "trainer") and pod is not None and pods.is_leaving(pod):
        return leaving.cause_of((pod,))
    return LOSS_CAUSES[loss.kind]
