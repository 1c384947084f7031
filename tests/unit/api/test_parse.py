"""What a user may write: accepted with defaults, or every wrong field at once with its path."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from everstep_operator.api.parse import parse_job
from everstep_operator.api.quantities import parse_duration, parse_quantity
from everstep_operator.core.model import JobSpec, RestartPolicy
from everstep_protocol.plan import SaveInterval

Raw = dict[str, Any]

TRAINER = "spec.template.spec.containers[0]"


def job(**changes: Any) -> Raw:
    """A good job; `changes` are dotted paths with `__` for the dot, a number for a list's place."""
    body: Raw = {
        "metadata": {"name": "gpt"},
        "spec": {
            "workers": {"max": 4},
            "template": {
                "spec": {"containers": [{"name": "trainer", "image": "my-gpt:1", "command": ["python", "train.py"]}]}
            },
            "checkpoint": {
                "storage": {"persistentVolumeClaim": {"claimName": "checkpoints"}},
                "interval": {"steps": 50},
            },
        },
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        place: Any = body
        for part in parents:
            place = place[int(part)] if part.isdecimal() else place.setdefault(part, {})
        place[last] = value
    return body


def trainer(**fields: Any) -> Raw:
    body = job()
    body["spec"]["template"]["spec"]["containers"][0].update(fields)
    return body


def pod(**fields: Any) -> Raw:
    body = job()
    body["spec"]["template"]["spec"].update(fields)
    return body


def test_defaults() -> None:
    parsed = parse_job(job())
    assert parsed.problems == ()
    assert parsed.pod is not None
    assert parsed.spec == JobSpec(
        min_workers=4,
        max_workers=4,
        processes_per_worker=1,
        template_hash=parsed.pod.hash,
        interval=SaveInterval(50, None),
        keep_last=3,
        restart=RestartPolicy(5, 3600.0, 3),
    )
    assert parsed.pod.path == "gpt"
    assert parsed.pod.command == ("python", "train.py")


def test_everything_said() -> None:
    body = job(
        spec__workers={"min": 2, "max": 4},
        spec__checkpoint__interval={"seconds": 30},
        spec__checkpoint__keepLast=7,
        spec__checkpoint__memory="1Gi",
        spec__checkpoint__storage__path="runs/gpt/",
        spec__restartPolicy={"maxCrashes": 0, "window": "1h30m", "maxWithoutProgress": 9},
        spec__suspend=True,
        spec__resumeFrom="step_400",
        spec__processesPerWorker=2,
        spec__activeDeadlineSeconds=10,
        spec__ttlSecondsAfterFinished=0,
        spec__template__spec__terminationGracePeriodSeconds=60,
    )
    parsed = parse_job(body)
    assert parsed.pod is not None
    assert parsed.spec == JobSpec(
        2,
        4,
        2,
        parsed.pod.hash,
        SaveInterval(None, 30.0),
        7,
        RestartPolicy(0, 5400.0, 9),
        True,
        "step_400",
        10.0,
        0.0,
        60.0,
    )
    assert (parsed.pod.path, parsed.pod.memory_bytes) == ("runs/gpt", 2**30)


def test_variables_that_are_for_users_are_accepted() -> None:
    assert parse_job(trainer(env=[{"name": "EVERSTEP_OWN_WORLDS", "value": "1"}])).problems == ()


WRONG: dict[str, tuple[Raw, str]] = {
    "min above max": (job(spec__workers={"min": 5, "max": 4}), "spec.workers.min: 5 is greater"),
    "no workers": (job(spec__workers={"max": 0}), "spec.workers.max: "),
    "a word for a number": (job(spec__workers={"max": "4"}), "spec.workers.max: "),
    "unknown field": (job(spec__worker={"max": 4}), "spec.worker: "),
    "no template": (job(spec__template=None), "spec.template: "),
    "no pod spec": (job(spec__template={}), "spec.template.spec: "),
    "no containers": (pod(containers=[]), "spec.template.spec.containers: must list"),
    "containers of another kind": (pod(containers="trainer"), "spec.template.spec.containers: must be a list"),
    "a command that is a text": (
        trainer(command="torchrun train.py"),
        f"{TRAINER}.command: must be a list, not 'torchrun train.py': write [torchrun, train.py]",
    ),
    "another launcher": (
        trainer(command=["accelerate", "launch", "train.py"]),
        f"{TRAINER}.command: accelerate would start a world of its own",
    ),
    "which is the trainer": (
        pod(containers=[{"name": "a"}, {"name": "b"}]),
        "spec.template.spec.containers: 2 containers",
    ),
    "no command": (trainer(command=None), f"{TRAINER}.command: must be set"),
    "torchrun without a script": (trainer(command=["torchrun"]), f"{TRAINER}.command: "),
    "rank variable": (trainer(env=[{"name": "A"}, {"name": "RANK", "value": "1"}]), f"{TRAINER}.env[1].name: RANK"),
    "master variable": (trainer(env=[{"name": "MASTER_ADDR"}]), f"{TRAINER}.env[0].name: MASTER_ADDR"),
    "our variable": (trainer(env=[{"name": "EVERSTEP_X"}]), f"{TRAINER}.env[0].name: EVERSTEP_X"),
    "mount under ours": (
        trainer(volumeMounts=[{"mountPath": "/everstep/memory"}]),
        f"{TRAINER}.volumeMounts[0].mountPath",
    ),
    "our volume": (pod(volumes=[{"name": "everstep-bin"}]), "spec.template.spec.volumes[0].name"),
    "our container": (pod(initContainers=[{"name": "everstep-sidecar"}]), "spec.template.spec.initContainers[0].name"),
    "host network": (pod(hostNetwork=True), "spec.template.spec.hostNetwork"),
    "grace of another kind": (
        pod(terminationGracePeriodSeconds="long"),
        "spec.template.spec.terminationGracePeriodSeconds",
    ),
    "no storage": (job(spec__checkpoint__storage={}), "spec.checkpoint.storage: exactly one"),
    "absolute path": (job(spec__checkpoint__storage__path="/data"), "spec.checkpoint.storage.path: "),
    "path upwards": (job(spec__checkpoint__storage__path="a/../../b"), "spec.checkpoint.storage.path: "),
    "no interval": (job(spec__checkpoint__interval={}), "spec.checkpoint.interval: needs"),
    "interval of nothing": (job(spec__checkpoint__interval={"steps": 0}), "spec.checkpoint.interval.steps: "),
    "keep none": (job(spec__checkpoint__keepLast=0), "spec.checkpoint.keepLast: "),
    "memory of another kind": (job(spec__checkpoint__memory="lots"), "spec.checkpoint.memory: "),
    "window of nothing": (job(spec__restartPolicy={"window": "0s"}), "spec.restartPolicy.window: 0s must be positive"),
    "window of another kind": (job(spec__restartPolicy={"window": "1 hour"}), "spec.restartPolicy.window: "),
    "resume from elsewhere": (job(spec__resumeFrom="../other"), "spec.resumeFrom: "),
    "long name": (job(metadata__name="a" * 53), "metadata.name: has 53 characters"),
    "dotted name": (job(metadata__name="a.b"), "metadata.name: 'a.b' must be a DNS label"),
    "processes against --nproc-per-node": (
        job(
            spec__processesPerWorker=3,
            spec__template__spec__containers__0__command=["torchrun", "--nproc-per-node=2", "train.py"],
        ),
        "spec.processesPerWorker: is 3, but --nproc-per-node says 2",
    ),
    "--nproc-per-node against GPUs": (
        trainer(command=["torchrun", "--nproc-per-node=2", "t.py"], resources={"limits": {"nvidia.com/gpu": 8}}),
        f"{TRAINER}.command: --nproc-per-node is 2, but the limits have 8 GPUs",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_refused_with_the_field_s_path(case: str) -> None:
    body, beginning = WRONG[case]
    parsed = parse_job(body)
    assert (parsed.spec, parsed.pod) == (None, None)
    assert any(problem.startswith(beginning) for problem in parsed.problems), parsed.problems


def test_every_wrong_field_is_told_at_once() -> None:
    body = trainer(command=None, env=[{"name": "RANK"}], volumeMounts=[{"mountPath": "/everstep"}])
    body["spec"]["template"]["spec"]["hostNetwork"] = True
    body["spec"]["checkpoint"]["storage"]["path"] = "/x"
    body["metadata"]["name"] = "x" * 60
    assert len(parse_job(body).problems) == 6


@pytest.mark.parametrize(
    "body", [{}, {"metadata": {}, "spec": []}, {"metadata": {"name": "a"}, "spec": {"workers": 3}}]
)
def test_nothing_a_user_writes_raises(body: Raw) -> None:
    assert parse_job(body).problems


@pytest.mark.parametrize(
    ("spec", "command", "limits", "processes"),
    [
        (None, ["python", "t.py"], {}, 1),
        (None, ["torchrun", "--nproc-per-node=3", "t.py"], {}, 3),
        (None, ["torchrun", "--nproc-per-node=auto", "t.py"], {"nvidia.com/gpu": "4"}, 4),
        (None, ["python", "t.py"], {"amd.com/gpu": 2}, 2),
        (2, ["python", "t.py"], {"nvidia.com/gpu": 4}, 2),
    ],
)
def test_processes_a_worker(spec: int | None, command: list[str], limits: Raw, processes: int) -> None:
    body = trainer(command=command, resources={"limits": limits})
    body["spec"]["processesPerWorker"] = spec
    parsed = parse_job(body)
    assert parsed.spec is not None, parsed.problems
    assert parsed.spec.processes_per_worker == processes


def test_memory_is_half_of_the_trainer_s_limit() -> None:
    parsed = parse_job(trainer(resources={"limits": {"memory": "2Gi"}}))
    assert parsed.pod is not None
    assert parsed.pod.memory_bytes == 2**30


def test_the_only_container_is_the_trainer_whatever_its_name() -> None:
    assert parse_job(trainer(name="main")).spec is not None


def test_the_container_named_trainer_is_the_trainer() -> None:
    logger = {"name": "logger", "image": "x"}
    body = job()
    body["spec"]["template"]["spec"]["containers"].insert(0, logger)
    parsed = parse_job(body)
    assert parsed.pod is not None
    assert parsed.pod.trainer == 1


def test_another_restart_policy_is_warned_of() -> None:
    assert "restartPolicy: Never" in parse_job(pod(restartPolicy="Never")).warnings[0]
    assert parse_job(pod(restartPolicy="OnFailure")).warnings == ()


def test_r29_the_hash_tells_templates_apart_and_nothing_else() -> None:
    def hash_of(body: Raw) -> str:
        parsed = parse_job(body)
        assert parsed.spec is not None, parsed.problems
        return parsed.spec.template_hash

    same = job(spec__workers={"min": 1, "max": 9}, spec__suspend=True, spec__checkpoint__interval={"seconds": 1})
    assert hash_of(same) == hash_of(copy.deepcopy(job()))
    assert hash_of(trainer(image="other")) != hash_of(job())
    assert hash_of(job(spec__processesPerWorker=2)) != hash_of(job())


@pytest.mark.parametrize(
    ("text", "number"), [("500m", 0.5), ("3", 3), ("2Gi", 2**31), (4, 4), ("1e3", 1000), ("1.5k", 1500), ("12E1", 120)]
)
def test_quantities(text: object, number: float) -> None:
    assert float(parse_quantity(text)) == number


@pytest.mark.parametrize("text", ["", "x", "1Xi", "-1", "1 Gi"])
def test_no_quantities(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1h30m", 5400), ("1.5h", 5400), ("500ms", 0.5)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "1", "h", "1d", "1h 2m"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)
