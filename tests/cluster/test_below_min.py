"""A node that crashes with its cable in; then fewer nodes than `min`: the job waits, says what for, and goes on when one is back."""

from __future__ import annotations

from kit import reference
from kit.job import Space


def test_crashed_node_then_below_min(space: Space) -> None:
    cluster = space.cluster
    job = space.job(
        "few",
        command=["torchrun", "--nproc-per-node=1", "/scripts/trainer_probe.py"],
        env=reference.environment(steps=1000, global_batch=24) | {"STEP_SECONDS": "0.1"},
        workers=(3, 4),
    )
    first = job.wait_training(4)
    committed = job.wait_commit()
    crashed, dark = list(job.member_nodes().values())[2:]
    cluster.crash(crashed)  # its peers see their connections reset: a crash to them, but no trainer's
    shrunk = job.wait_training(3, after_attempt=first, hang_seconds=120)
    assert crashed not in job.member_nodes().values()
    cluster.power_off(dark)
    job.wait_phase("Waiting", hang_seconds=120)
    ready = job.condition("Ready")
    assert ready["status"] == "False"
    assert ready["reason"] == "NotEnoughWorkers"
    assert "3" in ready["message"]
    cluster.boot(dark)
    job.wait_training(3, after_attempt=shrunk, hang_seconds=180)
    assert job.history()[-1]["resumedStep"] >= committed
    assert job.status()["restarts"].get("crash", 0) == 0
    last = reference.hurry(space.records, until=1000)
    job.wait_phase("Succeeded", hang_seconds=240)
    assert job.final_lineage().steps == list(range(last))
