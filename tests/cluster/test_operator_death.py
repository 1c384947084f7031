"""The operator dies between a status write and its effects, at three points of one recovery; the next one carries on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kit import faults, product, reference
from kit.job import Job, Space
from kit.waiting import wait_until


def test_killed_at_three_points_of_a_recovery(space: Space) -> None:
    cluster = space.cluster
    job = space.job(
        "orphan",
        command=["torchrun", "--nproc-per-node=1", "/scripts/trainer_probe.py"],
        env=reference.environment(steps=1200, global_batch=24) | {"STEP_SECONDS": "0.15"},
    )
    first = job.wait_training(4)
    job.wait_commit()
    product.stop_operator(cluster)
    with watched(job) as seen:
        operator = product.start_operator_dying_at(cluster, "status:Preparing")
        faults.kill_trainer(cluster, job.plan()["members"][1]["uid"])
        operator.wait(timeout=90)
        assert job.status()["attempt"]["state"] == "Preparing"
        for point, state in (("status:Planned", "Planned"), ("plan-patch", "Planned")):
            operator = product.start_operator_dying_at(cluster, point)
            operator.wait(timeout=90)
            assert job.status()["attempt"]["state"] == state
        assert job.attempt() == first + 1, "the number that was begun is gone on with (R3)"
        product.start_operator(cluster)
        job.wait_training(4, after_attempt=first, hang_seconds=120)
        last = reference.hurry(space.records, until=1200)
        job.wait_phase("Succeeded", hang_seconds=240)
    assert max(seen.num_pods) <= 4
    assert seen.attempts == sorted(seen.attempts)
    assert job.final_lineage().steps == list(range(last))


class Seen:
    """What was seen of a job over a time."""

    def __init__(self) -> None:
        self.num_pods: list[int] = [0]
        self.attempts: list[int] = []


@contextmanager
def watched(job: Job) -> Iterator[Seen]:
    """Note the number of live pods and the attempt, over and over."""
    seen, done = Seen(), threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            seen.num_pods.append(sum("deletionTimestamp" not in pod["metadata"] for pod in job.pods()))
            seen.attempts.append(job.attempt())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def test_deleted_while_recovering_without_operator(space: Space) -> None:
    """Nothing of the job is left but its checkpoints."""
    cluster = space.cluster
    job = space.job(
        "deleted",
        command=["torchrun", "--nproc-per-node=1", "/scripts/trainer_probe.py"],
        env=reference.environment(steps=100_000, global_batch=24) | {"STEP_SECONDS": "0.1"},
        workers=(2, 3),
    )
    job.wait_training(3)
    job.wait_commit()
    product.stop_operator(cluster)
    faults.kill_trainer(cluster, job.plan()["members"][1]["uid"])
    space.kubectl("delete", "trainingjob", job.name, "--timeout=30s")
    wait_until(
        "its pods and secrets are gone", lambda: not left_overs(space), hang_seconds=120, seen=lambda: left_overs(space)
    )
    steps = [path.name for path in job.folder.iterdir() if path.name.startswith("step_") and ".tmp" not in path.name]
    assert steps, "checkpoints stay"


def left_overs(space: Space) -> str:
    return space.kubectl("get", "pods,secrets,trainingjobs", "-o", "name").strip()
