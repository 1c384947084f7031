"""Says: status by compare-and-swap (R1), conditions, Events, metrics. A pass that changes nothing writes nothing."""

from __future__ import annotations

import asyncio
import logging
import secrets
from datetime import datetime, timezone
from typing import Any

from everstep_protocol import names

from everstep_operator.api import accepted as accepted_json
from everstep_operator.api import status as status_json
from everstep_operator.api.status import MESSAGE_LIMIT, cut
from everstep_operator.cluster.client import MERGE_PATCH, ApiError, Client, Leaving, Unavailable
from everstep_operator.cluster.room import Cluster, JobRoom
from everstep_operator.cluster.tasks import within
from everstep_operator.core.model import Condition, Decision, JobStatus, Notice, Observed

Raw = dict[str, Any]

_log = logging.getLogger(__name__)

_EVENT_LIMIT = 1024  # what the API server admits
_COMPONENT = "everstep-operator"
_EVENT_SECONDS = 2.0
_SPARE_WRITES = 2  # of the five a second: a whole recovery, with its sentences, may come within one
_TOLD_COUNT = 3  # writes that fail in a row
_SILENT_SECONDS = 5.0  # the longest pause after no answer: the API server may be back any moment
_AT_REST = ("Suspended", "Succeeded", "Failed")
# condition -> reasons that deserve an Event: nothing has ended, and a person may have to act
_WAITS = {
    "Degraded": ("NotEnoughWorkers", "HalfPlaced", "ApiRefuses", "PodsRemain"),
    "Ready": ("BackOff", "WorkersSilent", "StoppedWithoutSave", "WaitingForStorage", "NotProgressing"),
}


class NotDue(Exception):
    """Status cannot be written now: writes fail, or come too fast. `JobRoom.writing` and `write_rate` say when they may go on."""


async def write_status(
    cluster: Cluster, room: JobRoom, body: Raw, seen: Observed, decision: Decision, status: JobStatus
) -> bool:
    """Write what is new in status; True: something was. Raises NotDue, Conflict (the decision must be dropped, R1), ApiError, Unavailable.

    `body` is the object that the decision was made from: its resourceVersion is the one that is compared, whatever came meanwhile.
    """
    patch = build_patch(body, seen, decision, status)
    if not patch:
        return False
    if seconds_to_write(room, is_decision=status != seen.status) > 0:
        raise NotDue
    changes = condition_notices((body.get("status") or {}).get("conditions") or [], decision)
    answer = await _patch_status(cluster, room, body["metadata"]["resourceVersion"], patch)
    before = seen.status
    room.take(answer)
    cluster.metrics.count_change(before, status)
    if status.step != before.step:
        room.note_step_written()
    notices = (*decision.notices, *(notice for notice in changes if room.is_news(notice.reason)))
    for notice in notices:
        await post_event(cluster.client, room, notice)
    return True


def seconds_to_write(room: JobRoom, *, is_decision: bool = True) -> float:
    """Until status may be written, 0: now. What only tells people leaves room for what decides: a recovery waits for no sentence."""
    spare = 0 if is_decision else _SPARE_WRITES
    return max(room.writing.seconds_left(), room.write_rate.seconds_left(spare))


async def _patch_status(cluster: Cluster, room: JobRoom, version: str, patch: Raw) -> Raw:
    room.write_rate.start()
    try:
        answer = await cluster.client.request(
            "PATCH",
            f"{room.path}/status",
            params={"fieldValidation": "Strict"},
            body={"metadata": {"resourceVersion": version}, "status": patch},
            content_type=MERGE_PATCH,
        )
    except (ApiError, Unavailable) as error:
        room.writing.fail(most=_SILENT_SECONDS if isinstance(error, Unavailable) else None)
        if room.writing.failures >= _TOLD_COUNT and isinstance(error, ApiError):
            why = cluster.unwritten.note(room.uid, error)
            text = f"status is not written: {why}; it is tried again"
            await say_once(cluster, room, Notice("Warning", "StatusNotWritten", text))
        raise
    room.writing.succeed()
    cluster.unwritten.forget(room.uid)
    return answer


async def say_once(cluster: Cluster, room: JobRoom, notice: Notice, *, about: str = "") -> None:
    """One Event, unless this was said already, be it with other numbers. `about`: what it says whoever it is said of."""
    if room.is_first_warning(about or notice.message):
        await post_event(cluster.client, room, notice)


def build_patch(body: Raw, seen: Observed, decision: Decision, status: JobStatus) -> Raw:
    """What of status differs from what the object says; null where a field is to vanish."""
    old = body.get("status") or {}
    is_decided = status is not seen.status  # else it is what the object says
    wanted = {**(status_json.to_patch(status) if is_decided else {}), **_summary(old, seen, decision, status)}
    return {key: value for key, value in wanted.items() if not _is_said(old.get(key), value)}


