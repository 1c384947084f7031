"""R24-R27: when a member is lost. Kubelet (K), network (N) and training (T) are independent causes; C is conclusive alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from everstep_protocol.plan import Member

from everstep_operator.core import pods
from everstep_operator.core.model import Network, NodeView, Observed, PodView, Settings

Kind = Literal["node", "reboot", "restart", "pod", "pressure", "evicted", "oom", "trainer"]

OUT_OF_MEMORY = "OOMKilled"
MORE_MEMORY = "raise its memory limit, or use less; snapshots in the memory volume (spec.checkpoint.memory) count against the limit"
SANDBOX = "the pod's sandbox died, and the kubelet starts its containers anew"
# What the kubelet says of a pod that used more than *its own* limits allow; else its node was short of something.
_OWN_LIMITS = re.compile(r"exceeds the (total )?limit|exceeded its local ephemeral storage limit")
FIRST_STEPS_SECONDS = 60.0  # after go: who has reported no step by then and made no Checkpointer never will


@dataclass(frozen=True)
class Evidence:
    """What speaks against one member, and what speaks for it."""

    kubelet: bool  # K
    network: bool  # N
    training: bool  # T
    conclusive: str = ""  # C: one sentence, empty if there is none
    alive: bool = False  # R24: a step was begun and finished since the suspicion began, so every member lives


@dataclass(frozen=True)
class Loss:
    """A member that the attempt has lost.

    `node`: its node does not answer or is gone. `pod`: its pod ended or was taken away, by `pressure` on its node, or `evicted`
    for what it used beyond its own limits. `trainer`: its launcher's container ended; `oom`: for want of memory; `reboot` or
    `restart`: its sandbox was made anew, with its node or alone. In these the pod stays and may be a member again.
    """

    id: int
    node: str
    kind: Kind
    why: str


def is_lost(evidence: Evidence) -> bool:
    """R25: conclusive | K and N | N and T. R24: nothing but a conclusive signal touches a job whose step advances."""
    if evidence.conclusive:
        return True
    if evidence.alive:
        return False
    return evidence.network and (evidence.kubelet or evidence.training)


def has_doubts(seen: Observed, settings: Settings) -> bool:
    """R26: whether the observer itself is late or cut off from the API: then no timer of its own counts."""
    return seen.doubt.loop_late_seconds >= settings.late_loop or not seen.doubt.saw_api


def losses(seen: Observed, settings: Settings) -> tuple[Loss, ...]:
    """Every member of the plan that is lost, by ascending id. A member that finished is never lost (R31)."""
    attempt = pods.current_attempt(seen)
    found = []
    for member in sorted(pods.current_plan(seen).members, key=lambda member: member.id):
        pod = pods.by_uid(seen).get(member.uid)
        if has_finished(seen, member, pod, attempt.number):
            continue
        loss = _loss(seen, settings, member, pod)
        if loss:
            found.append(loss)
    return tuple(found)


def has_finished(seen: Observed, member: Member, pod: PodView | None, attempt: int) -> bool:
    """R31: status remembers it, or the launcher's last word says it."""
    written = pods.states(seen).get(member.id) == "Finished"
    return written or (pod is not None and pods.has_finished(pod, attempt))


def _loss(seen: Observed, settings: Settings, member: Member, pod: PodView | None) -> Loss | None:
    sure = conclusive(seen, settings, member, pod)
    if sure:
        return sure
    if is_lost(evidence(seen, settings, member)):
        return Loss(member.id, member.node, "node", f"worker {member.id} on node {member.node} does not answer")
    return None


def conclusive(seen: Observed, settings: Settings, member: Member, pod: PodView | None) -> Loss | None:
    """R25, C: terminal phase, Node object gone or out of service, pod gone, its IP on another pod, launcher container ended.

    Gone is what a GET did not find, never what only a cache does not show.
    """
    who = f"worker {member.id}"
    if pods.is_node_gone(seen, member.node):
        return Loss(member.id, member.node, "node", f"node {member.node} of {who} was removed from the cluster")
    if pods.is_given_up(seen, member.node):
        return Loss(member.id, member.node, "node", f"node {member.node} of {who} is marked out-of-service")
    if pod is None:
        is_gone = member.uid in seen.gone_pods
        return Loss(member.id, member.node, "pod", f"the pod of {who} is gone") if is_gone else None
    if pods.is_over(pod):
        why = f"the pod of {who} on node {member.node} ended ({pods.how_it_ended(pod)}){_remedy(pod)}"
        return Loss(member.id, member.node, _pods_end(pod), why)
    if _network(seen, member).ip_taken:
        return Loss(member.id, member.node, "node", f"the address of {who} belongs to another pod now")
    if pod.ip and pod.ip != member.ip:
        return _made_anew(seen, member)
    if pod.trainer_terminated and _has_run_for_a_while(seen, settings):
        return containers_end(member, pod)
    return None


def _pods_end(pod: PodView) -> Kind:
    if not pod.ended_as.startswith("Evicted"):
        return "pod"
    return "evicted" if _OWN_LIMITS.search(pod.ended_as) else "pressure"


def _remedy(pod: PodView) -> str:
    is_own = _pods_end(pod) == "evicted"
    return ": write less there, or raise that limit in the template" if is_own else ""


def _made_anew(seen: Observed, member: Member) -> Loss:
    """A node that became Ready in this attempt was rebooted; else only the pod's sandbox was made anew."""
    node = seen.nodes.get(member.node)
    who = f"worker {member.id} on node {member.node} came back with another address"
    if node is None or pods.is_kubelet_silent(seen, node) or node.ready_age_seconds < seen.attempt_age_seconds:
        return Loss(member.id, member.node, "reboot", f"{who}: its node was rebooted")
    return Loss(member.id, member.node, "restart", f"{who}: {SANDBOX}")


