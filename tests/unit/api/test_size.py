"""How large a job may be: what the limits assume holds for the largest one, and what does not fit is refused before it is tried."""

from __future__ import annotations

import json

import pytest
from everstep_operator.api import size, status
from everstep_operator.api.parse import parse_job
from everstep_protocol import codec
from largest_job import largest_plan, largest_status
from unit.api.test_parse import job


@pytest.mark.parametrize("workers", [1, 100, size.MOST_WORKERS])
def test_no_plan_and_no_status_is_longer_than_the_limits_assume(workers: int) -> None:
    plan = codec.dumps(largest_plan(workers))
    patch = json.dumps(status.to_patch(largest_status(workers)), separators=(",", ":"))
    assert len(plan) <= size.plan_bytes(workers)
    assert len(patch) <= size.status_bytes(workers) - 7 * status.MESSAGE_LIMIT  # room for the conditions


def test_the_largest_job_fits_with_room_to_spare() -> None:
    assert size.plan_bytes(size.MOST_WORKERS) < 0.95 * size.ANNOTATIONS_BYTES
    assert size.status_bytes(size.MOST_WORKERS) < 0.75 * size.OBJECT_BYTES


@pytest.mark.parametrize("field", ["max", "min"])
def test_more_workers_are_refused_with_the_path(field: str) -> None:
    parsed = parse_job(job(spec__workers={"max": 1000, field: 1001}))
    assert any(problem.startswith(f"spec.workers.{field}:") for problem in parsed.problems)
    assert parse_job(job(spec__workers__max=size.MOST_WORKERS)).problems == ()


def test_annotations_that_leave_no_room_for_the_plan_are_refused() -> None:
    long = {"team/notes": "x" * 60_000}
    (problem,) = parse_job(job(spec__workers__max=1000, spec__template__metadata__annotations=long)).problems
    assert problem.startswith("spec.template.metadata.annotations: have 60010 bytes; beside the plan of 1000 workers")
    assert parse_job(job(spec__workers__max=100, spec__template__metadata__annotations=long)).problems == ()


def test_a_spec_that_leaves_no_room_for_status_is_refused() -> None:
    body = job(spec__workers__max=1000)
    body["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "A", "value": "x" * 600_000}]
    (problem,) = parse_job(body).problems
    assert problem.startswith("spec: has, with the metadata, 600")
    body["spec"]["workers"]["max"] = 8
    assert parse_job(body).problems == ()
