"""Pods and nodes of the API as the core sees them, ages by our own clock."""

from __future__ import annotations

import math
from typing import Any

import pytest
from everstep_operator.cluster.book import PodBook, Wakes
from everstep_operator.cluster.records import NodeRecord, trim_node, trim_pod
from everstep_operator.core.model import Hindrance

Raw = dict[str, Any]

RUNNING: Raw = {"state": {"running": {}}}
STARTING: Raw = {"state": {"waiting": {"reason": "PodInitializing"}}}


def pod(trainer: Raw = RUNNING, sidecar: Raw = RUNNING, *, meta: Raw | None = None, **status: Any) -> Raw:
    return {
        "metadata": {
            "name": "gpt-w3",
            "namespace": "team",
            "uid": "pod-3",
            "resourceVersion": "17",
            "labels": {"everstep.dev/worker": "3", "everstep.dev/template-hash": "h"},
            "annotations": {"everstep.dev/attempt": "5", "everstep.dev/avoid": "n1,n2"},
            "ownerReferences": [{"kind": "TrainingJob", "uid": "job", "controller": True}],
            **(meta or {}),
        },
        "spec": {
            "nodeName": "n3",
            "initContainers": [{"name": "everstep-sidecar", "image": "everstep:1"}],
            "containers": [{"name": "main", "command": ["python3", "/everstep/bin/everstep"]}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.3",
            "initContainerStatuses": [{"name": "everstep-sidecar", **sidecar}],
            "containerStatuses": [{"name": "main", "restartCount": 2, **trainer}],
            **status,
        },
    }


def test_a_running_worker() -> None:
    record = trim_pod(pod(), None, 100.0)
    view = record.view
    assert (record.job_uid, view.worker_id, view.ip, view.node, view.plan_attempt) == ("job", 3, "10.0.0.3", "n3", 5)
    assert view.image == "everstep:1"
    assert (view.avoid, view.template_hash, view.trainer_restarts) == (("n1", "n2"), "h", 2)
    assert (view.sidecar_running, view.trainer_terminated, view.hindrance, view.unschedulable) == (
        True,
        False,
        None,
        "",
    )


ENDED: Raw = {"state": {"terminated": {"exitCode": 1, "message": "m"}}}
AGAIN: Raw = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"message": "m"}}}
BACK: Raw = {"state": {"running": {}}, "lastState": {"terminated": {"message": "m"}}}


@pytest.mark.parametrize(
    ("trainer", "terminated", "message"),
    [(RUNNING, False, ""), (ENDED, True, "m"), (AGAIN, True, "m"), (BACK, False, "m"), (STARTING, False, "")],
)
def test_r25_a_terminated_launcher_container_is_conclusive(trainer: Raw, terminated: bool, message: str) -> None:
    view = trim_pod(pod(trainer), None, 0.0).view
    assert (view.trainer_terminated, view.termination_message) == (terminated, message)


def test_r25_a_terminal_phase_is_conclusive() -> None:
    assert trim_pod(pod(phase="Failed", containerStatuses=[]), None, 0.0).view.trainer_terminated


@pytest.mark.parametrize(
    ("trainer", "sidecar", "running"),
    [(RUNNING, RUNNING, True), (AGAIN, RUNNING, True), (STARTING, RUNNING, False), (RUNNING, STARTING, False)],
    ids=["both", "trainer restarts", "trainer image is pulled", "sidecar restarts"],
)
def test_a_worker_can_be_asked_once_its_trainer_container_was_started(
    trainer: Raw, sidecar: Raw, running: bool
) -> None:
    assert trim_pod(pod(trainer, sidecar), None, 0.0).view.sidecar_running is running


def back_off(reason: str, message: str, code: int = 128, restarts: int = 2) -> Raw:
    """As the kubelet says it of a container that it starts again and again."""
    end = {"exitCode": code, "reason": reason, "message": message}
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 20s restarting failed container=main"}
    return {"state": {"waiting": waiting}, "lastState": {"terminated": end}, "restartCount": restarts}


