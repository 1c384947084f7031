"""The largest job there may be: the API server stores its status and its pods' plan."""

from __future__ import annotations

from typing import Any

from conftest import Space, manifest
from everstep_operator.api import status as status_json
from everstep_operator.api.size import ANNOTATIONS_BYTES, MOST_WORKERS, OBJECT_BYTES
from everstep_operator.cluster.report import merge_conditions
from everstep_operator.core.model import Condition
from everstep_protocol import codec, names
from largest_job import TIME, largest_plan, largest_status

TYPES: tuple[Any, ...] = ("Valid", "Ready", "Degraded", "CheckpointHealthy", "Suspended", "Complete", "Failed")


def test_the_status_of_a_thousand_workers_is_stored_as_it_was_written(space: Space) -> None:
    space.made_job(manifest(workers={"max": MOST_WORKERS}))
    written = largest_status()
    conditions = tuple(Condition(kind, "False", "NotProgressing", "m" * status_json.MESSAGE_LIMIT) for kind in TYPES)
    patch = {
        **status_json.to_patch(written),
        "conditions": merge_conditions([], conditions, generation=1, now=TIME),
        "phase": "Running",
    }
    path = f"{space.jobs}/gpt/status?fieldValidation=Strict"
    code, answer = space.server.call("PATCH", path, {"status": patch}, "application/merge-patch+json")
    assert code == 200, str(answer)[:500]
    code, stored = space.server.call("GET", f"{space.jobs}/gpt")
    assert status_json.from_json(stored["status"]) == written
    assert len(codec.dumps(stored)) < 0.75 * OBJECT_BYTES


def test_one_worker_more_is_refused(space: Space) -> None:
    code, answer = space.create_job(manifest(workers={"max": MOST_WORKERS + 1}))
    assert (code, "spec.workers.max" in answer["message"]) == (422, True)


def test_the_plan_of_a_thousand_workers_is_an_annotation(space: Space) -> None:
    plan = codec.dumps(largest_plan())
    pod = {
        "metadata": {"name": "w", "annotations": {names.ANNOTATION_PLAN: plan, names.ANNOTATION_ATTEMPT: "7"}},
        "spec": {"containers": [{"name": "trainer", "image": "i:1"}]},
    }
    code, stored = space.server.call("POST", space.pods, pod)
    assert code == 201, str(stored)[:500]
    assert stored["metadata"]["annotations"][names.ANNOTATION_PLAN] == plan
    assert sum(map(len, stored["metadata"]["annotations"].values())) < 0.95 * ANNOTATIONS_BYTES
