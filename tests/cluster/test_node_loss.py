"""A node dies under a running job, first a member's, then the coordinator's; each time it comes back."""

from __future__ import annotations

import pytest
from kit import reference
from kit.job import Job, Space
from kit.ledger import print_ledger

STEPS = 1500
GLOBAL_BATCH = 24


def test_lost_nodes_cost_seconds_and_no_sample(space: Space) -> None:
    job = space.job(
        "loss",
        command=["torchrun", "--nproc-per-node=1", "/scripts/trainer_probe.py"],
        env=reference.environment(steps=STEPS, global_batch=GLOBAL_BATCH) | {"STEP_SECONDS": "0.15"},
    )
    first = job.wait_training(4)
    job.wait_commit()

    after_member = lose_and_regain(job, which=-1, after_attempt=first)
    lose_and_regain(job, which=0, after_attempt=after_member)

    last = reference.hurry(space.records, until=STEPS)
    job.wait_phase("Succeeded", hang_seconds=240)
    print_ledger(job)

    causes = [entry["cause"] for entry in job.history()]
    assert causes == ["start", "node-lost", "grow", "node-lost", "grow"]
    assert [entry["worldSize"] for entry in job.history()] == [4, 3, 4, 3, 4]
    assert job.status()["restarts"].get("crash", 0) == 0
    assert_every_step_and_sample_once(job, last)
    assert max(job.complete_steps()) == last


def lose_and_regain(job: Job, *, which: int, after_attempt: int) -> int:
    """Power off the node of the member at this place of the plan, see 3 train, switch it on, see 4; the last attempt's number."""
    cluster = job.space.cluster
    node = list(job.member_nodes().values())[which]
    cluster.power_off(node)
    shrunk = job.wait_training(3, after_attempt=after_attempt, hang_seconds=90)
    assert node not in job.member_nodes().values()
    job.wait_commit(above=job.newest_step())
    cluster.boot(node)
    return job.wait_training(4, after_attempt=shrunk, hang_seconds=180)


def assert_every_step_and_sample_once(job: Job, steps: int) -> None:
    """The final lineage has each step once, each sample once an epoch, and ends where an undisturbed run ends."""
    lineage = job.final_lineage()
    assert lineage.steps == list(range(steps))
    assert reference.each_sample_once_an_epoch(lineage.samples)
    undisturbed = reference.losses(steps=steps, global_batch=GLOBAL_BATCH)
    assert lineage.losses[steps - 1] == pytest.approx(undisturbed[steps - 1], rel=1e-3)
