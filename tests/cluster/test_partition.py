"""A node is cut off and lives on: a zombie that still reaches the storage."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everstep_protocol import storage
from kit import faults, reference
from kit.job import Job, Space
from kit.waiting import wait_until

INTERVAL_STEPS = 20  # of the jobs that the kit makes


def test_zombie_commits_nothing_and_stops_when_healed(space: Space) -> None:
    """R5, R14: the old coordinator's sidecar is held after its look and before its rename, while the job recovers."""
    cluster = space.cluster
    job = space.job(
        "zombie",
        command=["torchrun", "--nproc-per-node=1", "/scripts/trainer_probe.py"],
        env=reference.environment(steps=1200, global_batch=24) | {"STEP_SECONDS": "0.15"},
    )
    first = job.wait_training(4)
    newest = job.wait_commit()
    coordinator = job.plan()["coordinator"]
    node = next(iter(job.member_nodes().values()))
    sidecar = cluster.container_pids(coordinator["uid"], faults.SIDECAR)

    held_step = (newest // INTERVAL_STEPS + 2) * INTERVAL_STEPS  # the next but one: strace takes a moment
    with renames_held(sidecar[0], job, held_step, attempt=first) as trace:
        held = job.folder / storage.temporary_name(held_step, first)
        wait_until("everything but the rename is done", (held / storage.METADATA).exists, hang_seconds=60)
        with faults.stopped(sidecar):  # no longer than the kubelet lets it stand still
            before = max(step for step in job.complete_steps() if step < held_step)
            cluster.partition(node)
            fence = job.folder / storage.ATTEMPTS / storage.attempt_name(first + 1) / storage.FENCE
            wait_until("the next attempt's fence", fence.exists, hang_seconds=60)
            wait_until("it takes the directory away", lambda: not held.exists(), hang_seconds=60)
        # The zombie's sidecar runs again: its rename comes now, its trainers hang in a collective or go on.
        wait_until("the zombie tried to rename", lambda: " = " in trace.read_text(), hang_seconds=60)
        assert "ENOENT" in trace.read_text(), "R5: the fence has taken the directory away"
        second = job.wait_training(3, after_attempt=first, hang_seconds=90)
        committed = job.wait_commit(above=before)
    late = [verdict for verdict in job.complete_verdicts() if verdict.attempt == first and verdict.step > before]
    assert late == [], "the zombie committed after the fence"
    assert committed in job.complete_steps() or committed < job.newest_step()
    zombie_trainers = faults.trainer_pids(cluster, coordinator["uid"])

    cluster.heal(node)
    wait_until(
        "the zombie's trainers are gone",
        lambda: not set(zombie_trainers) & set(faults.trainer_pids(cluster, coordinator["uid"])),
        hang_seconds=120,
    )
    job.wait_training(4, after_attempt=second, hang_seconds=180)
    last = reference.hurry(space.records, until=1200)
    job.wait_phase("Succeeded", hang_seconds=180)
    assert job.final_lineage().steps == list(range(last))
    resumed = {entry["number"]: entry["resumedStep"] for entry in job.history()}
    assert resumed[second] == before, "what the zombie had not committed before the fence is never resumed from"


@contextmanager
def renames_held(pid: int, job: Job, step: int, *, attempt: int) -> Iterator[Path]:
    """Hold the process at the entry of the rename that would commit this step: the instruction after R14's look.

    Yields a file in which the call's result stands once it was made.
    """
    path = f"/everstep/storage/{job.name}/{storage.temporary_name(step, attempt)}"
    inject = ("-e", "trace=rename,renameat,renameat2", "-e", "inject=rename,renameat,renameat2:delay_enter=20s")
    trace = job.space.records / "trace"
    trace.touch()
    tracer = subprocess.Popen(["strace", "-f", "-p", str(pid), "-P", path, *inject, "-o", str(trace)])
    try:
        yield trace
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait(timeout=60)
