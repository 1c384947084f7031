"""What a real API server accepts and refuses, fills in and shows."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Space, manifest

Raw = dict[str, Any]

TEMPLATE = {"spec": {"containers": [{"name": "trainer", "image": "i:2", "command": ["python", "t.py"]}]}}


def checkpoint(**changes: Any) -> Raw:
    return {"storage": {"persistentVolumeClaim": {"claimName": "c"}}, **changes}


def stored(**changes: Any) -> Raw:
    return checkpoint(storage={"persistentVolumeClaim": {"claimName": "c"}, **changes})


ACCEPTED: dict[str, Raw] = {
    "as little as may be": {"workers": {"max": 1}},
    "min is max": {"workers": {"min": 3, "max": 3}},
    "null for what is not said": {
        "workers": {"min": None, "max": 2},
        "resumeFrom": None,
        "processesPerWorker": None,
        "activeDeadlineSeconds": None,
        "ttlSecondsAfterFinished": None,
    },
    "both intervals": {"checkpoint": checkpoint(interval={"steps": 5, "seconds": 30})},
    "keep one": {"checkpoint": checkpoint(keepLast=1)},
    "a path of parts": {"checkpoint": stored(path="team/gpt..v2/run")},
    "a template with fields that nobody here knows": {
        "template": {"spec": {**TEMPLATE["spec"], "fieldOfTheFuture": {"a": [1]}}}
    },
    "growth whenever it can": {"workers": {"max": 4, "growInterval": "0s"}},
    "a window of parts": {"restartPolicy": {"maxCrashes": 0, "window": "1h30m"}},
    "resume from a directory": {"resumeFrom": "step_400"},
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(space: Space, case: str) -> None:
    space.made_job(manifest(**ACCEPTED[case]))


REFUSED: dict[str, tuple[Raw, str]] = {
    "min above max": ({"workers": {"min": 5, "max": 4}}, "workers.min must not be greater than workers.max"),
    "no workers": ({"workers": {"max": 0}}, "spec.workers.max"),
    "min of nothing": ({"workers": {"min": 0, "max": 1}}, "spec.workers.min"),
    "no max": ({"workers": {"min": 1}}, "spec.workers.max: Required"),
    "no template": ({"template": None}, "spec.template"),
    "no storage": ({"checkpoint": {}}, "spec.checkpoint.storage: Required"),
    "storage of no kind": ({"checkpoint": {"storage": {}}}, "exactly one kind of storage"),
    "claim without a name": ({"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": ""}}}}, "claimName"),
    "absolute path": ({"checkpoint": stored(path="/data")}, "must not start with /"),
    "path upwards": ({"checkpoint": stored(path="a/../b")}, "must not contain .."),
    "no interval": ({"checkpoint": checkpoint(interval={})}, "checkpoint.interval needs steps"),
    "interval of no steps": ({"checkpoint": checkpoint(interval={"steps": 0})}, "spec.checkpoint.interval.steps"),
    "interval of negative seconds": (
        {"checkpoint": checkpoint(interval={"seconds": -1})},
        "spec.checkpoint.interval.seconds",
    ),
    "keep none": ({"checkpoint": checkpoint(keepLast=0)}, "spec.checkpoint.keepLast"),
    "memory of another kind": ({"checkpoint": checkpoint(memory="lots")}, "spec.checkpoint.memory"),
    "window of nothing": ({"restartPolicy": {"window": "0s"}}, "restartPolicy.window must be positive"),
    "an interval of another kind": ({"workers": {"max": 4, "growInterval": "often"}}, "spec.workers.growInterval"),
    "window of another kind": ({"restartPolicy": {"window": "1 hour"}}, "spec.restartPolicy.window"),
    "negative crashes": ({"restartPolicy": {"maxCrashes": -1}}, "spec.restartPolicy.maxCrashes"),
    "no progress at once": ({"restartPolicy": {"maxWithoutProgress": 0}}, "spec.restartPolicy.maxWithoutProgress"),
    "no processes": ({"processesPerWorker": 0}, "spec.processesPerWorker"),
    "deadline of nothing": ({"activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds"),
    "negative time to live": ({"ttlSecondsAfterFinished": -1}, "spec.ttlSecondsAfterFinished"),
    "a field of another name": ({"worker": {"max": 1}}, 'unknown field "spec.worker"'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_the_api_server(space: Space, case: str) -> None:
    changes, message = REFUSED[case]
    status, answer = space.create_job(manifest(**changes))
    assert status in (400, 422), answer
    assert message in answer["message"]


@pytest.mark.parametrize("name", ["a" * 53, "a.b"])
def test_refused_by_its_name(space: Space, name: str) -> None:
    status, answer = space.create_job(manifest(name))
    assert status == 422, answer
    assert "DNS label" in answer["message"]


def test_the_longest_name_is_accepted(space: Space) -> None:
    space.made_job(manifest("a" * 52))


def test_defaults_are_filled_in(space: Space) -> None:
    spec = space.made_job(manifest())["spec"]
    assert spec["restartPolicy"] == {"maxCrashes": 5, "window": "1h", "maxWithoutProgress": 3}
    assert (spec["suspend"], spec["checkpoint"]["keepLast"], spec["checkpoint"]["interval"]) == (
        False,
        3,
        {"seconds": 60},
    )


CHANGES: dict[str, tuple[Raw, Raw, str]] = {
    "template": ({}, {"template": TEMPLATE}, "template can be changed only while the job is suspended"),
    "storage": ({}, {"checkpoint": stored(path="elsewhere")}, "checkpoint.storage is immutable"),
    "storage while suspended": (
        {"suspend": True},
        {"checkpoint": stored(path="elsewhere")},
        "checkpoint.storage is immutable",
    ),
    "template while suspended": ({"suspend": True}, {"template": TEMPLATE}, ""),
    "template with suspension": ({}, {"template": TEMPLATE, "suspend": True}, ""),
    "template with resumption": ({"suspend": True}, {"template": TEMPLATE, "suspend": False}, ""),
    "workers": ({}, {"workers": {"min": 1, "max": 9}}, ""),
    "interval": ({}, {"checkpoint": {"interval": {"steps": 7}}}, ""),
    "processes": ({"processesPerWorker": 1}, {"processesPerWorker": 2}, "processesPerWorker can be changed only while"),
    "processes that were not said": ({}, {"processesPerWorker": 2}, "processesPerWorker can be changed only while"),
    "processes while suspended": ({"suspend": True}, {"processesPerWorker": 2}, ""),
    "memory": ({}, {"checkpoint": {"memory": "1Gi"}}, "checkpoint.memory can be changed only while"),
    "memory while suspended": ({"suspend": True}, {"checkpoint": {"memory": "1Gi"}}, ""),
    "a processes that stays": ({"processesPerWorker": 1}, {"workers": {"max": 3}}, ""),
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_may_be_changed(space: Space, case: str) -> None:
    before, change, message = CHANGES[case]
    space.made_job(manifest(**before))
    status, answer = space.server.call("PATCH", f"{space.jobs}/gpt", {"spec": change}, "application/merge-patch+json")
    assert status == (422 if message else 200), answer
    assert message in answer.get("message", "")


def test_short_name_and_categories(space: Space) -> None:
    _, found = space.server.call("GET", "/apis/everstep.dev/v1alpha1")
    (job,) = [resource for resource in found["resources"] if resource["name"] == "trainingjobs"]
    assert (job["shortNames"], job["categories"]) == (["tj"], ["all", "everstep"])


def test_one_line_tells_all(space: Space) -> None:
    space.made_job(manifest())
    status = {
        "phase": "Running",
        "ready": "3/4",
        "attempt": {"number": 7, "state": "Started", "intentID": "i", "cause": "crash", "intentGeneration": 1},
        "step": 412,
        "checkpoints": {
            "newest": {
                "id": "i",
                "dir": "step_400",
                "attempt": 6,
                "step": 400,
                "bytes": 1,
                "committedAt": "2020-01-01T00:00:00Z",
            }
        },
        "restarts": {"total": 6, "crash": 6},
    }
    code, answer = space.server.call(
        "PATCH", f"{space.jobs}/gpt/status?fieldValidation=Strict", {"status": status}, "application/merge-patch+json"
    )
    assert code == 200, answer
    table = space.server.table(f"{space.jobs}/gpt")
    titles = [column["name"] for column in table["columnDefinitions"] if column["priority"] == 0]
    row = dict(zip(titles, table["rows"][0]["cells"], strict=False))
    saved = row.pop("Saved")
    assert saved.endswith("y") or "d" in saved, saved
    row.pop("Age")
    assert row == {
        "Name": "gpt",
        "Phase": "Running",
        "Ready": "3/4",
        "Attempt": 7,
        "Step": 412,
        "Checkpoint": 400,
        "Restarts": 6,
    }
