"""The pod's memory volume as a place for saves, and loops over steps that follow each other."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cluster_kit as kit
import everstep
from everstep.places import MemoryPlace, require_room
from everstep_protocol import names, plan
from models import sharded_odd_shapes
from ranks import run_ranks


def place(pod: Path, rank: int = 0) -> MemoryPlace:
    told = plan.parse_plan((pod / names.PLAN_FILE_NAME).read_text())
    return MemoryPlace(pod, told, rank=rank)


def check_a_sidecar_of_another_user_can_take_snapshots_away(folder: Path) -> None:
    """An image with a user of its own: the sidecar runs as another one, without any capability."""
    (pod,) = kit.make_pods(folder, 1)
    before = os.umask(0o022)
    directory = place(pod).make(10)
    os.umask(before)
    for path in (directory, directory.parent, directory.parent.parent):
        assert path.stat().st_mode & 0o777 == 0o777, path


def check_what_a_full_volume_left_of_a_ready_record_does_not_count_as_a_snapshot(folder: Path) -> None:
    (pod,) = kit.make_pods(folder, 1)
    one = place(pod)
    directory = one.make(10)
    (directory / "__0_0.distcp").write_bytes(b"data")
    (directory / "ready_0.json.tmp").write_bytes(b"half")
    one.discard(10)
    assert one.num_waiting() == 0


def check_two_ranks_of_a_pod_take_a_failed_save_away_at_once(folder: Path) -> None:
    (pod,) = kit.make_pods(folder, 1)
    failures: list[BaseException] = []

    def discard(rank: int, barrier: threading.Barrier) -> None:
        mine = place(pod, rank)
        for _ in range(200):
            (mine.make(10) / f"__{rank}_0.distcp").touch()
            barrier.wait(kit.HANG_SECONDS)
            try:
                mine.discard(10)
            except OSError as error:
                failures.append(error)
            barrier.wait(kit.HANG_SECONDS)

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=discard, args=(rank, barrier)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert place(pod).num_waiting() == 0


def check_a_volume_that_reports_nothing_is_not_full(folder: Path) -> None:
    (pod,) = kit.make_pods(folder, 1)
    statvfs = os.statvfs
    try:
        os.statvfs = lambda path: SimpleNamespace(f_blocks=0, f_bavail=0, f_frsize=4096)
        assert place(pod).free_bytes() is None
        assert require_room(place(pod), 2**60) == ""
        os.statvfs = lambda path: SimpleNamespace(f_blocks=1, f_bavail=0, f_frsize=4096)
        assert "0.0 MiB are free" in require_room(place(pod), 1)
    finally:
        os.statvfs = statvfs


def run(until: int, checkpointer: everstep.Checkpointer, counter: dict[str, Any]) -> list[int]:
    """The steps that were done."""
    done = []
    for step in checkpointer.steps(until=until):
        counter["steps"] += 1
        done.append(step)
    return done


def first_attempt(pod: Path) -> list[int]:
    kit.enter_pod(pod)
    counter = {"steps": 0}
    return run(3, everstep.Checkpointer({"model": sharded_odd_shapes(), "counter": counter}), counter)


def second_attempt(pod: Path, directory: Path) -> Any:
    """The first loop's steps, and what is reported and restored while the second one is at its first step."""
    kit.enter_pod(pod, directory)
    counter = {"steps": 0}
    checkpointer = everstep.Checkpointer({"model": sharded_odd_shapes(), "counter": counter})
    done = run(5, checkpointer, counter)
    loop = checkpointer.steps(until=7)
    begun = next(loop)
    record = kit.progress_page(pod).read()
    loop.close()
    return done, begun, record.step if record else None, counter["steps"]


def check_a_second_loop_goes_on_where_the_first_one_ended(folder: Path) -> None:
    """It is not thrown back to the checkpoint from which the attempt resumed, and never reports fewer steps."""
    (pod,) = kit.make_pods(folder, 1)
    assert run_ranks(1, first_attempt, pod) == [[0, 1, 2]]
    directory = kit.commit([pod], 3, folder / "storage")
    (again,) = kit.make_pods(folder / "again", 1, attempt=8, resume=("step_3", 3))
    assert run_ranks(1, second_attempt, again, directory) == [([3, 4], 5, 5, 5)]
