"""What the pods and nodes of a job amount to: facts only, asked by every other module of the core."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar, cast

from everstep_protocol import codec
from everstep_protocol.local import TerminationMessage
from everstep_protocol.messages import SidecarStatus
from everstep_protocol.plan import Member, Plan

from everstep_operator.core.model import AttemptStatus, NodeView, Observed, PodView, Settings

_REFUSED_BY_NODE = re.compile(r"(UnexpectedAdmissionError|OutOf\w+|NodeAffinity|NodePorts|TopologyAffinityError)\b")
PREEMPTED = "PreemptionByScheduler"

Args = ParamSpec("Args")
Fact = TypeVar("Fact")


def once_a_pass(fact: Callable[Concatenate[Observed, Args], Fact]) -> Callable[Concatenate[Observed, Args], Fact]:
    """Work a fact out once for each `Observed`: in a cluster of 500 nodes each look at all of them counts."""

    @wraps(fact)
    def remembered(seen: Observed, *args: Args.args, **kwargs: Args.kwargs) -> Fact:
        key = (fact.__name__, args)
        if key not in seen.remembered:
            seen.remembered[key] = fact(seen, *args, **kwargs)
        return cast(Fact, seen.remembered[key])

    return cast(Callable[Concatenate[Observed, Args], Fact], remembered)


@once_a_pass
def by_worker(seen: Observed) -> dict[int, PodView]:
    """The pod of each worker id; there is one at most, its name is made of the id (R20)."""
    return {pod.worker_id: pod for pod in seen.pods}


@once_a_pass
def by_uid(seen: Observed) -> dict[str, PodView]:
    """The pods by UID."""
    return {pod.uid: pod for pod in seen.pods}


@once_a_pass
def members_by_uid(seen: Observed) -> dict[str, Member]:
    """The members of the plan, by pod UID; none without a plan."""
    plan = seen.status.attempt.plan if seen.status.attempt else None
    return {member.uid: member for member in plan.members} if plan else {}


@once_a_pass
def states(seen: Observed) -> dict[int, str]:
    """What status says of each worker id."""
    return {row.id: row.state for row in seen.status.workers}


def is_leaving(pod: PodView) -> bool:
    """R19, R25: DisruptionTarget and deletionTimestamp mean that a worker leaves, never that it is lost."""
    return pod.deletion_age_seconds is not None or bool(pod.disruption)


def is_over(pod: PodView) -> bool:
    """Whether the pod has ended for good: nothing in it will be started again."""
    return pod.phase in ("Failed", "Succeeded")


def how_it_ended(pod: PodView) -> str:
    """Of a pod that is over: its phase, and what the kubelet said."""
    return f"{pod.phase}: {pod.ended_as}" if pod.ended_as else pod.phase


def is_refused_by_node(pod: PodView) -> bool:
    """A pod that its node did not admit: its successor keeps off that node."""
    return pod.phase == "Failed" and bool(_REFUSED_BY_NODE.match(pod.ended_as))


def has_finished(pod: PodView, attempt: int) -> bool:
    """R31: whether this pod's launcher said `finished` of this very attempt, as its last word."""
    return pod.trainer_terminated and last_word(pod) == ("finished", attempt)


def last_word(pod: PodView) -> tuple[str, int]:
    """(result, attempt) of the termination message; ("", 0) where it is not one of our launcher's."""
    message = _termination(pod)
    return (message.result, message.attempt) if message else ("", 0)


def last_lines(pod: PodView) -> str:
    """What the trainer printed last, from the termination message."""
    message = _termination(pod)
    return message.last_lines if message else pod.termination_message


def _termination(pod: PodView) -> TerminationMessage | None:
    try:
        return codec.loads(TerminationMessage, pod.termination_message)
    except codec.InvalidDocument:
        return None


def is_kubelet_silent(seen: Observed, node: NodeView) -> bool:
    """R25, K: the lease is unchanged for half of its own duration, or the API server says NotReady or unreachable: one cause."""
    return node.unreachable or not node.ready or (_is_lease_stale(node) and _are_leases_trusted(seen))


@once_a_pass
def _are_leases_trusted(seen: Observed) -> bool:
    """R26: when more than a third of the nodes (and at least 3) have stale leases, only the API server's own word counts."""
    stale = sum(_is_lease_stale(node) for node in seen.nodes.values())
    return stale < 3 or 3 * stale <= len(seen.nodes)


