"""What the operator sees of the toy cluster: `Observed`, as the edges would put it together."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from everstep_operator.core.model import Doubt, Network, NodeView, Observed, PodView
from everstep_protocol.messages import MemberSummary, SidecarStatus, Training, Trouble
from unit.core.jobs import NOW
from unit.core.toy_parts import CUT_IS_SEEN, Pod, Run

if TYPE_CHECKING:
    from unit.core.toy_world import World

LEASE_SECONDS = 40.0
FRESH_SECONDS = 3.0
TRUST_SECONDS = 5.0


def observe(world: World) -> Observed:
    """Everything that a decision may depend on."""
    world.intents += 1
    attempt, now, operator = world.status.attempt, world.now, world.operator
    operator.look(world)
    prepared = operator.prepared
    return Observed(
        uid="job",
        name="gpt",
        namespace="d",
        generation=world.generation,
        deleting=False,
        spec=world.job,
        problems=(),
        status=world.status,
        pods=tuple(view(world, p) for p in world.pods.values()),
        nodes={name: node_view(world, name) for name in world.nodes if name not in world.silence.unknown},
        sidecar=operator.answer,
        sidecar_age_seconds=now - operator.answered_at + 0.1,
        training_age_seconds=operator.answer.training.age_seconds if operator.answer else 0.0,
        networks=_networks(world),
        doubt=Doubt(_saw_other_node(world), True, 0.0, 0.0),
        prepare=prepared,
        prepare_failed=tuple(operator.unanswered),
        attempt_age_seconds=now - operator.entered_at,
        go_age_seconds=0.0 if operator.gone_at is None else now - operator.gone_at,
        leave_age_seconds=operator.leave_age(attempt.number if attempt else 0, now),
        now=NOW + now,
        new_intent=f"i{world.intents}",
        prepare_age_seconds=now - operator.prepared_at if prepared else math.inf,
        announced=tuple(sorted(operator.announced)),
        step_age_seconds=now - operator.step_written_at,
        leave_purpose=operator.leave_purpose(attempt.number if attempt else 0),
        pods_refused=operator.calls.pods_refused(),
        version=str(world.version),
        leave_accepted=operator.leave_accepted,
        gone_nodes=frozenset(_named(world)[0] - set(world.nodes)),
        gone_pods=frozenset(_named(world)[1] - {p.view.uid for p in world.pods.values()}),
        coordinator_age_seconds=now - operator.coordinator_at,
        prepare_by=operator.prepared_by if prepared else "",
        sights=dict(operator.sights),
        sight_ages={uid: now - at for uid, at in operator.sight_at.items()},
        refused_actions=operator.calls.refused(now),
    )


def _named(world: World) -> tuple[set[str], set[str]]:
    """Nodes and pods that status or pods speak of: a GET tells whether they are there."""
    plan = world.status.attempt.plan if world.status.attempt else None
    members = plan.members if plan else ()
    nodes = {m.node for m in members} | {p.view.node for p in world.pods.values()} - {""}
    return nodes, {m.uid for m in members}


def view(world: World, p: Pod) -> PodView:
    """A pod with its ages. Made without `replace`, which would be half of all that the toy does."""
    age = None if p.deleted_at is None else world.now - p.deleted_at
    seen = copy.copy(p.view)
    seen.__dict__.update(
        deletion_age_seconds=age,
        deletion_grace_seconds=None if age is None else float(p.grace),
        age_seconds=world.now - p.created_at,
        sidecar_age_seconds=0.0 if p.started_at is None else world.now - p.started_at,
    )
    return seen


def node_view(world: World, name: str) -> NodeView:
    """A node as its lease and the API server tell it."""
    age = world.now - world.nodes[name].changed_at
    dead = 0.0 if world.has_kubelet(name) else age
    ready = world.is_ready(name)
    return NodeView(name, ready, not ready, False, False, dead, LEASE_SECONDS, 0.0 if dead else age)


def _saw_other_node(world: World) -> bool:
    """R26: some host without a pod whose probes fail answered lately."""
    suspected = {p.view.node for p in world.pods.values() if is_cut(world, p)}
    return any(world.now - at <= TRUST_SECONDS for node, at in world.operator.heard.items() if node not in suspected)


def is_cut(world: World, p: Pod) -> bool:
    """Whether kernels have noticed that its host is cut off."""
    node = world.nodes.get(p.view.node)
    return node is None or (not node.up and world.now - node.changed_at >= CUT_IS_SEEN)


def is_reached(world: World, p: Pod) -> bool:
    """Whether its host answers a probe."""
    node = world.nodes.get(p.view.node)
    return node is not None and node.up and not world.silence.cut_off and not world.silence.withholds("Probe")


def _networks(world: World) -> dict[str, Network]:
    """R25, N: for members by their peers and our probes, for others by our probes alone, where these are wished for."""
    run, found = world.current_run(), {}
    members = {m.uid for m in run.plan.members} if run else set()
    probed = set() if world.silence.withholds("Probe") else world.operator.probed
    for p in world.pods.values():
        uid = p.view.uid
        if not p.view.ip or not (uid in members or uid in probed):
            continue
        is_lost = is_cut(world, p)
        failed = 2 if is_lost or world.silence.cut_off else 0
        witnesses = [w for w in members if w != uid and _is_witness(world, run, w)]
        since = world.now - world.nodes[p.view.node].changed_at if is_lost and p.view.node in world.nodes else math.inf
        found[uid] = Network(len(witnesses) if is_lost else 0, len(witnesses), failed, False, since)
    return found


def _is_witness(world: World, run: Run | None, uid: str) -> bool:
    """Its word comes with the coordinator's answer, or by itself where that is silent."""
    assert run
    if world.hears(run.coordinator, "PollRequest"):
        return world.now - run.heard.get(uid, -math.inf) <= FRESH_SECONDS
    return world.hears(uid, "PollRequest")


