"""Acts: one API call an action, each safe to repeat, each with its preconditions (R2). All of them run in the background (`tries`).

A precondition that does not hold means that the decision was made from something old: `Stale`, look again.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from everstep_protocol import codec, names
from everstep_protocol.messages import Peer
from everstep_protocol.plan import Plan

from everstep_operator.api.status import cut
from everstep_operator.cluster.check import is_quota, sizing_hint
from everstep_operator.cluster.client import (
    JSON_PATCH,
    AlreadyExists,
    ApiError,
    Conflict,
    Leaving,
    NotFound,
    Refused,
    Unavailable,
)
from everstep_operator.cluster.pod import owner_reference, pod_name, render_pod, token_name
from everstep_operator.cluster.refused import CREATE_POD
from everstep_operator.cluster.report import say_once
from everstep_operator.cluster.room import Cluster, JobRoom
from everstep_operator.cluster.tries import Failed, Key
from everstep_operator.core.model import (
    Action,
    Announce,
    AskExit,
    AskLeave,
    AskSight,
    CreatePod,
    DeleteJob,
    DeletePod,
    Notice,
    Prepare,
    Probe,
    PublishPlan,
)

Raw = dict[str, Any]

_log = logging.getLogger(__name__)

_LONGEST_REASON = 500  # bytes
_STALE_SECONDS = 0.1  # a newer look is on its way
_TEST_FAILED = 422  # how the API server says that a `test` of a JSON patch did not hold
_LEAVING_SECONDS = 30.0
_SILENT_SECONDS = 5.0  # the longest pause after no answer: the API server may be back any moment

ApiAction = CreatePod | DeletePod | PublishPlan | DeleteJob


class Stale(Exception):
    """The effect was refused because something changed meanwhile."""


def begin(cluster: Cluster, room: JobRoom, actions: tuple[Action, ...]) -> list[asyncio.Task[None]]:
    """Begin what a pass wishes, as far as it is due; WriteStatus is `report`'s. Returns those calls to the API that began just now."""
    room.prober.keep([Peer(action.uid, action.ip) for action in actions if isinstance(action, Probe)], "wished")
    begun = [_begin(cluster, room, action) for action in actions]
    room.tries.end_pass()
    room.refused.keep(room.tries.wished)
    return [task for task in begun if task is not None]


def _begin(cluster: Cluster, room: JobRoom, action: Action) -> asyncio.Task[None] | None:
    match action:
        case CreatePod() | DeletePod() | PublishPlan() | DeleteJob():
            return room.tries.start(_key(action), partial(_try, cluster, room, action))
        case Prepare():
            room.errands.prepare(action)
        case AskSight():
            room.errands.ask_sight(action)
        case Announce():
            room.errands.announce(action)
        case AskLeave():
            room.errands.leave(action)
        case AskExit():
            room.errands.exit(action)
        case Probe():
            pass  # all of them together, above
        case _:
            raise AssertionError(f"no action of this room: {action}")
    return None


def _key(action: ApiAction) -> Key:
    """Kind and target."""
    match action:
        case CreatePod():
            return (CREATE_POD, action.worker_id)
        case DeletePod():
            return ("delete pod", action.uid, action.force)
        case PublishPlan():
            return ("publish plan", action.uid, action.plan.attempt)
        case DeleteJob():
            return ("delete job",)


def _name(room: JobRoom, action: ApiAction) -> str:
    """For people."""
    match action:
        case CreatePod():
            return f"create pod {pod_name(room.name, action.worker_id)}"
        case DeletePod():
            return f"delete pod {action.name}"
        case PublishPlan():
            return f"write the plan into pod {action.name}"
        case DeleteJob():
            return f"delete {names.PLURAL} {room.name}"


async def _try(cluster: Cluster, room: JobRoom, action: ApiAction) -> None:
    """Raises Failed, with the pause that this kind of failure deserves; what is refused is noted for the core."""
    key = _key(action)
    try:
        await apply_action(cluster, room, action)
    except Leaving as error:
        level = logging.INFO if room.is_first_warning(error.message) else logging.DEBUG
        _log.log(level, "nothing is made any more: %s", error.message)
        raise Failed(error.message, first=_LEAVING_SECONDS) from error
    except Stale as error:
        why = room.refused.note(key, _name(room, action), str(error))
        _log.info("looks again: %s", why)
        raise Failed(why, first=_STALE_SECONDS) from error
    except Unavailable as error:
        why = room.refused.note(key, _name(room, action), f"no answer: {error}")
        _log.warning("%s: %s", _name(room, action), why)
        raise Failed(why, most=_SILENT_SECONDS) from error
    except ApiError as error:
        await _refused(cluster, room, action, error)
        raise Failed(error.message) from error
    room.refused.forget(key)


