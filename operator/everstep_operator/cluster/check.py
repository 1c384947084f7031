"""Asks the API server whether the pods of a spec would be accepted, before any is made: all of its errors at once, admission's too."""

from __future__ import annotations

import logging
import re
import time

from everstep_protocol import names

from everstep_operator.api.parse import Parsed
from everstep_operator.api.status import cut
from everstep_operator.api.template import PodTemplate
from everstep_operator.cluster.client import ApiError, Leaving, NotFound, Refused, Unavailable
from everstep_operator.cluster.pod import render_pod
from everstep_operator.cluster.room import Checked, Cluster, JobRoom
from everstep_operator.cluster.stable import stable_among, stable_text
from everstep_operator.core.model import JobSpec, JobStatus

# What ResourceQuota, LimitRange and the validation of their defaults say of a container's size.
_SIZES = re.compile(r"must specify|per Container|must be less than or equal to (cpu|memory) limit")

_log = logging.getLogger(__name__)

_LONGEST = 500  # bytes
_TOLD_COUNT = 3  # failures in a row
_AGAIN_SECONDS = 30.0  # a policy or a claim may have been put right meanwhile


class NotChecked(Exception):
    """It is not known yet whether the API server would take the pods: `JobRoom.checking` says when it is asked again."""


async def problems_of(cluster: Cluster, room: JobRoom, parsed: Parsed, status: JobStatus) -> tuple[str, ...]:
    """What is wrong beside what the spec itself says; asked once a generation, and again while something is wrong, or is not known.

    Raises NotChecked.
    """
    if parsed.spec is None or parsed.pod is None:
        return parsed.problems
    known, generation = room.checked, room.generation
    if known is not None and known.generation == generation:
        if not known.problems or time.monotonic() - known.at < _AGAIN_SECONDS:
            return known.problems
    elif _was_accepted(room, status) or parsed.spec.suspend or status.result:
        return ()
    if room.checking.seconds_left() > 0:
        return _unknown(room, status)
    before = known.problems if known else ()
    try:
        problems = await _check(cluster, room, parsed.spec, parsed.pod, status)
    except (ApiError, Unavailable) as error:
        _note_failure(room, error)
        return _unknown(room, status)
    room.checking.succeed()
    room.checked = Checked(generation, tuple(stable_among(before, text) for text in problems), time.monotonic())
    return room.checked.problems


async def _check(
    cluster: Cluster, room: JobRoom, spec: JobSpec, pod: PodTemplate, status: JobStatus
) -> tuple[str, ...]:
    return (
        *await _claim_problems(cluster, room, spec, pod),
        *(() if _is_running(status) else await _dry_run(cluster, room, pod)),
    )


def _note_failure(room: JobRoom, error: ApiError | Unavailable) -> None:
    is_leaving = isinstance(error, Leaving)
    room.checking.fail(first=_AGAIN_SECONDS if is_leaving else None)
    room.check_failure = stable_text(room.check_failure, str(error))
    if room.is_first_warning(room.check_failure):
        _log.log(
            logging.INFO if is_leaving else logging.WARNING, "the spec is not checked: %s", cut(str(error), _LONGEST)
        )


def _unknown(room: JobRoom, status: JobStatus) -> tuple[str, ...]:
    """Nobody can tell whether the spec is good. A job that runs goes on; another waits, and says for what when it waits for long."""
    if _is_running(status):
        return ()
    if room.checking.failures < _TOLD_COUNT:
        raise NotChecked(cut(room.check_failure, _LONGEST))
    text = (
        f"spec.template: the API server does not let the operator check its pods: {cut(room.check_failure, _LONGEST)}"
    )
    return (text,)


def _was_accepted(room: JobRoom, status: JobStatus) -> bool:
    """A restarted operator does not ask for a thousand jobs that run already."""
    return status.attempt is not None and status.attempt.intent_generation == room.generation


def _is_running(status: JobStatus) -> bool:
    """Its template was accepted and cannot be changed now: a webhook that is away must not leave a job that runs without help."""
    return status.attempt is not None and status.attempt.state != "Ended"


async def _dry_run(cluster: Cluster, room: JobRoom, pod: PodTemplate) -> tuple[str, ...]:
    manifest = render_pod(room.owner, pod, cluster.settings.pods, 0)
    manifest["metadata"] = {**manifest["metadata"], "name": None, "generateName": f"{room.name}-w"}
    path = f"/api/v1/namespaces/{room.namespace}/pods"
    try:
        await cluster.client.request("POST", path, params={"dryRun": "All", "fieldValidation": "Strict"}, body=manifest)
    except Leaving:
        raise
    except Refused as error:
        if is_quota(error):
            return ()
        return (f"spec.template: the API server refuses its pods: {error.message}{sizing_hint(error.message)}",)
    return ()


def sizing_hint(message: str) -> str:
    """Where a LimitRange or a quota on limits refuses a pod, whose containers it means, and what sets their sizes; empty: it does not.

    The first names no container, or only its place.
    """
    if not _SIZES.search(message):
        return ""
    return (
        f"; {names.SIDECAR_CONTAINER} and {names.INJECTOR_CONTAINER} are Everstep's own containers: "
        "their sizes are the chart's values sidecar.resources and sidecar.limits"
    )


def is_quota(error: ApiError) -> bool:
    """A full quota is no mistake in the spec: it is waited for."""
    return error.status == 403 and "exceeded quota" in error.message


async def _claim_problems(cluster: Cluster, room: JobRoom, spec: JobSpec, pod: PodTemplate) -> tuple[str, ...]:
    """R21: a claim for one node cannot serve several workers. A claim that is not there yet is waited for by the scheduler."""
    if spec.max_workers == 1:
        return ()
    fields = {pod.claim: "spec.checkpoint.storage.persistentVolumeClaim.claimName"}
    fields.update({claim: "spec.template.spec.volumes" for claim in pod.claims if claim not in fields})
    return tuple(
        [text for claim, where in fields.items() if (text := await _claim_problem(cluster, room, claim, where))]
    )


async def _claim_problem(cluster: Cluster, room: JobRoom, claim: str, where: str) -> str:
    path = f"/api/v1/namespaces/{room.namespace}/persistentvolumeclaims/{claim}"
    try:
        document = await cluster.client.request("GET", path)
    except NotFound:
        return ""
    modes = (document.get("spec") or {}).get("accessModes") or []
    if "ReadWriteMany" in modes or "ReadOnlyMany" in modes:
        return ""
    return f"{where}: claim {claim} has access modes {', '.join(modes)}: more than one worker needs ReadWriteMany"
