"""A node on which the file system of the checkpoints is not mounted: what is seen there is no verdict on any checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kit import reference
from kit.job import Job, Space


def test_a_node_without_the_mount_is_named_and_left_out_until_it_is_back(space: Space) -> None:
    """R11, R17."""
    cluster = space.cluster
    odd = cluster.nodes[-1]
    with hidden(space, odd) as show:
        job = space.job(
            "unshared",
            command=["torchrun", "--nproc-per-node=1", "/scripts/trainer_probe.py"],
            env=reference.environment(steps=100_000, global_batch=24) | {"STEP_SECONDS": "0.15"},
        )
        first = job.wait_training(3, hang_seconds=180)
        assert odd not in job.member_nodes().values()
        told = job.wait_condition("CheckpointHealthy", "False")
        assert told["reason"] == "StorageNotShared"
        assert odd in told["message"]
        assert job.name in told["message"], "the path is named"
        job.wait_commit(above=job.wait_commit())
        assert blamed(job) == []
        assert job.attempt() == first, "who does not see the storage stops nobody"
        show()
    # A container keeps the mounts that it was started with: its pod has to be made anew, and so the message says.
    space.kubectl("delete", "pod", job.pod_on(odd), "--wait=false")
    grown = job.wait_training(4, after_attempt=first, hang_seconds=180)
    assert grown == first + 1
    job.wait_condition("CheckpointHealthy", "True")
    job.wait_commit(above=job.newest_step())
    assert job.history()[-1]["cause"] == "grow"
    assert job.history()[-1]["resumedStep"] > 0
    assert blamed(job) == []


def blamed(job: Job) -> list[object]:
    """The checkpoints that were called bad."""
    found: list[object] = (job.status().get("checkpoints") or {}).get("bad") or []
    return found


@contextmanager
def hidden(space: Space, node: str) -> Iterator[object]:
    """Within it the node does not see the claim's folder. Yields what ends it early."""
    is_hidden = True
    space.cluster.hide_folder(node, space.checkpoints)

    def show() -> None:
        nonlocal is_hidden
        if is_hidden:
            is_hidden = False
            space.cluster.show_folder(node, space.checkpoints)

    try:
        yield show
    finally:
        show()
