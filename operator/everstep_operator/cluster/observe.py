"""Puts caches, answers and ages together: -> `Observed`. Called only when all caches are synced."""

from __future__ import annotations

import math
import secrets
import time

from everstep_operator.api import status as status_json
from everstep_operator.cluster.check import problems_of
from everstep_operator.cluster.follow import Target
from everstep_operator.cluster.room import Cluster, JobRoom
from everstep_operator.core.model import Doubt, JobStatus, Network, Observed

_TRUST_SECONDS = 5.0  # R26


async def observe(cluster: Cluster, room: JobRoom) -> Observed:
    """Everything that a decision about this job may depend on. Raises ApiError, Unavailable, InvalidDocument (status)."""
    status = status_json.from_json(room.body.get("status"))
    parsed = room.parsed()
    problems = await problems_of(cluster, room, parsed, status)
    _follow(room, status)
    now = time.monotonic()
    pods = cluster.pods.pods_of(room.uid, now)
    attempt = status.attempt
    number, intent = (attempt.number, attempt.intent_id) if attempt else (0, "")
    attempt_age = room.attempt_age_seconds(attempt)
    seen = room.follower.seen
    prepared = room.errands.prepared(number, intent)
    gone_at = room.follower.gone_at
    return Observed(
        uid=room.uid,
        name=room.name,
        namespace=room.namespace,
        generation=room.generation,
        deleting=room.body["metadata"].get("deletionTimestamp") is not None,
        spec=None if problems else parsed.spec,
        problems=problems,
        status=status,
        pods=pods,
        nodes=cluster.nodes.views(),
        sidecar=seen.status if seen else None,
        sidecar_age_seconds=now - seen.at if seen else attempt_age,
        training_age_seconds=seen.status.training.age_seconds if seen else 0.0,
        networks=_networks(cluster, room, status),
        doubt=_doubt(cluster, room, status),
        prepare=prepared.answer if prepared else None,
        prepare_failed=room.errands.failed(number, intent),
        attempt_age_seconds=attempt_age,
        go_age_seconds=0.0 if gone_at is None else now - gone_at,
        leave_age_seconds=room.errands.leave_age_seconds(number),
        now=time.time(),
        new_intent=secrets.token_hex(8),
        prepare_age_seconds=now - prepared.at if prepared else math.inf,
        announced=room.errands.announced(number),
        names_taken=tuple(sorted(room.names_taken)),
        step_age_seconds=now - room.step_written_at,
        leave_purpose=room.errands.leave_purpose(number),
        pods_refused=room.refused.reasons(),
    )


def _follow(room: JobRoom, status: JobStatus) -> None:
    """Only an attempt with a plan has a coordinator; condemned ids go with its polls (R13)."""
    attempt = status.attempt
    if attempt is None or attempt.plan is None or attempt.state not in ("Planned", "Started"):
        room.follower.follow(None)
        return
    room.follower.follow(Target(room.uid, attempt.plan, status.checkpoints.condemned))


def _networks(cluster: Cluster, room: JobRoom, status: JobStatus) -> dict[str, Network]:
    """N for each member of the plan (R25)."""
    plan = status.attempt.plan if status.attempt else None
    if plan is None:
        return {}
    networks = {}
    for member in plan.members:
        lost_by, asked = room.follower.lost.get(member.uid, (0, 0))
        failed = room.follower.failed_probes.get(member.uid, 0)
        networks[member.uid] = Network(lost_by, asked, failed, cluster.pods.is_ip_taken(member.ip, member.uid))
    return networks


def _doubt(cluster: Cluster, room: JobRoom, status: JobStatus) -> Doubt:
    """R26: another node is one without a member whose probes fail."""
    plan = status.attempt.plan if status.attempt else None
    failing = {uid for uid, count in room.follower.failed_probes.items() if count}
    suspected = {member.node for member in plan.members if member.uid in failing} if plan else set()
    seen = room.follower.seen
    return Doubt(
        saw_other_node=cluster.sidecars.heard_within(_TRUST_SECONDS, other_than=suspected),
        saw_api=cluster.client.answer_age_seconds() <= _TRUST_SECONDS,
        loop_late_seconds=cluster.loop.late_seconds(),
        sidecar_late_seconds=seen.status.late_seconds if seen else 0.0,
    )