def answer(world: World, run: Run) -> SidecarStatus | None:
    """What a poll gives now: of the coordinator, or of another member while that is silent."""
    talking = [uid for uid in _head_first(run) if world.hears(uid, "PollRequest")]
    for uid in talking:
        p = world.pod(uid)
        if p and p.obeys == run.plan.attempt:
            return _coordinators(world, run, p) if uid == run.coordinator else _members(world, run, p)
    return None


def _head_first(run: Run) -> tuple[str, ...]:
    return (run.coordinator, *(m.uid for m in run.others()))


def _training(world: World, run: Run, p: Pod) -> Training:
    if not run.gone:
        return Training(False, -1, 0.0, 0.0, "none")
    if not world.library or p.ran != run.plan.attempt:
        return Training(False, -1, world.now - run.lived_at, 0.0, "starting")
    if run.step == run.plan.resume.step:
        return Training(True, -1, run.still(world.now), 0.1, "starting")
    phase = "stopped" if run.is_stopped else "finished" if run.step >= world.until else "training"
    return Training(True, run.step, run.still(world.now), 0.1, phase)


def _members(world: World, run: Run, p: Pod) -> SidecarStatus:
    number = run.plan.attempt
    return SidecarStatus(
        1, "v", p.view.uid, p.obeys, number, run.plan.plan_id, "member", False, False, 0.0, _training(world, run, p),
        storage=_hanging(world, p),
    )  # fmt: skip


def _coordinators(world: World, run: Run, p: Pod) -> SidecarStatus:
    number, checkpoints = run.plan.attempt, world.places["shared"].checkpoints
    knows = p.view.node not in world.silence.apart
    failing = run.failing and replace(run.failing, age_seconds=world.now - run.failing_since)
    return SidecarStatus(
        1, "v", p.view.uid, p.obeys, number, run.plan.plan_id, "coordinator", run.gone, run.finished, 0.0,
        _training(world, run, p),
        tuple(_summary(world, run, m.uid) for m in run.plan.members),
        over=run.over and replace(run.over, age_seconds=world.now - run.over_at),
        checkpoints=tuple(checkpoints.values()) if knows else (),
        deleted=tuple(i for i in world.status.checkpoints.condemned if i not in checkpoints) if knows else (),
        failing=failing,
        storage=_hanging(world, p),
    )  # fmt: skip


def _hanging(world: World, p: Pod) -> Trouble | None:
    trouble = world.trouble_of(p)
    return trouble if trouble and trouble.reason == "StorageHangs" else None


def _summary(world: World, run: Run, uid: str) -> MemberSummary:
    heard = run.heard.get(uid)
    age = None if heard is None else world.now - heard
    p = world.pod(uid)
    trouble = world.trouble_of(p) if p and heard is not None else None
    if run.finished:
        state = "finished"
    elif run.is_stopped:
        state = "stopped"
    elif run.gone:
        state = "running"
    else:
        state = "ready" if uid in run.hellos else "absent"
    cut = sum(1 for _ in (p,) if p and is_cut(world, p))
    others = sum(1 for other in run.heard if other != uid and world.now - run.heard[other] <= FRESH_SECONDS)
    leaving = p is not None and p.deleted_at is not None and world.hears_launcher(p, "Terminating")
    return MemberSummary(uid, state, others * cut, others, leaving, trouble, age)
