"""Acts: one API call an action, each safe to repeat, each with its preconditions (R2). Requests to sidecars run in the background.

A precondition that does not hold means that the decision was made from something old: `Stale`, look again.
"""

from __future__ import annotations

import base64
import logging
from typing import Any

from everstep_protocol import codec, names

from everstep_operator.api.status import cut
from everstep_operator.cluster.check import is_quota
from everstep_operator.cluster.client import JSON_PATCH, AlreadyExists, Conflict, Leaving, NotFound, Refused
from everstep_operator.cluster.pod import owner_reference, pod_name, render_pod, token_name
from everstep_operator.cluster.room import Cluster, JobRoom
from everstep_operator.core.model import (
    Action,
    Announce,
    AskLeave,
    CreatePod,
    DeleteJob,
    DeletePod,
    Prepare,
    PublishPlan,
)

Raw = dict[str, Any]

_log = logging.getLogger(__name__)

_LONGEST_REASON = 500  # bytes


class Stale(Exception):
    """The effect was refused because something changed meanwhile."""


class Blocked(Exception):
    """A pod cannot be made now, and why: a full quota, an admission policy. Tried again later."""


async def apply_action(cluster: Cluster, room: JobRoom, action: Action) -> None:
    """Carry out one action other than WriteStatus, which is `report`'s. Raises Stale, Blocked, ApiError, Unavailable."""
    match action:
        case CreatePod():
            await create_pod(cluster, room, action)
        case DeletePod():
            await delete_pod(cluster, room, action)
        case PublishPlan():
            await publish_plan(cluster, room, action)
        case Prepare():
            room.errands.prepare(action)
        case Announce():
            room.errands.announce(action)
        case AskLeave():
            room.errands.leave(action)
        case DeleteJob():
            await delete_job(cluster, room)
        case _:
            raise AssertionError(f"no action of this room: {action}")


async def create_pod(cluster: Cluster, room: JobRoom, action: CreatePod) -> None:
    """R20: the name is made of the id. A pod of that name that is ours is the one that was wanted; another's burns the id."""
    template = room.parsed().pod
    if template is None:
        raise Stale(f"the spec of {room.name} is not valid any more")
    if not room.refused.is_due(action.worker_id):
        return
    await _create_token(cluster, room)
    manifest = render_pod(room.owner, template, cluster.settings.pods, action.worker_id, action.avoid)
    try:
        await cluster.client.request("POST", _pods_path(room), body=manifest)
    except AlreadyExists:
        await _check_existing(cluster, room, action.worker_id)
    except NotFound as error:
        raise Stale(f"namespace {room.namespace} is going away") from error
    except Leaving:
        raise
    except Refused as error:
        reason = "the quota is full" if is_quota(error) else "the API server refuses it"
        why = f"{reason}: {cut(error.message, _LONGEST_REASON)}"
        room.refused.note(action.worker_id, why)
        raise Blocked(f"pod {manifest['metadata']['name']} is not made, {why}") from error
    room.refused.forget(action.worker_id)


async def delete_pod(cluster: Cluster, room: JobRoom, action: DeletePod) -> None:
    """R2, R21: only this very pod as it was seen, and never by force but where the core says so."""
    options: Raw = {"preconditions": {"uid": action.uid, "resourceVersion": action.resource_version}}
    if action.force:
        options["gracePeriodSeconds"] = 0
    try:
        await cluster.client.request("DELETE", f"{_pods_path(room)}/{action.name}", body=options)
    except NotFound:
        return
    except Conflict as error:
        raise Stale(f"pod {action.name} changed: {error.message}") from error


async def publish_plan(cluster: Cluster, room: JobRoom, action: PublishPlan) -> None:
    """R2: a JSON patch that tests the UID and the attempt that was seen; only upwards."""
    if action.plan.attempt <= action.seen_attempt:
        raise AssertionError(f"plan {action.plan.attempt} after {action.seen_attempt}: attempts only go up")
    root = "/metadata/annotations/"
    attempt, plan = (root + _escape(name) for name in (names.ANNOTATION_ATTEMPT, names.ANNOTATION_PLAN))
    patch = [
        {"op": "test", "path": "/metadata/uid", "value": action.uid},
        {"op": "test", "path": attempt, "value": str(action.seen_attempt)},
        {"op": "add", "path": plan, "value": codec.dumps(action.plan)},
        {"op": "replace", "path": attempt, "value": str(action.plan.attempt)},
    ]
    try:
        await cluster.client.request("PATCH", f"{_pods_path(room)}/{action.name}", body=patch, content_type=JSON_PATCH)
    except (NotFound, Conflict, Refused) as error:
        raise Stale(f"plan {action.plan.attempt} is not published to {action.name}: {error.message}") from error


async def delete_job(cluster: Cluster, room: JobRoom) -> None:
    """The TTL is over; what the job owns goes with it, checkpoints stay."""
    options = {"preconditions": {"uid": room.uid}, "propagationPolicy": "Background"}
    try:
        await cluster.client.request("DELETE", room.path, body=options)
    except NotFound:
        return
    except Conflict as error:
        raise Stale(f"{room.name} is another job now") from error


async def _create_token(cluster: Cluster, room: JobRoom) -> None:
    """R22: one Secret a job UID. It is made, never read; the same token comes out each time."""
    async with room.token_lock:  # pods are made side by side
        if not room.has_token:
            await _post_token(cluster, room)
            room.has_token = True


async def _post_token(cluster: Cluster, room: JobRoom) -> None:
    token = base64.b64encode(cluster.sidecars.token(room.uid).encode()).decode()
    manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": f"{names.GROUP}/token",
        "immutable": True,
        "metadata": {
            "name": token_name(room.name, room.uid),
            "namespace": room.namespace,
            "labels": {names.LABEL_JOB: room.name, names.LABEL_MANAGED_BY: names.MANAGED_BY},
            "ownerReferences": [owner_reference(room.owner)],
        },
        "data": {"token": token},
    }
    try:
        await cluster.client.request("POST", f"/api/v1/namespaces/{room.namespace}/secrets", body=manifest)
    except AlreadyExists:
        _log.debug("token of %s is there already", room.name)
    except NotFound as error:
        raise Stale(f"namespace {room.namespace} is going away") from error


async def _check_existing(cluster: Cluster, room: JobRoom, worker_id: int) -> None:
    name = pod_name(room.name, worker_id)
    try:
        pod = await cluster.client.request("GET", f"{_pods_path(room)}/{name}")
    except NotFound:
        return
    owners = [item.get("uid") for item in pod["metadata"].get("ownerReferences") or [] if item.get("controller")]
    label = (pod["metadata"].get("labels") or {}).get(names.LABEL_WORKER)
    if owners != [room.uid] or label != str(worker_id):
        _log.warning("the name %s is taken by another's pod: worker id %d is given up", name, worker_id)
        room.names_taken.add(worker_id)
        raise Stale(f"pod {name} belongs to another")


def _pods_path(room: JobRoom) -> str:
    return f"/api/v1/namespaces/{room.namespace}/pods"


def _escape(name: str) -> str:
    """A key as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
