"""Saves that fail, on one rank only or again and again: told, counted and forgotten by all ranks together, and tried again at the end."""

import collections
import itertools
import shutil
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import cluster_kit as kit
import everstep
import numpy
import torch
import torch.distributed as dist
from checks_local import steps_in
from deep import differences
from everstep import dcp_files
from everstep.places import MemoryPlace
from everstep.state import tensors
from everstep_protocol import codec, names, records
from ranks import run_ranks, try_ranks


def fail_at(owner: Any, name: str, calls: Collection[int], error: Exception) -> None:
    """Make these calls of a function, counted from 1, raise an error."""
    right, number = getattr(owner, name), itertools.count(1)

    def sometimes(*args: Any, **more: Any) -> Any:
        if next(number) in calls:
            raise error
        return right(*args, **more)

    setattr(owner, name, sometimes)


def assert_one_failed_and_the_next_is_there(pods: list[Path]) -> None:
    """All ranks have counted the failed save, and all hold the one after step 2."""
    for pod in pods:
        record = kit.progress_page(pod).read()
        assert record is not None
        assert record.num_failed_saves == 1
        assert kit.snapshots(pod) == [2]


def check_a_copy_that_fails_on_one_rank_is_a_failed_save_on_all(folder: Path) -> None:
    """B12: no rank ever writes tensors that are in use."""
    pods = kit.make_pods(folder, 2, steps=1)

    def job() -> None:
        pod = pods[dist.get_rank()]
        kit.enter_pod(pod)
        if dist.get_rank() == 1:
            fail_at(tensors, "frozen", {1}, MemoryError("none is left"))
        for step in everstep.Checkpointer({"tensor": torch.zeros(2)}).steps(until=2):
            if step == 1:
                kit.wait_for(lambda: threading.active_count() == 1, "a save, if there is one")
                assert kit.snapshots(pod) == []

    run_ranks(2, job)
    assert_one_failed_and_the_next_is_there(pods)


def check_a_save_that_one_rank_could_not_finish_is_taken_back_by_all(folder: Path) -> None:
    """B14: where it was whole, too; and all count it."""
    pods = kit.make_pods(folder, 2, steps=1)

    def job() -> None:
        pod = pods[dist.get_rank()]
        kit.enter_pod(pod)
        if dist.get_rank() == 1:
            fail_at(MemoryPlace, "publish", {1}, OSError("the volume is gone"))
        for step in everstep.Checkpointer({"progress": {}}).steps(until=2):
            kit.wait_for(lambda: threading.active_count() == 1, "the save before to end, one way or the other")
            if step == 1:
                assert kit.snapshots(pod) == ([1] if dist.get_rank() == 0 else [])
                dist.barrier()

    run_ranks(2, job)
    assert_one_failed_and_the_next_is_there(pods)


def changeable() -> dict[str, Any]:
    """Every kind of thing that can change where it is."""
    return {
        "dict": {1: 0},
        "list": [0],
        "set": {0},
        "bytes": bytearray(b"0"),
        "deque": collections.deque([0]),
        "counter": collections.Counter({1: 0}),
        "ordered": collections.OrderedDict({1: 0}),
        "default": collections.defaultdict(int, {1: 0}),
        "inside": (0, [0], {1: {0}}),
        "tensor": torch.zeros(2),
        "array": numpy.zeros(2),
        "reversed array": numpy.zeros(2)[::-1],
        "array of texts": numpy.array(["0"]),
    }


def change(value: Any) -> None:
    """Let a value, and all in it, become another one."""
    if isinstance(value, dict):
        value[1] = 7
    elif isinstance(value, set):
        value.add(7)
    elif isinstance(value, (torch.Tensor, numpy.ndarray, list, collections.deque, bytearray)):
        value[0] = 7
    else:
        value[1][0] = 7
        value[2][1].add(7)