async def _refused(cluster: Cluster, room: JobRoom, action: ApiAction, error: ApiError) -> None:
    what = "the quota is full" if is_quota(error) else "the API server refuses it"
    why = room.refused.note(
        _key(action), _name(room, action), f"{what}: {cut(error.message, _LONGEST_REASON)}{sizing_hint(error.message)}"
    )
    if isinstance(action, CreatePod):
        name = pod_name(room.name, action.worker_id)
        notice = Notice("Warning", "PodNotCreated", f"pod {name} is not made, {why}")
        await say_once(
            cluster, room, notice, about=why.replace(name, "its pod")
        )  # a full quota is one Event, not one a pod
    elif room.is_first_warning(text := f"{_name(room, action)}: {why}"):
        _log.warning("%s", text)


async def apply_action(cluster: Cluster, room: JobRoom, action: ApiAction) -> None:
    """One call to the API, or what an earlier one left to do. Raises Stale, ApiError, Unavailable."""
    match action:
        case CreatePod():
            await create_pod(cluster, room, action)
        case DeletePod():
            await delete_pod(cluster, room, action)
        case PublishPlan():
            await publish_plan(cluster, room, action)
        case DeleteJob():
            await delete_job(cluster, room)


async def create_pod(cluster: Cluster, room: JobRoom, action: CreatePod) -> None:
    """R20: the name is made of the id. A pod of that name that is ours is the one that was wanted; another's burns the id."""
    template = room.template()
    if template is None:
        raise Stale(f"no template of {room.name} is known")
    await _create_token(cluster, room)
    settings = cluster.settings.pods
    settings = replace(settings, image=action.image or settings.image, api_port=action.api_port or settings.api_port)
    manifest = render_pod(room.owner, template, settings, action.worker_id, cluster.nodes.hostnames(action.avoid))
    try:
        await cluster.client.request("POST", _pods_path(room), body=manifest)
    except AlreadyExists:
        await _check_existing(cluster, room, action.worker_id)
    except NotFound as error:
        raise Stale(f"namespace {room.namespace} is going away") from error


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


@lru_cache(maxsize=8)
def _text_of(plan: Plan) -> str:
    """The annotation's text: the same for a thousand pods."""
    return codec.dumps(plan)


async def publish_plan(cluster: Cluster, room: JobRoom, action: PublishPlan) -> None:
    """R2: a JSON patch that tests the UID and the attempt that was seen; only upwards."""
    if action.plan.attempt <= action.seen_attempt:
        raise AssertionError(f"plan {action.plan.attempt} after {action.seen_attempt}: attempts only go up")
    root = "/metadata/annotations/"
    attempt, plan = (root + _escape(name) for name in (names.ANNOTATION_ATTEMPT, names.ANNOTATION_PLAN))
    patch = [
        {"op": "test", "path": "/metadata/uid", "value": action.uid},
        {"op": "test", "path": attempt, "value": str(action.seen_attempt)},
        {"op": "add", "path": plan, "value": _text_of(action.plan)},
        {"op": "replace", "path": attempt, "value": str(action.plan.attempt)},
    ]
    try:
        await cluster.client.request("PATCH", f"{_pods_path(room)}/{action.name}", body=patch, content_type=JSON_PATCH)
    except (NotFound, Conflict, Refused) as error:
        if isinstance(error, Refused) and error.status != _TEST_FAILED:
            raise
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
    """R22: one Secret a job UID. It is made, never read; the same token comes out each time. Many pods wait for it: one asks."""
    async with room.token.lock:
        if room.token.is_made:
            return
        if room.token.failure is not None and room.token.backoff.seconds_left() > 0:
            raise room.token.failure
        try:
            await _post_token(cluster, room)
        except (ApiError, Unavailable, Stale) as error:
            room.token.failure = error
            room.token.backoff.fail()
            raise
        room.token.is_made = True


async def _post_token(cluster: Cluster, room: JobRoom) -> None:
    token = base64.b64encode(cluster.sidecars.token(room.uid).encode()).decode()
    manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": f"{names.GROUP}/token",
        "immutable": True,
        "metadata": {
            "name": token_name(room.owner),
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
