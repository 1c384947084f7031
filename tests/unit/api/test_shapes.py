"""A template may hold anything: each place that we read, with each JSON type in it, is refused by its path or can be worked with."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from everstep_operator.api.parse import parse_job
from everstep_operator.api.shapes import TEMPLATE
from everstep_operator.cluster.pod import Owner, render_pod
from everstep_operator.settings import PodSettings
from unit.api.test_parse import job

Raw = dict[str, Any]
Path = tuple[str | int, ...]

TYPES = [
    None,
    True,
    False,
    0,
    -1,
    2.5,
    "",
    "x",
    "\0",
    [],
    [None],
    ["x"],
    [[]],
    [{}],
    {},
    {"x": None},
    {"cpu": "x"},
    {"y": []},
]
CONTAINER: Raw = {
    "name": "trainer",
    "command": ["torchrun"],
    "args": ["t.py"],
    "env": [{"name": "A", "value": "b"}],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    "resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "2"}},
    "securityContext": {"runAsUser": 1, "runAsGroup": 1, "runAsNonRoot": True},
}
TERMS = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}], "matchFields": [{}]}]}
FULL: Raw = {
    "metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}},
    "spec": {
        "initContainers": [{**CONTAINER, "name": "first"}],
        "containers": [{**CONTAINER}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "hostNetwork": False,
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 30,
        "securityContext": {"runAsUser": 1, "runAsGroup": 1, "runAsNonRoot": True},
        "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": TERMS}},
    },
}


def places(shape: Any = TEMPLATE, path: Path = ()) -> Iterator[Path]:
    if path:
        yield path
    for key, part in (
        shape.items() if isinstance(shape, dict) else ((0, part) for part in shape) if isinstance(shape, list) else ()
    ):
        yield from places(part, (*path, key))


def spoiled(path: Path, value: object) -> Raw:
    template = copy.deepcopy(FULL)
    place: Any = template
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return job(spec__template=template)


def test_the_template_that_is_spoiled_is_good_before() -> None:
    assert parse_job(job(spec__template=FULL)).problems == ()


@pytest.mark.parametrize("path", list(places()), ids=lambda path: ".".join(map(str, path)))
def test_any_type_anywhere_is_refused_or_works(path: Path) -> None:
    refused = 0
    for value in TYPES:
        parsed = parse_job(spoiled(path, value))
        if parsed.pod is None:
            assert parsed.problems
            refused += 1
            continue
        pod = render_pod(
            Owner("gpt", "ns", "1234567890", "c", "k"), parsed.pod, PodSettings("i:1", "Never"), 0, {"n": "n"}
        )
        json.dumps(pod)
    assert refused >= 4, "no type at all is wrong here"


def test_a_wrong_type_is_told_with_its_path_and_the_others_too() -> None:
    template = copy.deepcopy(FULL)
    template["spec"]["securityContext"] = "x"
    template["spec"]["containers"][0]["args"] = "train.py --lr 1"
    template["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "many"}}
    assert parse_job(job(spec__template=template)).problems == (
        "spec.template.spec.containers[0].args: must be a list, not 'train.py --lr 1': write [train.py, --lr, 1]",
        "spec.template.spec.containers[0].resources.limits[cpu]: 'many' is not a quantity such as 500m, 3 or 2Gi",
        "spec.template.spec.securityContext: must be an object, as `key: value`, not 'x'",
    )