def merge_conditions(old: list[Raw], new: tuple[Condition, ...], *, generation: int, now: str) -> list[Raw]:
    """One entry a type; the time changes only when the status flips; what is not mentioned stays."""
    entries = {str(entry.get("type")): entry for entry in old}
    for condition in new:
        before = entries.get(condition.type)
        flipped = before is None or before.get("status") != condition.status
        entries[condition.type] = {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": cut(condition.message, MESSAGE_LIMIT),
            "lastTransitionTime": now if before is None or flipped else before.get("lastTransitionTime", now),
            "observedGeneration": generation,
        }
    return list(entries.values())


def condition_notices(old: list[Raw], decision: Decision) -> tuple[Notice, ...]:
    """Events for conditions that just turned bad, or bad for another reason, or well again while the job runs.

    Status remembers what was told, so that a restarted operator does not tell it again.
    """
    before = {str(entry.get("type")): (entry.get("status"), entry.get("reason")) for entry in old}
    told = {notice.reason for notice in decision.notices}
    found = []
    for condition in decision.conditions:
        was = before.get(condition.type, (None, None))
        if _is_bad(condition) and was != (condition.status, condition.reason) and condition.reason not in told:
            told.add(condition.reason)
            found.append(Notice("Warning", condition.reason, condition.message))
        elif _is_well_again(condition, was[0]) and decision.phase == "Running":
            found.append(Notice("Normal", "CheckpointHealthy", condition.message))
    return tuple(found)


def _is_well_again(condition: Condition, was: object) -> bool:
    return condition.type == "CheckpointHealthy" and (was, condition.status) == ("False", "True")


def _is_bad(condition: Condition) -> bool:
    """What a person must know of. Losses and ends are told by the core itself."""
    if condition.type in ("Valid", "CheckpointHealthy"):
        return condition.status == "False"
    return condition.reason in _WAITS.get(condition.type, ())


def count_ready(seen: Observed, decision: Decision, status: JobStatus) -> int:
    """Workers that train; while none does, those that could; none when nothing shall train."""
    if decision.phase in _AT_REST:
        return 0
    plan = status.attempt.plan if status.attempt else None
    if decision.phase == "Running" and plan is not None:
        return len(plan.members)
    return sum(
        pod.sidecar_running and pod.deletion_age_seconds is None and not _is_away(seen, pod.node) for pod in seen.pods
    )


async def post_event(client: Client, room: JobRoom, notice: Notice) -> None:
    """One Event. A failure is logged: Events are for people, nothing waits for them for long."""
    _log.log(
        logging.WARNING if notice.type == "Warning" else logging.INFO,
        "%s: %s",
        notice.reason,
        notice.message,
        extra={"reason": notice.reason},
    )
    path = f"/api/v1/namespaces/{room.namespace}/events"
    try:
        await within(_EVENT_SECONDS, client.request("POST", path, body=_event(room, notice)))
    except Leaving as error:
        _log.debug("event %s was not posted: %s", notice.reason, error)
    except (ApiError, Unavailable, asyncio.TimeoutError) as error:
        _log.warning("event %s was not posted: %s", notice.reason, cut(str(error), _EVENT_LIMIT))


def _summary(old: Raw, seen: Observed, decision: Decision, status: JobStatus) -> Raw:
    now = _now()
    wanted = seen.spec.max_workers if seen.spec else old.get("wantedWorkers") or 0
    ready = count_ready(seen, decision, status)
    conditions = merge_conditions(old.get("conditions") or [], decision.conditions, generation=seen.generation, now=now)
    valid = seen.spec is not None and not seen.problems
    accepted = (
        {"accepted": accepted_json.to_json(seen.spec, seen.generation, old.get("accepted"))}
        if seen.spec and valid
        else {}
    )
    return {
        **accepted,
        "observedGeneration": seen.generation,
        "phase": decision.phase,
        "conditions": conditions,
        "ready": f"{ready}/{wanted}",
        "readyWorkers": ready,
        "wantedWorkers": wanted,
    }


def _is_away(seen: Observed, node: str) -> bool:
    view = seen.nodes.get(node)
    return view is None or view.unreachable or not view.ready


def _is_said(old: Any, wanted: Any) -> bool:
    """Whether a merge patch of `wanted` would change nothing. In objects null is absence; elsewhere values are compared."""
    if wanted is None:
        return old is None
    if isinstance(wanted, dict) and isinstance(old, dict):
        return all(_is_said(old.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, dict) and old is None:
        return False
    return bool(old == wanted)


def _event(room: JobRoom, notice: Notice) -> Raw:
    now = _now()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{room.name}.{secrets.token_hex(8)}", "namespace": room.namespace},
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": room.name,
            "namespace": room.namespace,
            "uid": room.uid,
            "resourceVersion": room.resource_version,
        },
        "type": notice.type,
        "reason": notice.reason,
        "message": cut(notice.message, _EVENT_LIMIT),
        "source": {"component": _COMPONENT},
        "reportingComponent": _COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def _now() -> str:
    return datetime.now(tz=timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
