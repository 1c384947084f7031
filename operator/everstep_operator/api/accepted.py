"""`status.accepted`: the last spec that was valid, as rules read it. A mistake in a later one must not leave a job that runs alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from everstep_protocol import codec

from everstep_operator.core.model import JobSpec

Raw = dict[str, Any]


@dataclass(frozen=True)
class Accepted:
    """A spec, and the generation of the job that it was."""

    generation: int
    spec: JobSpec


def to_json(spec: JobSpec, generation: int, before: Raw | None) -> Raw:
    """What a merge patch says: null ends a field. A later generation that means the same is the one `before`."""
    document = codec.to_json(spec)
    if before and before.get("spec") == _without_nulls(document):
        return before
    return {"generation": generation, "spec": document}


def from_json(status: Raw | None) -> Accepted | None:
    """None: no spec was accepted yet, or one by a version whose words are not ours."""
    document = (status or {}).get("accepted")
    if not document:
        return None
    try:
        return Accepted(int(document["generation"]), codec.from_json(JobSpec, document["spec"]))
    except (codec.InvalidDocument, KeyError, TypeError, ValueError):
        return None


def obeyed(body: Raw) -> Accepted | None:
    """What a job whose newest spec is invalid goes on with: as it was accepted, but for `suspend`, where that can be read."""
    accepted = from_json(body.get("status"))
    spec = body.get("spec")
    suspend = spec.get("suspend", False) if isinstance(spec, dict) else None
    if accepted is None or not isinstance(suspend, bool):
        return accepted
    return replace(accepted, spec=replace(accepted.spec, suspend=suspend))


def _without_nulls(document: Raw) -> Raw:
    """As the API server keeps it."""
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in document.items()
        if value is not None
    }
