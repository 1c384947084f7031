"""What is kept of pods and nodes, and how an object of the API becomes such a record. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from everstep_protocol import names

from everstep_operator.api.status import cut
from everstep_operator.cluster.scheduling import hostname
from everstep_operator.cluster.stable import stable_text
from everstep_operator.core.model import Hindrance, NodeView, PodView

Raw = dict[str, Any]
Phase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]

_MOST_DIGITS = 18
_STARTING = ("", "PodInitializing", "ContainerCreating")
_BACK_OFF = "CrashLoopBackOff"
_LONGEST = 500  # bytes of what the kubelet says of one pod: there are thousands of pods
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_UNREACHABLE = "node.kubernetes.io/unreachable"


@dataclass(frozen=True)
class PodRecord:
    """A pod, trimmed. `view` has ages as of `seen_at`; times are our own monotonic clock (R27)."""

    uid: str
    namespace: str
    job_uid: str  # UID of the owner that controls it
    view: PodView
    seen_at: float
    deleting_since: float | None
    answering_since: float | None  # sidecar running and IP known
    unstarted_since: float | None  # bound, and its containers do not run
    end_seen: tuple[str, float] | None  # the trainer container's last end, by its finish time, and when we saw it


@dataclass(frozen=True)
class NodeRecord:
    """A node, trimmed."""

    uid: str
    name: str
    ready: bool
    unreachable: bool
    unschedulable: bool
    out_of_service: bool
    ready_since: float
    hostname: str  # the label


def trim_pod(raw: Raw, before: PodRecord | None, now: float) -> PodRecord:
    """A pod of the API as a record; ages go on from the record before."""
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    own = _status_of(spec.get("initContainers"), names.SIDECAR_CONTAINER)
    sidecar = _status_of(status.get("initContainerStatuses"), names.SIDECAR_CONTAINER)
    trainer = _trainer_status(status, spec)
    ended = _ended(trainer)
    phase = cast(Phase, status.get("phase") or "Pending")
    running = "running" in (sidecar.get("state") or {}) and _has_started(trainer)
    deleting = meta.get("deletionTimestamp") is not None
    deleting_since = _since(deleting, before.deleting_since if before else None, now)
    answering_since = _since(running and bool(status.get("podIP")), before.answering_since if before else None, now)
    hindrance = _hindrance(status, before.view.hindrance if before else None)
    is_unstarted = bool(spec.get("nodeName")) and (hindrance is not None or not _has_started(trainer))
    unstarted_since = _since(is_unstarted, before.unstarted_since if before else None, now)
    end = ended or _last_end(trainer)
    view = PodView(
        name=meta["name"],
        uid=meta["uid"],
        resource_version=meta["resourceVersion"],
        worker_id=_number(labels.get(names.LABEL_WORKER), -1),
        ip=status.get("podIP") or "",
        node=spec.get("nodeName") or "",
        phase=phase,
        sidecar_running=running,
        deletion_age_seconds=0.0 if deleting else None,
        deletion_grace_seconds=_grace(meta),
        disruption=_condition(status, "DisruptionTarget", "True").get("reason", ""),
        trainer_terminated=bool(ended) or phase in ("Succeeded", "Failed"),
        trainer_restarts=int(trainer.get("restartCount") or 0),
        termination_message=str(end.get("message") or ""),
        template_hash=labels.get(names.LABEL_TEMPLATE_HASH, ""),
        plan_attempt=_number(annotations.get(names.ANNOTATION_ATTEMPT), 0),
        avoid=tuple(node for node in annotations.get(names.ANNOTATION_AVOID, "").split(",") if node),
        unschedulable=stable_text(before.view.unschedulable if before else "", _unschedulable(status)),
        hindrance=hindrance,
        age_seconds=0.0,
        ended_as=_ended_as(status) if phase == "Failed" else "",
        image=str(own.get("image") or ""),
        api_port=_api_port(own),
        trainer=str(trainer.get("name") or ""),
        trainer_end=str(end.get("reason") or ""),
    )
    return PodRecord(
        uid=meta["uid"],
        namespace=meta["namespace"],
        job_uid=_owner_uid(meta),
        view=view,
        seen_at=before.seen_at if before else now,
        deleting_since=deleting_since,
        answering_since=answering_since,
        unstarted_since=unstarted_since,
        end_seen=_end_seen(end, before.end_seen if before else None, now),
    )


def trim_node(raw: Raw, before: NodeRecord | None, now: float) -> NodeRecord:
    """A node of the API as a record."""
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    taints = {taint.get("key") for taint in spec.get("taints") or []}
    state = next(
        (item.get("status") for item in status.get("conditions") or [] if item.get("type") == "Ready"), "Unknown"
    )
    ready = state == "True"
    return NodeRecord(
        uid=meta["uid"],
        name=meta["name"],
        ready=ready,
        unreachable=state == "Unknown" or _UNREACHABLE in taints,
        unschedulable=bool(spec.get("unschedulable")),
        out_of_service=_OUT_OF_SERVICE in taints,
        ready_since=_ready_since(before, now),
        hostname=hostname(meta.get("labels") or {}, meta["name"]),
    )


def _ready_since(before: NodeRecord | None, now: float) -> float:
    """A node that is Ready when it is first seen did not return just now: after its own start the operator must not doubt all nodes."""
    if before is None:
        return -math.inf
    return before.ready_since if before.ready else now


def view_node(record: NodeRecord, lease_age_seconds: float, lease_duration_seconds: float, now: float) -> NodeView:
    """A node as the core sees it."""
    return NodeView(
        name=record.name,
        ready=record.ready,
        unreachable=record.unreachable,
        unschedulable=record.unschedulable,
        out_of_service=record.out_of_service,
        lease_age_seconds=lease_age_seconds,
        lease_duration_seconds=lease_duration_seconds,
        ready_age_seconds=now - record.ready_since if record.ready else 0.0,
    )


def _since(holds: bool, before: float | None, now: float) -> float | None:
    if not holds:
        return None
    return now if before is None else before


def _number(text: object, default: int) -> int:
    """Whoever may write pods writes what they like, and `int` raises for thousands of digits."""
    if isinstance(text, str) and len(text) <= _MOST_DIGITS and text.isascii() and text.isdecimal():
        return int(text)
    return default


def _owner_uid(meta: Raw) -> str:
    for reference in meta.get("ownerReferences") or []:
        if reference.get("controller") and reference.get("kind") == names.KIND:
            return str(reference.get("uid", ""))
    return ""


def _grace(meta: Raw) -> float | None:
    grace = meta.get("deletionGracePeriodSeconds")
    return None if grace is None else float(grace)


def _condition(status: Raw, kind: str, value: str) -> Raw:
    for condition in status.get("conditions") or []:
        if condition.get("type") == kind and condition.get("status") == value:
            return dict(condition)
    return {}


def _unschedulable(status: Raw) -> str:
    condition = _condition(status, "PodScheduled", "False")
    return str(condition.get("message") or condition.get("reason") or "")


def _status_of(statuses: list[Raw] | None, name: str) -> Raw:
    return next((item for item in statuses or [] if item.get("name") == name), {})


def _trainer_status(status: Raw, spec: Raw) -> Raw:
    """The trainer is the one whose command is our launcher."""
    for container in spec.get("containers") or []:
        if names.LAUNCHER in (container.get("command") or []):
            return _status_of(status.get("containerStatuses"), container["name"])
    return {}


def _last_end(trainer: Raw) -> Raw:
    return dict((trainer.get("lastState") or {}).get("terminated") or {})


def _ended(trainer: Raw) -> Raw:
    """How the trainer container ended, if it does not run now."""
    state = trainer.get("state") or {}
    if "terminated" in state:
        return dict(state["terminated"] or {"reason": "Unknown"})
    return _last_end(trainer) if "waiting" in state else {}


def _has_started(trainer: Raw) -> bool:
    """Whether the trainer container ever ran: before that its image may be pulled for minutes, and no hello can be expected."""
    state = trainer.get("state") or {}
    return "running" in state or "terminated" in state or bool(_last_end(trainer))


def _api_port(container: Raw) -> int:
    ports = container.get("ports") or []
    return next((int(item["containerPort"]) for item in ports if item.get("name") == names.PORT_NAME_API), 0)


def _ended_as(status: Raw) -> str:
    return cut(": ".join(str(status[key]) for key in ("reason", "message") if status.get(key)), _LONGEST)


def _end_seen(end: Raw, before: tuple[str, float] | None, now: float) -> tuple[str, float] | None:
    """An end is told apart by its finish time, as text; when it was is measured by our own clock (R27). The first look tells no age."""
    if not end:
        return None
    finished = str(end.get("finishedAt") or "")
    if before is not None and before[0] == finished:
        return before
    return finished, now


def _hindrance(status: Raw, before: Hindrance | None) -> Hindrance | None:
    """The first container that cannot start, or that ended and is to be started again; inits first, as the kubelet starts them."""
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    found = next((one for item in statuses if (one := _hindrance_of(item))), None)
    if found is None or before is None or before.container != found.container:
        return found
    return replace(found, message=stable_text(before.message, found.message))


def _hindrance_of(item: Raw) -> Hindrance | None:
    """A waiting container that ended before is told by that end: CrashLoopBackOff alone says nothing."""
    state = item.get("state") or {}
    waiting, ended = state.get("waiting") or {}, dict(state.get("terminated") or {})
    reason = str(waiting.get("reason") or "")
    if reason == _BACK_OFF:
        ended = _last_end(item)
    elif reason in _STARTING and not ended:
        return None
    if ended:
        if not ended.get("exitCode") and reason != _BACK_OFF:
            return None
        code = ended.get("exitCode")
        words = str(ended.get("message") or "").strip() or (reason if code is None else f"exit code {code}")
        reason = str(ended.get("reason") or reason or "Error")
    else:
        words = str(waiting.get("message") or "")
    return Hindrance(str(item.get("name")), reason, cut(words, _LONGEST), int(item.get("restartCount") or 0))