def containers_end(member: Member, pod: PodView) -> Loss:
    """How the trainer container ended, by the kubelet's word: cgroup v2 kills the whole of it for want of memory, our launcher too."""
    who = f"the trainer container of worker {member.id} on node {member.node}"
    if pod.trainer_end == OUT_OF_MEMORY:
        return Loss(member.id, member.node, "oom", f"{who} ran out of memory ({OUT_OF_MEMORY}): {MORE_MEMORY}")
    printed = pods.last_lines(pod) or "it printed nothing"
    return Loss(member.id, member.node, "trainer", f"{who} ended: {printed}")


def _has_run_for_a_while(seen: Observed, settings: Settings) -> bool:
    """R32: before go a container that ended is one that the kubelet starts again; soon after it our view of it may be the old one."""
    return pods.has_started(seen) and seen.go_age_seconds >= settings.restart_wait


def evidence(seen: Observed, settings: Settings, member: Member) -> Evidence:
    """K, N and T for one member; the conclusive signals are asked elsewhere."""
    node = seen.nodes.get(member.node)
    return Evidence(
        kubelet=node is not None and pods.is_kubelet_silent(seen, node),
        network=is_network_silent(seen, settings, member),
        training=is_training_silent(seen, settings),
        alive=is_progressing(seen, settings, _network(seen, member)),
    )


def is_network_silent(seen: Observed, settings: Settings, member: Member) -> bool:
    """R25, R26, N: most of the peers that live lost their connection to it, and our own probes failed, and we can trust them."""
    network = _network(seen, member)
    if not do_our_probes_fail(seen, settings, member.uid, member.node):
        return False
    living = _num_answering(seen, settings)  # without this one, whose probes fail
    asked = min(network.asked, living)
    if not living:
        return True
    return asked > 0 and 2 * network.lost_by > asked and not _sidecar_is_late(seen, settings)


@pods.once_a_pass
def _num_answering(seen: Observed, settings: Settings) -> int:
    """Members that our probes do not find silent."""
    members = pods.current_plan(seen).members
    return sum(_network(seen, member).failed_probes < settings.failed_probes for member in members)


def do_our_probes_fail(seen: Observed, settings: Settings, uid: str, node: str) -> bool:
    """R25, R26: our own half of N: this pod left our probes unanswered, and we can trust them."""
    network = seen.networks.get(uid)
    if network is None or network.failed_probes < settings.failed_probes:
        return False
    return _trusts_own_probes(seen, settings, seen.nodes.get(node))


def _trusts_own_probes(seen: Observed, settings: Settings, node: NodeView | None) -> bool:
    """R26: we reached somebody on another node; or nobody else is there to reach, and the API server itself gave up this node.

    The second needs that it is not most of the cluster: then the fault is rather the control plane's or ours. A job of one worker
    may be the only one: that its kubelet is silent too, which we have from the API server, is enough.
    """
    if has_doubts(seen, settings):
        return False
    if seen.doubt.saw_other_node:
        return True
    if _is_alone(seen) and node is not None and pods.is_kubelet_silent(seen, node):
        return True
    unreachable = pods.num_unreachable(seen)
    return node is not None and node.unreachable and unreachable <= max(1, len(seen.nodes) // 3)


def _is_alone(seen: Observed) -> bool:
    attempt = seen.status.attempt
    return attempt is not None and attempt.plan is not None and len(attempt.plan.members) == 1


def is_training_silent(seen: Observed, settings: Settings) -> bool:
    """R25, T: no step for max(3 x usual, `training_silence`) by the trainers' clock.

    Before go, and from go to the first step, nothing trains that could contradict N.
    """
    if not pods.has_started(seen):
        return seen.attempt_age_seconds >= settings.training_silence
    answer = pods.sidecar_of(seen)
    if answer is None or _sidecar_is_late(seen, settings):
        return False
    if answer.training.step < 0:
        is_starting = answer.training.library or seen.go_age_seconds < FIRST_STEPS_SECONDS
        return is_starting and seen.go_age_seconds >= settings.training_silence
    if not answer.training.library:
        return False
    return seen.training_age_seconds >= step_limit(answer.training.usual_seconds, settings)


def is_progressing(seen: Observed, settings: Settings, network: Network) -> bool:
    """R24: a step was begun and finished after the suspicion began, and lately, so every member lives.

    One that was in flight when it began proves nothing. An old answer proves nothing: its age counts too.
    """
    answer = pods.sidecar_of(seen)
    if answer is None or not answer.training.library or answer.training.step < 0:
        return False
    age = seen.sidecar_age_seconds + answer.training.age_seconds
    is_after = age + answer.training.usual_seconds <= network.silent_seconds
    return is_after and age < step_limit(answer.training.usual_seconds, settings)


def step_limit(usual_seconds: float, settings: Settings) -> float:
    """How long a step may take before its absence counts, in seconds."""
    return max(3 * usual_seconds, settings.training_silence)


def is_any_suspected(seen: Observed) -> bool:
    """Whether anything speaks against any pod, so that the next look must come soon."""
    return any(network.failed_probes or network.lost_by for network in seen.networks.values())


def _sidecar_is_late(seen: Observed, settings: Settings) -> bool:
    """R26: a sidecar whose own loop was late voids its own evidence."""
    return seen.doubt.sidecar_late_seconds >= settings.late_loop


def _network(seen: Observed, member: Member) -> Network:
    return seen.networks.get(member.uid, Network(lost_by=0, asked=0, failed_probes=0, ip_taken=False))
