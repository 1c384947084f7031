"""Puts caches, answers and ages together: -> `Observed`. Called only when all caches are synced."""

from __future__ import annotations

import math
import secrets
import time
from typing import Any

from everstep_protocol.plan import Member

from everstep_operator.api.accepted import obeyed
from everstep_operator.cluster.check import problems_of
from everstep_operator.cluster.follow import Target
from everstep_operator.cluster.pod import pod_name
from everstep_operator.cluster.room import Cluster, JobRoom
from everstep_operator.core.model import Doubt, JobStatus, Network, Observed, PodView

Raw = dict[str, Any]

_TRUST_SECONDS = 5.0  # R26


async def observe(cluster: Cluster, room: JobRoom, body: Raw) -> Observed:
    """Everything that a decision about this job may depend on; of the job itself what `body` says, whatever arrives meanwhile (R1).

    Raises NotChecked, InvalidDocument (status).
    """
    status = room.status_in(body)
    parsed = room.parsed()
    meta = body["metadata"]
    generation, version = int(meta.get("generation") or 0), str(meta["resourceVersion"])
    problems = await problems_of(cluster, room, parsed, status)
    room.note_checked(parsed, problems)
    accepted = obeyed(body) if problems and _is_under_way(status) else None
    _follow(room, status)
    now = time.monotonic()
    pods = cluster.pods.pods_of(room.uid, now)
    attempt = status.attempt
    number, intent = (attempt.number, attempt.intent_id) if attempt else (0, "")
    attempt_age = room.attempt_age_seconds(attempt)
    _forget(room, status, pods)
    _look_for_missing(cluster, room, status, pods)
    seen = room.follower.seen
    prepared = room.errands.prepared(number, intent)
    gone_at = room.follower.gone_at
    stop = room.errands.stop_of(number)
    sights = room.errands.sights(number, intent)
    return Observed(
        uid=room.uid,
        name=room.name,
        namespace=room.namespace,
        generation=generation,
        deleting=meta.get("deletionTimestamp") is not None,
        spec=accepted.spec if problems and accepted else None if problems else parsed.spec,
        problems=problems,
        accepted_generation=accepted.generation if accepted else generation,
        has_template=room.template() is not None,
        status=status,
        pods=pods,
        nodes=cluster.nodes.views(),
        sidecar=seen.status if seen else None,
        sidecar_age_seconds=now - seen.at if seen else attempt_age,
        training_age_seconds=seen.status.training.age_seconds if seen else 0.0,
        networks=_networks(cluster, room, status, pods),
        doubt=_doubt(cluster, room, status, pods),
        prepare=prepared.answer if prepared else None,
        prepare_by=prepared.by if prepared else "",
        prepare_failed=room.errands.failed(number, intent),
        attempt_age_seconds=attempt_age,
        go_age_seconds=0.0 if gone_at is None else now - gone_at,
        leave_age_seconds=None if stop is None else now - stop.tried_at,
        now=time.time(),
        new_intent=secrets.token_hex(8),
        prepare_age_seconds=now - prepared.at if prepared else math.inf,
        announced=room.errands.announced(number),
        names_taken=tuple(sorted(room.names_taken)),
        step_age_seconds=now - room.step_written_at,
        leave_purpose="" if stop is None else stop.purpose,
        pods_refused=room.refused.pods(),
        version=version,
        leave_accepted=stop is None or stop.accepted,
        gone_nodes=room.absences.nodes,
        gone_pods=room.absences.pods,
        coordinator_age_seconds=now - room.follower.coordinator_at if room.follower.is_following else 0.0,
        sights={uid: sight for uid, (sight, _) in sights.items()},
        sight_ages={uid: now - at for uid, (_, at) in sights.items()},
        refused_actions=room.refused.told(),
        look_pause=cluster.pace.look_seconds(),
        step_pause=cluster.pace.write_seconds(),
        half_placed=cluster.rivals.others(room.uid),
    )


def _is_under_way(status: JobStatus) -> bool:
    """Whether an attempt is to be looked after, whatever was written into the spec since it was accepted."""
    return status.attempt is not None and status.attempt.state != "Ended" and not status.result


def _forget(room: JobRoom, status: JobStatus, pods: tuple[PodView, ...]) -> None:
    """What belongs to attempts, pods and ids that are over."""
    attempt = status.attempt
    members = attempt.plan.members if attempt and attempt.plan else ()
    room.errands.keep(attempt.number if attempt else 0, {pod.uid for pod in pods} | {member.uid for member in members})
    room.names_taken &= {row.id for row in status.workers}


def _look_for_missing(cluster: Cluster, room: JobRoom, status: JobStatus, pods: tuple[PodView, ...]) -> None:
    """R25, C: nodes of the job's pods and members, and members' pods, that the caches do not show; and nodes that pods avoid (R20)."""
    members = status.attempt.plan.members if status.attempt and status.attempt.plan else ()
    there = {pod.uid for pod in pods}
    nodes = {pod.node for pod in pods if pod.node} | {member.node for member in members}
    nodes.update(*(pod.avoid for pod in pods if not pod.node))
    missing = [(member.uid, pod_name(room.name, member.id)) for member in members if member.uid not in there]
    room.absences.look(nodes - cluster.nodes.views().keys(), missing)


def _follow(room: JobRoom, status: JobStatus) -> None:
    """Only an attempt with a plan has a coordinator; condemned ids go with its polls (R13)."""
    attempt = status.attempt
    if attempt is None or attempt.plan is None or attempt.state not in ("Planned", "Started"):
        room.follower.follow(None)
        return
    room.follower.follow(Target(room.uid, attempt.plan, status.checkpoints.condemned))


def _networks(cluster: Cluster, room: JobRoom, status: JobStatus, pods: tuple[PodView, ...]) -> dict[str, Network]:
    """N for each member of the plan, and for each other pod that is probed (R25)."""
    plan = status.attempt.plan if status.attempt else None
    probed = room.prober.uids()
    ips = {pod.uid: pod.ip for pod in pods if pod.uid in probed}
    ips.update({member.uid: member.ip for member in plan.members} if plan else {})
    networks = {}
    for uid, ip in ips.items():
        lost_by, asked = room.follower.lost.get(uid, (0, 0))
        silent = room.prober.silent_seconds(uid)
        networks[uid] = Network(lost_by, asked, room.prober.failed(uid), cluster.pods.is_ip_taken(ip, uid), silent)
    return networks


def _doubt(cluster: Cluster, room: JobRoom, status: JobStatus, pods: tuple[PodView, ...]) -> Doubt:
    """R26: another node is one without a pod whose probes fail. It answered a poll, of whichever job, or one of this job's probes."""
    plan = status.attempt.plan if status.attempt else None
    there: tuple[PodView | Member, ...] = (*pods, *(plan.members if plan else ()))
    probed = room.prober.uids()
    nodes = {one.uid: one.node for one in there if one.uid in probed}
    suspected = {node for uid, node in nodes.items() if room.prober.failed(uid)}
    answered = {node for uid, node in nodes.items() if room.prober.answered_within(uid, _TRUST_SECONDS)}
    seen = room.follower.seen
    return Doubt(
        saw_other_node=bool(answered - suspected)
        or cluster.sidecars.heard_within(_TRUST_SECONDS, other_than=suspected),
        saw_api=cluster.client.answer_age_seconds() <= _TRUST_SECONDS,
        loop_late_seconds=cluster.loop.late_seconds(),
        sidecar_late_seconds=seen.status.late_seconds if seen else 0.0,
    )
