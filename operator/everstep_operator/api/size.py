"""How large a job may be: what Kubernetes stores of an object is bounded, and a write that can never succeed is not to be tried.

A plan names each worker in an annotation of every pod, and status has the plan and a row for each worker.
"""

from __future__ import annotations

import json
from typing import Any

from everstep_operator.api.template import Problems

MOST_WORKERS = 1000
ANNOTATIONS_BYTES = 256 << 10  # the API server's limit for all annotations of one object, names and values
OBJECT_BYTES = 1 << 20  # etcd takes 1.5 MiB in one request; what others write into the object needs room as well
# The longest: node names of 63 characters, IPv6 addresses, 1,024 processes a worker. A test makes them so.
_PLAN_BYTES = 4096  # of a plan without its members
_MEMBER_BYTES = 208  # of one member in it
_STATUS_BYTES = 150_000  # of a status that is full, without what each worker adds
_WORKER_BYTES = 120  # of one row in it

Raw = dict[str, Any]


def plan_bytes(num_workers: int) -> int:
    """No plan of so many workers is longer."""
    return _PLAN_BYTES + _MEMBER_BYTES * num_workers


def status_bytes(num_workers: int) -> int:
    """No status of a job of so many workers is longer, as compact JSON."""
    return _STATUS_BYTES + plan_bytes(num_workers) + _WORKER_BYTES * num_workers


def check_size(body: Raw, template: Raw, num_workers: int, problems: Problems) -> None:
    """Say what would not fit into the objects of a job with so many workers."""
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    own = sum(len(str(part).encode()) for pair in annotations.items() for part in pair)
    left = ANNOTATIONS_BYTES - plan_bytes(num_workers)
    if own > left:
        problems.say(
            "spec.template.metadata.annotations",
            f"have {own} bytes; beside the plan of {num_workers} workers a pod has room for {left}: make them shorter, or lower workers.max",
        )
    stored = {key: value for key, value in body.items() if key != "status"}
    size, room = len(json.dumps(stored, separators=(",", ":")).encode()), OBJECT_BYTES - status_bytes(num_workers)
    if size > room:
        problems.say(
            "spec",
            f"has, with the metadata, {size} bytes; beside the status of {num_workers} workers there is room for {room}:"
            " make the template shorter, or lower workers.max",
        )