def check_what_changes_while_a_save_is_written_is_saved_as_it_was(folder: Path) -> None:
    """B12: whatever it is that changes."""

    def train() -> None:
        write, changed = dcp_files.Writer.write_data, threading.Event()

        def write_data(*args: Any) -> Any:
            assert changed.wait(kit.HANG_SECONDS)
            return write(*args)

        dcp_files.Writer.write_data = write_data  # type: ignore[method-assign]
        progress = changeable()
        for step in everstep.Checkpointer({"progress": progress}, directory=folder, every=1).steps(until=2):
            if step == 1:
                for value in progress.values():
                    change(value)
                changed.set()
                break

    def resume() -> list[str]:
        progress: dict[str, Any] = {}
        list(everstep.Checkpointer({"progress": progress}, directory=folder).steps(until=1))
        return differences(changeable(), progress)

    run_ranks(1, train)
    assert steps_in(folder) == [1]
    assert run_ranks(1, resume) == [[]]


def check_the_last_save_is_tried_again_before_its_failure_is_raised_on_all_ranks(folder: Path) -> None:
    def train(where: Path, num_failures: int) -> list[int]:
        if dist.get_rank() == 1:
            fail_at(dcp_files.Writer, "write_data", range(1, num_failures + 1), OSError("the disk is gone"))
        return list(everstep.Checkpointer({"progress": {}}, directory=where).steps(until=2))

    for num_failures in (1, 2):
        where = folder / f"{num_failures}"
        assert run_ranks(2, train, where, num_failures) == [[0, 1]] * 2
        assert steps_in(where) == [2]
    for outcome in try_ranks(2, train, folder / "3", 3):
        assert "SaveError: the state after step 2 could not be saved, tried 3 times: rank 1" in outcome, outcome
        assert "the disk is gone" in outcome
    assert steps_in(folder / "3") == []


def check_why_a_save_failed_in_the_background_is_told_to_the_pod_until_one_is_good(folder: Path) -> None:
    """TR1, TR4: ranks that differ are refused for what they are, and not taken for a disk that fails."""
    pods = kit.make_pods(folder, 2, steps=1)

    def job() -> None:
        pod = pods[dist.get_rank()]
        kit.enter_pod(pod)
        if dist.get_rank() == 1:
            fail_at(dcp_files.Writer, "write_data", {1}, OSError("the disk is gone"))
        progress: dict[str, Any] = {"loss": 0}
        for step in everstep.Checkpointer({"progress": progress}).steps(until=5):
            kit.wait_for(lambda: threading.active_count() == 1, "the save before to end, one way or the other")
            told = unsaved(pod)
            if step in (0, 1, 4):  # after step 1 nobody has looked yet
                assert told is None
            if step == 2:
                assert told is not None
                assert (told.step, told.reason) == (1, "StateRefused")
                assert "progress.loss: it is 0 on rank 0 and 1 on rank 1" in told.message
            if step == 3:
                assert told is not None
                assert (told.step, told.reason) == (2, "SaveFailed")
                assert "the disk is gone" in told.message
            if step == 4:
                for done in kit.snapshots(pod):
                    shutil.rmtree(kit.snapshot(pod, done))
            progress["loss"] = dist.get_rank() if step == 0 else 0

    run_ranks(2, job)
    for pod in pods:
        record = kit.progress_page(pod).read()
        assert record is not None
        assert record.num_failed_saves == 2


def unsaved(pod: Path) -> records.Unsaved | None:
    """What a rank tells its sidecar of a save that failed."""
    path = pod / f"{names.UNSAVED_PREFIX}0"
    return codec.loads(records.Unsaved, path.read_text()) if path.exists() else None


def check_what_one_rank_cannot_save_at_the_end_is_raised_on_all(folder: Path) -> None:
    def train() -> None:
        progress: dict[str, Any] = {"odd": None}
        for _ in everstep.Checkpointer({"progress": progress}, directory=folder).steps(until=1):
            if dist.get_rank() == 1:
                progress["odd"] = threading.Lock()

    for outcome in try_ranks(2, train):
        assert "SaveError: the state after step 1 cannot be saved: rank 1: progress.odd: a " in outcome, outcome
    assert steps_in(folder) == []
