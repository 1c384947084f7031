"""What the demo sees of the job, made from the API server's documents. Values only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Document = dict[str, Any]

_STEP_LINE = re.compile(r"\bstep (?P<step>\d+) loss (?P<loss>\d+(?:\.\d+)?(?:e[-+]?\d+)?)\b")


@dataclass(frozen=True)
class Worker:
    """One pod of the job; `ranks` is empty for a pod that is not in the current attempt."""

    name: str
    node: str
    state: str  # the pod's phase, or Terminating
    ranks: str


@dataclass(frozen=True)
class Checkpoint:
    """The newest complete checkpoint."""

    step: int
    attempt: int
    committed_at: str


@dataclass(frozen=True)
class Look:
    """The job at one moment. `world` is 0 while no attempt is planned; `step` counts finished steps, -1 is none heard of."""

    phase: str = ""
    message: str = ""
    attempt: int = 0
    state: str = ""
    cause: str = ""
    world: int = 0
    coordinator: str = ""  # the pod that holds rank 0
    step: int = -1
    loss: float | None = None
    newest: Checkpoint | None = None
    workers: tuple[Worker, ...] = ()
    events: tuple[str, ...] = ()
    history: tuple[Document, ...] = ()

    @property
    def trains(self) -> bool:
        return self.state == "Started" and self.world > 0


@dataclass(frozen=True)
class LogStep:
    """The last step that a trainer's log tells of; as in the log, the first is 0."""

    step: int
    loss: float


def last_step(log: str) -> LogStep | None:
    """The last line of the form `step 120 loss 2.3 ...`, None if there is none."""
    lines = list(_STEP_LINE.finditer(log))
    return LogStep(int(lines[-1]["step"]), float(lines[-1]["loss"])) if lines else None


def look_at(job: Document, pods: list[Document], events: list[Document], log: LogStep | None) -> Look:
    """Puts the documents together; anything that is not there yet is left empty."""
    status = job.get("status") or {}
    attempt = status.get("attempt") or {}
    plan = attempt.get("plan") or {}
    ranks = {member["uid"]: _ranks(*member["ranks"]) for member in plan.get("members", ())}
    return Look(
        phase=status.get("phase", ""),
        message=_message(status),
        attempt=attempt.get("number", 0),
        state=attempt.get("state", ""),
        cause=attempt.get("cause", ""),
        world=plan.get("world", 0),
        coordinator=_coordinator(plan, pods),
        step=max(status.get("step", -1), log.step + 1 if log else -1),
        loss=log.loss if log else None,
        newest=_newest(status),
        workers=tuple(sorted((_worker(pod, ranks) for pod in pods), key=lambda worker: worker.name)),
        events=tuple(_event(event) for event in sorted(events, key=_event_time)),
        history=tuple(status.get("history") or ()),
    )


def _ranks(first: int, end: int) -> str:
    return str(first) if end - first == 1 else f"{first}-{end - 1}"


def _coordinator(plan: Document, pods: list[Document]) -> str:
    uid = (plan.get("coordinator") or {}).get("uid")
    return next((pod["metadata"]["name"] for pod in pods if pod["metadata"]["uid"] == uid), "")


def _newest(status: Document) -> Checkpoint | None:
    newest = (status.get("checkpoints") or {}).get("newest")
    return Checkpoint(newest["step"], newest["attempt"], newest.get("committedAt", "")) if newest else None


def _message(status: Document) -> str:
    """What the job says of itself: the condition that went wrong, else the one about training."""
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    failed, valid, ready = (conditions.get(kind, {}) for kind in ("Failed", "Valid", "Ready"))
    if failed.get("status") == "True":
        return str(failed.get("message", ""))
    if valid.get("status") == "False":
        return str(valid.get("message", ""))
    return str(ready.get("message", ""))


def _worker(pod: Document, ranks: dict[str, str]) -> Worker:
    metadata = pod["metadata"]
    state = "Terminating" if metadata.get("deletionTimestamp") else (pod.get("status") or {}).get("phase", "Pending")
    return Worker(metadata["name"], (pod.get("spec") or {}).get("nodeName", ""), state, ranks.get(metadata["uid"], ""))


def _event_time(event: Document) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


def _event(event: Document) -> str:
    try:
        clock = datetime.fromisoformat(_event_time(event)).strftime("%H:%M:%S")
    except ValueError:
        clock = "        "
    return f"{clock}  {event.get('reason', '')}: {event.get('message', '')}"
