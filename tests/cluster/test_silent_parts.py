"""Parts that die or hang one after the other under one job, and none without a word: a launcher, a deletion, sidecars, a node just
after an attempt's go."""

from __future__ import annotations

import os
import time
from pathlib import Path

from everstep_protocol import storage
from everstep_protocol.plan import parse_plan
from kit import faults, reference
from kit.job import Job, Space
from kit.ledger import print_ledger
from kit.waiting import wait_until

STEPS = 1000
STEP_SECONDS = 0.4
STEPS_PER_SAVE = 10  # one is due every 4 s: three of them are overdue well before the kubelet restarts a hung sidecar


def test_parts_that_die_or_hang_are_told_and_gone_on_without(space: Space) -> None:
    job = space.job(
        "silent",
        command=["torchrun", "--nproc-per-node=1", "/scripts/trainer_probe.py"],
        env=reference.environment(steps=STEPS, global_batch=24) | {"STEP_SECONDS": str(STEP_SECONDS)},
        checkpoint={"interval": {"steps": STEPS_PER_SAVE}},
    )
    job.wait_training(4)
    job.wait_commit()
    kill_a_launcher(job)
    refuse_a_deletion(job)
    hang_sidecars(job)
    cut_just_after_go(job)

    last = reference.hurry(space.records, until=STEPS)
    job.wait_phase("Succeeded", hang_seconds=240)
    print_ledger(job)
    assert job.final_lineage().steps == list(range(last))


def kill_a_launcher(job: Job) -> None:
    """R32: the kubelet restarts its container at once: one crash, one attempt, all four workers."""
    pods, before = job.pod_uids(), job.attempt()
    faults.kill_launcher(job.space.cluster, job.plan()["members"][2]["uid"])
    after = job.wait_training(4, after_attempt=before, hang_seconds=120)
    job.wait_commit(above=job.newest_step())
    assert (after, job.attempt()) == (before + 1, before + 1)
    assert job.pod_uids() == pods
    assert job.history()[-1]["cause"] == "crash"
    assert job.status()["restarts"]["crash"] == 1


def refuse_a_deletion(job: Job) -> None:
    """R13: one old checkpoint that cannot be deleted keeps neither saves nor other deletions back, and is named."""
    kept = int(job.plan()["resume"]["step"])  # what the attempt began from is deleted by nobody
    old = sorted(job.wait_until("three checkpoints of its own", lambda: own_steps(job, kept)))
    stuck = job.folder / storage.step_name(old[0])
    inode = stuck.stat().st_ino
    attempt = job.attempt()
    with faults.undeletable(next(stuck.glob("*.distcp"))):
        told = job.wait_until("the deletion is told of", lambda: job.reasons().get("DeletionFails"), hang_seconds=120)
        called = {stuck.name, *names_of(job.folder, inode)}
        assert any(name in told for name in called), told
        job.wait_commit(above=max(old))
        job.wait_until("other old ones are deleted", lambda: not set(old) & job.complete_steps(), hang_seconds=120)
        assert "DeletionFails" in job.reasons()
    job.wait_until("it is deleted", lambda: not called & {path.name for path in job.folder.iterdir()}, hang_seconds=120)
    job.wait_until("nothing is told any more", lambda: "DeletionFails" not in job.reasons(), hang_seconds=60)
    assert job.attempt() == attempt


def own_steps(job: Job, kept: int) -> set[int] | None:
    """The complete steps after that which the attempt began from, once there are three."""
    steps = {step for step in job.complete_steps() if step > kept}
    return steps if len(steps) >= 3 else None


def names_of(folder: Path, inode: int) -> list[str]:
    """What a directory in this folder is called now."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.inode() == inode]


def hang_sidecars(job: Job) -> None:
    """A member's sidecar stands still, and then the coordinator's, until the kubelet has restarted them.

    Meanwhile nothing is saved, and so it is told. The trainers do not notice.
    """
    plan, attempt = job.plan(), job.attempt()
    member, coordinator = plan["members"][-1]["uid"], plan["coordinator"]["uid"]
    restarts = {uid: job.container_restarts(uid, faults.SIDECAR) for uid in (member, coordinator)}
    with faults.stopped(job.space.cluster.container_pids(member, faults.SIDECAR)):
        job.wait_until("its silence is told", lambda: "SavesOverdue" in job.reasons(), hang_seconds=180)
        with faults.stopped(job.space.cluster.container_pids(coordinator, faults.SIDECAR)):
            job.wait_until(
                "the coordinator's silence is told", lambda: "CoordinatorSilent" in job.reasons(), hang_seconds=180
            )
            for uid, before in restarts.items():
                job.wait_until(
                    "the kubelet restarts it",
                    lambda uid=uid, before=before: job.container_restarts(uid, faults.SIDECAR) > before,
                    hang_seconds=180,
                )
    # The first may be a snapshot that was waiting in memory for it.
    job.wait_commit(above=job.wait_commit(above=job.newest_step()))
    job.wait_condition("CheckpointHealthy", "True")
    assert job.attempt() == attempt


def cut_just_after_go(job: Job) -> None:
    """R25: while nothing has trained yet in an attempt, its coordinator's node is lost: found as fast as at any other time."""
    cluster = job.space.cluster
    before = job.attempt()
    attempt = job.folder / storage.ATTEMPTS / storage.attempt_name(before + 1)
    faults.kill_trainer(cluster, job.plan()["members"][1]["uid"])
    wait_until("the next attempt's go", (attempt / storage.GO).exists, hang_seconds=60, poll_seconds=0.005)
    plan = parse_plan((attempt / storage.PLAN).read_text())
    node = next(member.node for member in plan.members if member.uid == plan.coordinator.uid)
    time.sleep(0.3)  # the fault itself: so long after go
    cluster.power_off(node)
    cut_at = time.monotonic()
    fence = job.folder / storage.ATTEMPTS / storage.attempt_name(before + 2)
    wait_until("its loss is noticed", fence.exists, hang_seconds=120, poll_seconds=0.01)
    print(f"\na node cut 0.3 s after go: the next attempt was fenced {time.monotonic() - cut_at:.1f} s later")
    after = job.wait_training(3, after_attempt=before + 1, hang_seconds=120)
    print(f"and trained {time.monotonic() - cut_at:.1f} s after the cut")
    entry = job.history()[-1]
    assert (after, entry["cause"], entry["worldSize"]) == (before + 2, "node-lost", 3)
