"""A worker's pod: what is added, and that the user's own fields are kept as written."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
from everstep_operator.api.parse import parse_job
from everstep_operator.api.template import PodTemplate
from everstep_operator.cluster.pod import Owner, is_guaranteed, render_pod
from everstep_operator.settings import PodSettings

Raw = dict[str, Any]

OWNER = Owner("gpt", "team", "0123456789abcdef", "cluster-uid", "k1")
SETTINGS = PodSettings("everstep:1", "Never")
GUARANTEED = {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"cpu": 2, "memory": "4096Mi"}}


def template(trainer: Raw | None = None, **pod: Any) -> PodTemplate:
    container = {
        "name": "trainer",
        "image": "my-gpt:1",
        "command": ["torchrun"],
        "args": ["train.py", "--lr=1"],
        **(trainer or {}),
    }
    body = {
        "metadata": {"name": "gpt"},
        "spec": {
            "workers": {"max": 2},
            "template": {
                "metadata": {"labels": {"team": "nlp"}, "annotations": {"note": "x"}},
                "spec": {"containers": [container], **pod},
            },
            "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "checkpoints"}, "path": "runs/gpt"}},
        },
    }
    parsed = parse_job(body)
    assert parsed.pod is not None, parsed.problems
    return parsed.pod


def render(given: PodTemplate, avoid: dict[str, str] | None = None) -> Raw:
    return render_pod(OWNER, given, SETTINGS, 7, avoid or {})


def container(pod: Raw, name: str) -> Raw:
    found = [c for kind in ("initContainers", "containers") for c in pod["spec"][kind] if c["name"] == name]
    assert len(found) == 1
    return dict(found[0])


def mounts(of: Raw) -> dict[str, str]:
    return {m["mountPath"]: m["name"] + (":ro" if m.get("readOnly") else "") for m in of["volumeMounts"]}


def test_metadata() -> None:
    given = template()
    assert render(given)["metadata"] == {
        "name": "gpt-w7",
        "namespace": "team",
        "labels": {
            "team": "nlp",
            "everstep.dev/job": "gpt",
            "everstep.dev/job-uid": OWNER.uid,
            "everstep.dev/worker": "7",
            "everstep.dev/template-hash": given.hash,
            "app.kubernetes.io/managed-by": "everstep",
        },
        "annotations": {"note": "x", "everstep.dev/attempt": "0"},
        "ownerReferences": [
            {
                "apiVersion": "everstep.dev/v1alpha1",
                "kind": "TrainingJob",
                "name": "gpt",
                "uid": OWNER.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }


def test_the_launcher_is_in_front_of_the_user_s_command() -> None:
    trainer = container(render(template()), "trainer")
    assert trainer["command"] == ["python3", "/everstep/bin/everstep", "launch", "--", "torchrun", "train.py", "--lr=1"]
    assert "args" not in trainer


def test_trainer_reads_storage_and_only_the_sidecar_writes_it() -> None:
    pod = render(template())
    assert mounts(container(pod, "trainer")) == {
        "/everstep/bin": "everstep-bin:ro",
        "/everstep/memory": "everstep-memory",
        "/everstep/storage": "everstep-storage:ro",
        "/dev/shm": "everstep-shm",
    }
    assert mounts(container(pod, "everstep-sidecar")) == {
        "/everstep/memory": "everstep-memory",
        "/everstep/scratch": "everstep-scratch",
        "/everstep/pod": "everstep-pod:ro",
        "/everstep/token": "everstep-token:ro",
        "/everstep/storage": "everstep-storage",
    }
    assert mounts(container(pod, "everstep-injector")) == {"/everstep/bin": "everstep-bin"}


def test_the_sidecar_is_native_and_last_of_the_init_containers() -> None:
    pod = render(template(initContainers=[{"name": "download", "image": "x"}]))
    assert [c["name"] for c in pod["spec"]["initContainers"]] == ["download", "everstep-injector", "everstep-sidecar"]
    assert container(pod, "everstep-sidecar")["restartPolicy"] == "Always"


@pytest.mark.parametrize(("silence_seconds", "failures"), [(100.0, 10), (30.0, 3), (31.0, 4), (1.0, 1)])
def test_a_sidecar_that_answers_nothing_is_restarted_and_a_starved_one_is_not(
    silence_seconds: float, failures: int
) -> None:
    settings = dataclasses.replace(SETTINGS, sidecar_silence=silence_seconds, metrics_port=9000)
    pod = render_pod(OWNER, template(), settings, 7)
    probe = container(pod, "everstep-sidecar")["livenessProbe"]
    assert probe["httpGet"] == {"path": "/healthz", "port": 9000}, "no host: the pod's own IP, of either family"
    assert probe["failureThreshold"] == failures
    assert probe["timeoutSeconds"] * probe["failureThreshold"] >= silence_seconds
    assert probe["timeoutSeconds"] >= 2 * 4.4, "the slowest answer of a starved sidecar (RECOVERY.md)"
    assert probe["terminationGracePeriodSeconds"] < pod["spec"].get("terminationGracePeriodSeconds", 30)
    assert "livenessProbe" not in container(pod, "trainer"), "a trainer's life is nobody's business but its launcher's"


def test_training_pods_hold_no_credentials_and_restart_on_failure() -> None:
    spec = render(template(restartPolicy="Never", automountServiceAccountToken=True))["spec"]
    assert (spec["automountServiceAccountToken"], spec["restartPolicy"]) == (False, "OnFailure")


def test_the_user_s_fields_are_kept_as_written() -> None:
    own: Raw = {
        "nodeSelector": {"pool": "gpu"},
        "priorityClassName": "high",
        "schedulerName": "mine",
        "serviceAccountName": "me",
        "volumes": [{"name": "data", "emptyDir": {}}],
        "terminationGracePeriodSeconds": 90,
        "imagePullSecrets": [{"name": "pull"}],
    }
    trainer = {
        "env": [{"name": "A", "value": "1"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "tty": True,
    }
    given = template(trainer, **own)
    before = copy.deepcopy(given.raw)
    spec = render(given)["spec"]
    assert given.raw == before, "the template was changed"
    assert {key: spec[key] for key in own if key != "volumes"} == {key: own[key] for key in own if key != "volumes"}
    assert spec["volumes"][0] == own["volumes"][0]
    rendered = spec["containers"][0]
    assert (rendered["env"][0], rendered["volumeMounts"][0], rendered["tty"]) == (
        trainer["env"][0],
        trainer["volumeMounts"][0],
        True,
    )
    assert {e["name"]: e["value"] for e in rendered["env"][1:]} == {
        "EVERSTEP_PROCESSES": "1",
        "EVERSTEP_GRACE_SECONDS": "90",
    }


def test_a_user_s_dev_shm_is_theirs() -> None:
    pod = render(
        template(
            {"volumeMounts": [{"name": "mine", "mountPath": "/dev/shm/"}]}, volumes=[{"name": "mine", "emptyDir": {}}]
        )
    )
    assert "everstep-shm" not in [volume["name"] for volume in pod["spec"]["volumes"]]
    assert mounts(container(pod, "trainer"))["/dev/shm/"] == "mine"


@pytest.mark.parametrize(
    ("resources", "medium"),
    [({}, {"medium": "Memory"}), ({"limits": {"memory": "2Gi"}}, {"medium": "Memory", "sizeLimit": str(2**30)})],
)
def test_memory_volume_is_half_of_the_limit(resources: Raw, medium: Raw) -> None:
    volumes = {volume["name"]: volume for volume in render(template({"resources": resources}))["spec"]["volumes"]}
    assert volumes["everstep-memory"]["emptyDir"] == medium
    assert volumes["everstep-storage"] == {
        "name": "everstep-storage",
        "persistentVolumeClaim": {"claimName": "checkpoints"},
    }
    assert volumes["everstep-token"]["secret"] == {"secretName": "gpt-01234567-token-k1"}


def test_the_plan_comes_by_the_downward_api() -> None:
    volumes = {volume["name"]: volume for volume in render(template())["spec"]["volumes"]}
    assert {i["path"]: i["fieldRef"]["fieldPath"] for i in volumes["everstep-pod"]["downwardAPI"]["items"]} == {
        "plan": "metadata.annotations['everstep.dev/plan']",
        "attempt": "metadata.annotations['everstep.dev/attempt']",
    }


def test_no_token_in_any_environment() -> None:
    names = {e["name"] for c in ("trainer", "everstep-sidecar") for e in container(render(template()), c)["env"]}
    assert not [name for name in names if "TOKEN" in name]


@pytest.mark.parametrize(
    ("pod", "trainer", "user", "group"),
    [
        ({}, {}, 0, None),
        ({"runAsUser": 1000, "runAsGroup": 2000}, {}, 1000, 2000),
        ({"runAsUser": 1000}, {"runAsUser": 3000, "runAsGroup": 4000}, 3000, 4000),
        ({"runAsNonRoot": True}, {}, 65532, None),
        ({}, {"runAsNonRoot": True}, 65532, None),
    ],
)
def test_ours_run_as_the_trainer_does_with_nothing_else(pod: Raw, trainer: Raw, user: int, group: int | None) -> None:
    rendered = render(template({"securityContext": trainer}, securityContext=pod))
    expected: Raw = {
        "runAsUser": user,
        "runAsNonRoot": user != 0,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if group is not None:
        expected["runAsGroup"] = group
    for name in ("everstep-sidecar", "everstep-injector"):
        assert container(rendered, name)["securityContext"] == expected
    assert rendered["spec"]["securityContext"] == pod, "fsGroup and the like are never added"


@pytest.mark.parametrize(("resources", "limited"), [({}, False), ({"limits": {"cpu": 1}}, False), (GUARANTEED, True)])
def test_the_pod_s_quality_of_service_stays(resources: Raw, limited: bool) -> None:
    given = template({"resources": resources})
    assert is_guaranteed(given.raw["spec"]) is limited
    sidecar = container(render(given), "everstep-sidecar")["resources"]
    assert sidecar["requests"] == {"cpu": "250m", "memory": "128Mi"}
    assert ("limits" in sidecar) is limited
    assert is_guaranteed(render(given)["spec"]) is limited


@pytest.mark.parametrize("resources", [{}, GUARANTEED])
@pytest.mark.parametrize("limits", [{}, {"cpu": "1"}, {"memory": "1Gi"}, {"cpu": "1", "memory": "1Gi"}])
def test_limits_that_are_asked_for_are_set_where_they_do_not_change_the_quality_of_service(
    resources: Raw, limits: Raw
) -> None:
    settings = dataclasses.replace(SETTINGS, **{f"sidecar_{name}_limit": value for name, value in limits.items()})
    given = template({"resources": resources})
    pod = render_pod(OWNER, given, settings, 7)
    for name in ("everstep-sidecar", "everstep-injector"):
        found = container(pod, name)["resources"]
        assert found.get("limits", {}) == (found["requests"] if resources else limits)
    assert is_guaranteed(pod["spec"]) is bool(resources)


OURS = [
    {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
]


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ([], OURS),
        ([{"key": "gpu", "operator": "Exists"}], OURS),
        ([{"operator": "Exists"}], []),
        ([{"operator": "Exists", "effect": "NoSchedule"}], OURS),
        (
            [
                {
                    "key": "node.kubernetes.io/unreachable",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 5,
                }
            ],
            OURS[1:],
        ),
    ],
)
def test_the_operator_decides_a_loss_unless_the_user_said_otherwise(given: list[Raw], added: list[Raw]) -> None:
    assert render(template(tolerations=given))["spec"]["tolerations"] == [*given, *added]


NOT_IN = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["host-1", "host-2"]}
A_EXISTS = {"key": "a", "operator": "Exists"}
BY_NAME = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n9"]}]}


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        (None, [{"matchExpressions": [NOT_IN]}]),
        ([], [{"matchExpressions": [NOT_IN]}]),
        (
            [{"matchExpressions": [A_EXISTS]}, BY_NAME, {"matchExpressions": None, **BY_NAME}],
            [
                {"matchExpressions": [A_EXISTS, NOT_IN]},
                {**BY_NAME, "matchExpressions": [NOT_IN]},
                {**BY_NAME, "matchExpressions": [NOT_IN]},
            ],
        ),
        ([{}, {"matchExpressions": []}], [{}, {"matchExpressions": []}]),  # they match no node, and stay so
    ],
)
def test_nodes_under_suspicion_are_kept_off_in_every_term(terms: list[Raw] | None, expected: list[Raw]) -> None:
    required = (
        {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}} if terms is not None else {}
    )
    affinity = {"podAffinity": {"x": 1}, "nodeAffinity": required}
    pod = render(template(affinity=affinity), {"n1": "host-1", "n2": "host-2"})
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"] == expected
    assert pod["spec"]["affinity"]["podAffinity"] == {"x": 1}
    assert pod["metadata"]["annotations"]["everstep.dev/avoid"] == "n1,n2"


def test_nothing_is_said_of_nodes_where_none_is_suspected() -> None:
    assert "affinity" not in render(template())["spec"]