HINDRANCES: dict[str, tuple[Raw, Raw, Hindrance | None]] = {
    "an image": (
        {"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}},
        RUNNING,
        Hindrance("main", "ErrImagePull", "no such image", 2),
    ),
    "a start that fails": (
        {"state": {"waiting": {"reason": "RunContainerError", "message": "runc create failed"}}},
        RUNNING,
        Hindrance("main", "RunContainerError", "runc create failed", 2),
    ),
    "and is tried again": (back_off("StartError", "exec"), RUNNING, Hindrance("main", "StartError", "exec", 2)),
    "a program that ends": (back_off("Error", "", 1, 5), RUNNING, Hindrance("main", "Error", "exit code 1", 5)),
    "a moment before it is started again": (
        {"state": {"terminated": {"exitCode": 1, "reason": "Error", "message": "boom\n"}}},
        RUNNING,
        Hindrance("main", "Error", "boom", 2),
    ),
    "an init container goes first": (
        STARTING,
        back_off("Error", "No space left on device", 1),
        Hindrance("everstep-sidecar", "Error", "No space left on device", 2),
    ),
    "nothing but its back-off": (
        STARTING,
        {"state": {"waiting": {"reason": "CrashLoopBackOff"}}},
        Hindrance("everstep-sidecar", "CrashLoopBackOff", "", 0),
    ),
    "it starts": (STARTING, RUNNING, None),
    "it was started again": (BACK, RUNNING, None),
    "it ended well": ({"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}, RUNNING, None),
}


@pytest.mark.parametrize(("trainer", "sidecar", "hindrance"), HINDRANCES.values(), ids=HINDRANCES)
def test_why_a_container_does_not_come_up(trainer: Raw, sidecar: Raw, hindrance: Hindrance | None) -> None:
    assert trim_pod(pod(trainer, sidecar), None, 0.0).view.hindrance == hindrance


def test_how_long_a_node_has_failed_to_start_it() -> None:
    def age(now: float, trainer: Raw, before: Any, **changes: Any) -> tuple[Any, float]:
        record = trim_pod(pod(trainer, **changes), before, now)
        book = PodBook(Wakes())
        book.take(None, record)
        return record, book.pods_of("job", now)[0].unstarted_seconds

    record, seconds = age(10.0, STARTING, None)
    assert seconds == 0.0
    record, seconds = age(15.0, back_off("StartError", "x"), record)
    assert seconds == 5.0, "since it was bound"
    record, seconds = age(20.0, RUNNING, record)
    assert seconds == 0.0
    record, seconds = age(30.0, back_off("StartError", "x"), record)
    assert seconds == 0.0, "it begins anew"
    assert age(33.0, back_off("StartError", "x"), record)[1] == 3.0


def test_a_container_s_last_end_has_an_age_by_our_own_clock() -> None:
    first = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:00Z"}
    record = trim_pod(pod({"state": {"running": {}}, "lastState": {"terminated": first}}), None, 10.0)
    assert (record.view.trainer, record.view.trainer_end, record.end_seen) == (
        "main",
        "OOMKilled",
        (first["finishedAt"], 10.0),
    )
    record = trim_pod(pod({"state": {"running": {}}, "lastState": {"terminated": first}}), record, 20.0)
    assert record.end_seen == (first["finishedAt"], 10.0)
    again = {**first, "finishedAt": "2026-01-01T00:00:09Z"}
    record = trim_pod(pod({"state": {"terminated": again}}), record, 30.0)
    assert record.end_seen == (again["finishedAt"], 30.0)


def test_a_pod_that_ended_says_why() -> None:
    view = trim_pod(pod(phase="Failed", reason="Evicted", message="The node was low on resource"), None, 0.0).view
    assert view.ended_as == "Evicted: The node was low on resource"
    assert trim_pod(pod(reason="NodeLost", message="x"), None, 0.0).view.ended_as == ""


def test_conditions() -> None:
    conditions = [
        {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"},
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes"},
    ]
    view = trim_pod(pod(conditions=conditions), None, 0.0).view
    assert (view.disruption, view.unschedulable) == ("PreemptionByScheduler", "0/4 nodes")


def test_r27_ages_are_our_own_clock_s_since_we_first_saw_it() -> None:
    book = PodBook(Wakes())
    first = trim_pod(pod(), None, 100.0)
    leaving = trim_pod(
        pod(meta={"deletionTimestamp": "1999-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}), first, 110.0
    )
    still = trim_pod(pod(meta={"deletionTimestamp": "2999-01-01T00:00:00Z"}), leaving, 115.0)
    book.take(None, still)
    (view,) = book.pods_of("job", 120.0)
    assert (view.age_seconds, view.deletion_age_seconds, view.sidecar_age_seconds) == (20.0, 10.0, 20.0)
    assert leaving.view.deletion_grace_seconds == 30.0


@pytest.mark.parametrize("text", ["", "five", "-5", "5.0", "1e3", "\u0665", "\u00b2", " 5", "9" * 5000])
def test_a_number_that_somebody_wrote_and_is_none_counts_as_none(text: str) -> None:
    meta = {"annotations": {"everstep.dev/attempt": text}, "labels": {"everstep.dev/worker": text}}
    view = trim_pod(pod(meta=meta), None, 0.0).view
    assert (view.plan_attempt, view.worker_id) == (0, -1)


def test_b48_pods_belong_to_their_owner_by_uid_and_wake_only_its_actor() -> None:
    woken: list[str] = []
    wakes = Wakes()
    wakes.register("job", lambda: woken.append("job"))
    wakes.register("other", lambda: woken.append("other"))
    book = PodBook(wakes)
    record = trim_pod(pod(), None, 0.0)
    book.take(None, record)
    assert (len(book.pods_of("job", 0.0)), book.pods_of("other", 0.0)) == (1, ())
    book.take(record, None)
    assert (book.pods_of("job", 0.0), woken) == ((), ["job", "job"])


def test_r22_an_ip_on_another_living_pod_proves_that_the_first_is_gone() -> None:
    book = PodBook(Wakes())
    book.take(None, trim_pod(pod(), None, 0.0))
    assert not book.is_ip_taken("10.0.0.3", "pod-3")
    assert book.is_ip_taken("10.0.0.3", "pod-of-before")
    ended = trim_pod(pod(phase="Succeeded", meta={"uid": "old"}, podIP="10.0.0.9"), None, 0.0)
    book.take(None, ended)
    assert not book.is_ip_taken("10.0.0.9", "pod-3"), "an ended pod has given its IP back"


def node(ready: str = "True", taints: tuple[str, ...] = (), **spec: Any) -> Raw:
    return {
        "metadata": {"uid": "u", "name": "n1"},
        "spec": {"taints": [{"key": key} for key in taints], **spec},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (node(), (True, False, False, False)),
        (node("False"), (False, False, False, False)),
        (node("Unknown"), (False, True, False, False)),
        (node(taints=("node.kubernetes.io/unreachable",)), (True, True, False, False)),
        (node(taints=("node.kubernetes.io/out-of-service",)), (True, False, False, True)),
        (node(unschedulable=True), (True, False, True, False)),
    ],
)
def test_nodes(raw: Raw, expected: tuple[bool, ...]) -> None:
    record = trim_node(raw, None, 0.0)
    assert (record.ready, record.unreachable, record.unschedulable, record.out_of_service) == expected


def test_a_node_s_readiness_begins_anew_when_it_returns() -> None:
    record: NodeRecord = trim_node(node(), None, 10.0)
    record = trim_node(node(), record, 20.0)
    assert record.ready_since == -math.inf, "Ready when first seen: it did not return just now"
    record = trim_node(node("Unknown"), record, 30.0)
    assert trim_node(node(), record, 40.0).ready_since == 40.0
