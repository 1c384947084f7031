"""Pods that leave with notice cost nothing; trainers that die cost a restart in place, or nothing after their last step; trainers
that never work end the job."""

from __future__ import annotations

from kit import faults, reference
from kit.job import Job, Space
from kit.ledger import print_ledger
from kit.waiting import wait_until

STEPS = 1500


def test_drain_then_killed_trainer_then_a_crash_at_exit(space: Space) -> None:
    cluster = space.cluster
    job = space.job(
        "leaving",
        command=["torchrun", "--nproc-per-node=1", "/scripts/trainer_probe.py"],
        env=reference.environment(steps=STEPS, global_batch=24) | {"STEP_SECONDS": "0.15", "DIES_AT_EXIT": "1"},
        grace_seconds=20,
    )
    first = job.wait_training(4)
    job.wait_commit()

    node = list(job.member_nodes().values())[1]
    cluster.drain(node)
    drained = job.wait_training(3, after_attempt=first, hang_seconds=90)
    assert job.status()["restarts"].get("crash", 0) == 0
    entry = job.history()[-1]
    assert (entry["cause"], entry["stepsLost"]) == ("drain", 0)
    cluster.uncordon(node)
    grown = job.wait_training(4, after_attempt=drained, hang_seconds=120)

    pods = job.pod_uids()
    victim = job.plan()["members"][2]["uid"]
    faults.kill_trainer(cluster, victim)
    crashed = job.wait_training(4, after_attempt=grown, hang_seconds=90)
    assert job.pod_uids() == pods, "a crash is repaired in place"
    assert job.history()[-1]["cause"] == "crash"
    restarts = job.status()["restarts"]
    assert restarts["crash"] == 1

    last = reference.hurry(space.records, until=STEPS)
    job.wait_phase("Succeeded", hang_seconds=240)
    print_ledger(job)
    assert (space.records / f"died-at-exit-{crashed}").exists(), (
        "R31: rank 0 was killed after its last step, and had finished"
    )
    assert job.attempt() == crashed
    assert job.status()["restarts"] == restarts
    assert job.final_lineage().steps == list(range(last))


def test_import_error_ends_the_job_with_its_last_lines(space: Space) -> None:
    job = space.job("broken", command=["torchrun", "/scripts/fails_at_import.py"], workers=(2, 2))
    job.wait_phase("Failed", hang_seconds=180)
    failed = job.condition("Failed")
    assert (failed["status"], failed["reason"]) == ("True", "NoProgress")
    assert "No module named 'a_module_that_is_not_there'" in failed["message"]
    wait_until("no pod runs any more", lambda: not running(job), hang_seconds=90)
    assert [pod["status"]["phase"] for pod in job.pods()] == ["Succeeded"] * 2, "they ended by themselves, and stay"
    for pod in job.pods():
        assert "No module named 'a_module_that_is_not_there'" in space.kubectl("logs", pod["metadata"]["name"])


def running(job: Job) -> list[str]:
    return [pod["metadata"]["name"] for pod in job.pods() if pod["status"].get("phase") == "Running"]
