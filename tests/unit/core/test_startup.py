"""CL5: a worker that does not start: told in the kubelet's words, tried elsewhere, or the end of the job, by whose fault it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everstep_operator.core import pods, startup, workers
from everstep_operator.core.decide import decide
from everstep_operator.core.model import Hindrance, Observed, PodView, WriteStatus
from unit.core.jobs import SETTINGS, observed, pending, pod, preparing_status, rows

RUNC = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
NO_PROGRAM = RUNC + 'unable to start container process: exec: "python3": executable file not found in $PATH: unknown'
NO_FILE = RUNC + 'unable to start container process: exec: "/opt/x": stat /opt/x: no such file or directory: unknown'
NO_MOUNT = RUNC + "unable to start container process: error mounting: no such file or directory: unknown"
REFUSED = '{"attempt":0,"result":"refused","exitCode":2,"lastLines":"python3.9 is too old: 3.10 is needed"}'

FAULTS: dict[str, tuple[Hindrance, startup.Fault]] = {
    "no python3 in the image": (Hindrance("trainer", "StartError", NO_PROGRAM), "never"),
    "while the kubelet is at it": (Hindrance("trainer", "RunContainerError", NO_PROGRAM), "never"),
    "docker's word": (Hindrance("trainer", "ContainerCannotRun", NO_FILE), "never"),
    "a user's init container without its program": (Hindrance("fetch", "StartError", NO_PROGRAM), "never"),
    "no name of an image": (Hindrance("trainer", "InvalidImageName", "couldn't parse"), "never"),
    "the launcher ends before any attempt": (Hindrance("trainer", "Error", "exit code 1"), "never"),
    "a mount of this node": (Hindrance("trainer", "StartError", NO_MOUNT), "node"),
    "CreateContainerError": (Hindrance("trainer", "CreateContainerError", "context deadline exceeded"), "node"),
    "an image that must be there": (Hindrance("trainer", "ErrImageNeverPull", "is not present"), "node"),
    "lost by the kubelet": (Hindrance("trainer", "ContainerStatusUnknown", ""), "node"),
    "our sidecar": (Hindrance("everstep-sidecar", "Error", "No space left on device"), "node"),
    "our injector": (Hindrance("everstep-injector", "Error", "exit code 1"), "node"),
    "a pull that fails": (Hindrance("trainer", "ErrImagePull", "not found"), "later"),
    "and waits": (Hindrance("trainer", "ImagePullBackOff", "Back-off pulling image"), "later"),
    "a key that is missing": (Hindrance("trainer", "CreateContainerConfigError", 'secret "s" not found'), "later"),
    "a user's init container that fails": (Hindrance("fetch", "Error", "exit code 1"), "later"),
    "another container of the user": (Hindrance("logger", "OOMKilled", "exit code 137"), "later"),
    "a word that we do not know": (Hindrance("trainer", "SomethingNew", "?"), "later"),
}


def hindered(worker: int, found: Hindrance, **changes: Any) -> PodView:
    blank = {
        "node": f"n{worker}",
        "hindrance": found,
        "trainer": "trainer",
        "plan_attempt": 0,
        "unstarted_seconds": 1.0,
    }
    return pending(worker, **{**blank, **changes})


def waiting(*there: PodView, **changes: Any) -> Observed:
    """A job whose first attempt is being prepared: four workers are wanted."""
    status = preparing_status("start", 1, workers=rows(0, 1, 2, 3, state="Wanted"), next_worker_id=4, last_attempt=0)
    fresh = {"status": status, "pods": there, "sidecar": None, "go_age_seconds": 0.0}
    return observed(**{**fresh, **changes})


@pytest.mark.parametrize(("found", "fault"), FAULTS.values(), ids=FAULTS)
def test_whose_fault_it_is_and_that_it_is_told_at_once(found: Hindrance, fault: startup.Fault) -> None:
    bad = hindered(0, found)
    assert startup.fault(found, bad) == fault
    ready = next(c for c in decide(waiting(bad), SETTINGS).conditions if c.type == "Ready")
    assert f"its container {found.container} cannot start on node n0: {found.reason}" in ready.message
    assert found.message in ready.message


def test_the_launcher_s_own_sentence_is_told() -> None:
    found = Hindrance("trainer", "Error", REFUSED, 1)
    bad = hindered(0, found, trainer_terminated=True, termination_message=REFUSED)
    assert startup.fault(found, bad) == "never"
    assert "Error: python3.9 is too old: 3.10 is needed; suspend the job, correct its template" in startup.why(bad)


@pytest.mark.parametrize(("found", "fault"), FAULTS.values(), ids=FAULTS)
def test_the_job_fails_when_no_worker_can_ever_start_and_only_then(found: Hindrance, fault: startup.Fault) -> None:
    tried = [hindered(i, replace(found, restarts=3), unstarted_seconds=1000.0) for i in range(2)]
    decision = decide(waiting(*tried, pending(2, unschedulable="no room")), SETTINGS)
    assert (decision.phase == "Failed") is (fault == "never")
    if fault == "never":
        assert decision.reason == "WorkerCannotStart"
        assert decision.message.startswith("no worker can start: worker 0: its container")
        assert found.message in decision.message


def test_it_fails_neither_early_nor_while_one_can_start() -> None:
    found = FAULTS["no python3 in the image"][0]
    early = [hindered(i, replace(found, restarts=2), unstarted_seconds=1000.0) for i in range(2)]
    assert startup.verdict(waiting(*early), SETTINGS) is None
    late = [hindered(i, replace(found, restarts=3)) for i in range(2)]
    assert startup.verdict(waiting(*late), SETTINGS) is not None
    assert startup.verdict(waiting(*late, pod(2)), SETTINGS) is None, "it works on another node"
    assert startup.verdict(waiting(*late, hindered(2, FAULTS["a pull that fails"][0])), SETTINGS) is None
    assert startup.verdict(waiting(), SETTINGS) is None
    unparsed = FAULTS["no name of an image"][0]  # the kubelet does not try it again
    assert startup.verdict(waiting(hindered(0, unparsed, unstarted_seconds=59.0)), SETTINGS) is None
    assert startup.verdict(waiting(hindered(0, unparsed, unstarted_seconds=60.0)), SETTINGS) is not None


def test_a_trainer_that_ended_in_an_attempt_is_told_by_the_attempt() -> None:
    word = '{"attempt":3,"result":"failed","exitCode":1,"lastLines":"boom"}'
    crashed = hindered(0, Hindrance("trainer", "Error", word, 9), termination_message=word, trainer_terminated=True)
    assert startup.hindrance(crashed) is None
    assert startup.is_restarting(crashed)
    killed = hindered(0, Hindrance("trainer", "OOMKilled", "", 9), plan_attempt=3, trainer_terminated=True)
    assert startup.fault(killed.hindrance, killed) == "later"  # type: ignore[arg-type]
    assert startup.is_restarting(killed)


@pytest.mark.parametrize(("found", "fault"), FAULTS.values(), ids=FAULTS)
def test_what_one_node_cannot_do_is_tried_on_another(found: Hindrance, fault: startup.Fault) -> None:
    bad = hindered(3, found, unstarted_seconds=SETTINGS.start_on_node)
    seen = waiting(pod(0), pod(1), pod(2), bad)
    after = workers.settle(seen, SETTINGS, seen.status)
    assert ([row.state for row in after.workers] == ["Wanted", "Wanted", "Wanted", "Lost", "Wanted"]) is (
        fault == "node"
    )
    if fault == "node":
        moved = replace(seen, status=after)
        assert [(order.worker_id, order.avoid) for order in workers.creations(moved, SETTINGS)] == [(4, ("n3",))]
    soon = replace(seen, pods=(*seen.pods[:3], replace(bad, unstarted_seconds=SETTINGS.start_on_node - 1)))
    assert workers.settle(soon, SETTINGS, seen.status) == seen.status


@pytest.mark.parametrize(
    "words", ["UnexpectedAdmissionError: no GPUs", "OutOfcpu: Node didn't have enough resource", "NodeAffinity: x"]
)
def test_a_pod_that_its_node_did_not_admit_has_a_successor_elsewhere(words: str) -> None:
    refused = pod(3, phase="Failed", ended_as=words, trainer_terminated=True, age_seconds=SETTINGS.replace_failed)
    seen = waiting(pod(0), pod(1), pod(2), refused)
    after = workers.settle(seen, SETTINGS, seen.status)
    assert after.workers[3].state == "Lost"
    assert pods.avoided_nodes(replace(seen, status=after)) == ("n3",)
    assert f"its pod ended (Failed: {words})" in workers.why_unusable(seen, SETTINGS, 3)


def test_the_end_is_written_with_the_sentence() -> None:
    late = hindered(0, replace(FAULTS["no python3 in the image"][0], restarts=3))
    (write,) = decide(waiting(late), SETTINGS).actions
    assert isinstance(write, WriteStatus)
    assert (write.status.result, write.status.result_reason) == ("Failed", "WorkerCannotStart")
    assert 'exec: "python3": executable file not found' in write.status.result_message