@once_a_pass
def num_unreachable(seen: Observed) -> int:
    """Nodes that the API server itself gave up."""
    return sum(node.unreachable for node in seen.nodes.values())


def _is_lease_stale(node: NodeView) -> bool:
    return 0 < node.lease_duration_seconds / 2 <= node.lease_age_seconds


def is_node_gone(seen: Observed, name: str) -> bool:
    """R25, C: whether a GET said that the Node object is not there. A watch of nodes may be behind that of pods: absence alone says nothing."""
    return name in seen.gone_nodes and name not in seen.nodes


def is_given_up(seen: Observed, name: str) -> bool:
    """R21: the Node object is gone or has `out-of-service`, a human's word: the only case in which a pod is deleted by force."""
    return is_node_gone(seen, name) or (name in seen.nodes and seen.nodes[name].out_of_service)


@once_a_pass
def avoided_nodes(seen: Observed) -> tuple[str, ...]:
    """Nodes that new pods of this job keep off: those there are where it lost a worker, or has pods that may not be counted on.

    The scheduler may not know yet that they are dead. Other nodes are its business: whatever keeps off them, too, hides the pod
    from autoscalers, and has to be taken back.
    """
    lost = _lost_ids(seen)
    ours = {pod.node for pod in seen.pods if pod.node and not is_over(pod)}
    left = {pod.node for pod in seen.pods if pod.worker_id in lost and (not is_over(pod) or is_refused_by_node(pod))}
    left |= {row.node for row in seen.status.workers if row.state == "Lost" and is_node_bad(seen, row.node)}
    return tuple(sorted(name for name in seen.nodes if name in left or (name in ours and is_node_bad(seen, name))))


@once_a_pass
def suspect_nodes(seen: Observed, settings: Settings) -> tuple[str, ...]:
    """Nodes that take no new member now: silent kubelet, out of service, just returned, or holding a worker that was lost there."""
    lost = _lost_ids(seen)
    lost_here = {pod.node for pod in seen.pods if pod.worker_id in lost and not is_over(pod)}
    trusted = _are_leases_trusted(seen)
    return tuple(
        sorted(
            name
            for name, node in seen.nodes.items()
            if node.unreachable
            or not node.ready
            or node.out_of_service
            or node.ready_age_seconds < settings.node_ready
            or name in lost_here
            or (trusted and _is_lease_stale(node))
        )
    )


@once_a_pass
def suspects(seen: Observed, settings: Settings) -> frozenset[str]:
    """The same as a set."""
    return frozenset(suspect_nodes(seen, settings))


@once_a_pass
def _lost_ids(seen: Observed) -> set[int]:
    return {row.id for row in seen.status.workers if row.state == "Lost"}


def is_node_bad(seen: Observed, name: str) -> bool:
    """Whether a pod there may not be counted on, whether it was a member or not: K, or given up."""
    return is_given_up(seen, name) or (name in seen.nodes and is_kubelet_silent(seen, seen.nodes[name]))


def current_attempt(seen: Observed) -> AttemptStatus:
    """`status.attempt` where the caller knows that there is one."""
    assert seen.status.attempt is not None
    return seen.status.attempt


def current_plan(seen: Observed) -> Plan:
    """The plan of an attempt that is Planned or Started."""
    plan = current_attempt(seen).plan
    assert plan is not None
    return plan


def sidecar_of(seen: Observed) -> SidecarStatus | None:
    """The sidecar's answer, if it speaks of the current attempt."""
    attempt = seen.status.attempt
    if seen.sidecar is None or attempt is None or seen.sidecar.attempt != attempt.number:
        return None
    return seen.sidecar


def has_started(seen: Observed) -> bool:
    """R7: go was given, by status or by the coordinator's word."""
    answer = sidecar_of(seen)
    return current_attempt(seen).state == "Started" or (answer is not None and answer.gone)


def reports_steps(seen: Observed) -> bool:
    """Whether the script made an everstep.Checkpointer in this attempt."""
    answer = sidecar_of(seen)
    return answer is not None and answer.training.library


def is_first_step_awaited(seen: Observed) -> bool:
    """Whether the script made an everstep.Checkpointer, and finished no step in this attempt yet."""
    answer = sidecar_of(seen)
    return answer is not None and answer.training.library and answer.training.step < 0


def newest_step(seen: Observed) -> int:
    """The newest step reported in this attempt or written in status, whichever is newer; -1: none."""
    answer = sidecar_of(seen)
    return max(seen.status.step, answer.training.step if answer else -1)
