"""`JobStatus` <-> the JSON under `status`. Names are the protocol's camelCase; what is not known is left out.

A status is written as a merge patch, which ends fields by null: `to_patch` says null for what is to vanish, `from_json` takes
null and absence for the same.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from everstep_protocol import codec

from everstep_operator.core.history import MOST_NODES
from everstep_operator.core.model import HistoryEntry, JobStatus

Raw = dict[str, Any]

MESSAGE_LIMIT = 4096  # bytes of a condition's or an attempt's message
LAST_LINES_LIMIT = 1024  # bytes of a message in history
HISTORY_LIMIT = 20
_NOT_PLANNED: Raw = {
    "worldSize": 0,
    "resumedStep": -1,
    "stepsLost": None,
    "nodes": [],
    "numWorkers": 0,
}  # of an attempt without a plan


def to_patch(status: JobStatus) -> Raw:
    """The part of a merge patch that says this status; messages and lists are cut so that it stays small (B42)."""
    document: Raw = codec.to_json(_bounded(status))
    document["workers"] = [_without_nothing(item) for item in document["workers"]]
    document["history"] = [_without_unknown(_without_nothing(item)) for item in document["history"]]
    if status.step < 0:
        document["step"] = None
    for key in ("startedAt", "completedAt", "result", "resultReason", "resultMessage", "honouredResumeFrom"):
        document[key] = document[key] or None
    if document["attempt"]:
        for key in ("ended", "failureAt", "message", "fencedBy", "askLast", "goAt", "trainingAt"):
            document["attempt"][key] = document["attempt"][key] or None
    document["growth"] = {key: value or None for key, value in document["growth"].items()}
    if not any(document["growth"].values()):
        document["growth"] = None
    newest = document["checkpoints"]["newest"]
    if newest:
        newest["committedAt"] = newest["committedAt"] or None
    return document


def from_json(status: Raw | None) -> JobStatus:
    """The status that rules read. Raises InvalidDocument where it was written by hand, or by a version that is not compatible."""
    document = _prune(status or {})
    attempt = document.get("attempt")
    if attempt is not None and attempt.get("plan") is None:
        attempt.pop("plan", None)
    document["history"] = [{**_NOT_PLANNED, **entry} for entry in document.get("history", [])]
    newest = (document.get("checkpoints") or {}).get("newest")
    if newest is not None:
        newest.setdefault("committedAt", "")
    return codec.from_json(JobStatus, document)


def cut(text: str, limit_bytes: int) -> str:
    """At most so many bytes of UTF-8: the beginning and the end, which in a traceback say most."""
    raw = text.encode(errors="replace")
    if len(raw) <= limit_bytes:
        return raw.decode()
    head = limit_bytes // 4
    tail = limit_bytes - head - 8
    return raw[:head].decode(errors="ignore") + "\n...\n" + raw[-tail:].decode(errors="ignore")


def _bounded(status: JobStatus) -> JobStatus:
    attempt = status.attempt and dataclasses.replace(status.attempt, message=cut(status.attempt.message, MESSAGE_LIMIT))
    history = [_bounded_entry(entry) for entry in status.history[-HISTORY_LIMIT:]]
    return dataclasses.replace(
        status,
        attempt=attempt,
        history=tuple(history),
        result_message=cut(status.result_message, MESSAGE_LIMIT),
    )


def _bounded_entry(entry: HistoryEntry) -> HistoryEntry:
    nodes = entry.nodes if len(entry.nodes) <= MOST_NODES else ()  # older operators wrote all of them
    return dataclasses.replace(entry, message=cut(entry.message, LAST_LINES_LIMIT), nodes=nodes)


def _without_nothing(item: Raw) -> Raw:
    """Objects in lists are replaced as a whole: null and empty are the same as absent."""
    return {
        key: _without_nothing(value) if isinstance(value, dict) else value
        for key, value in item.items()
        if value is not None and value != ""
    }


def _without_unknown(entry: Raw) -> Raw:
    """A line of history without what only a plan can say."""
    return {key: value for key, value in entry.items() if key not in _NOT_PLANNED or value != _NOT_PLANNED[key]}


def _prune(value: Any) -> Any:
    """Without nulls."""
    if isinstance(value, dict):
        return {key: _prune(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_prune(item) for item in value]
    return value
