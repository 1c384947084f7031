"""Outside a cluster: runs of one folder, one at a time and one after the other, whatever became of the ones before."""

import contextlib
import ctypes
import io
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import everstep
import torch
from checks_state import train
from cluster_kit import wait_for
from everstep.errors import EverstepError, LoadError
from everstep_protocol import codec, complete, records
from models import sharded_odd_shapes
from ranks import run_ranks, start_ranks, try_ranks

LIBC = ctypes.CDLL(None, use_errno=True)
MNT_DETACH = 2


def checkpointer(folder: Path, counter: dict[str, int], *, every: int = 1, **more: Any) -> everstep.Checkpointer:
    return everstep.Checkpointer({"counter": counter}, directory=folder, every=every, **more)


def save_each(folder: Path, until: int, **more: Any) -> tuple[int, str]:
    """Save after every step; the steps that were done in all runs, and what was told."""
    counter = {"steps": 0}
    with contextlib.redirect_stderr(io.StringIO()) as told:
        for _ in checkpointer(folder, counter, **more).steps(until=until):
            counter["steps"] += 1
    return counter["steps"], told.getvalue()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith(".everstep"))


def hold(folder: Path, steps: int) -> None:
    """A run that is in its loop until it is killed, with a child that it forked there and that lives on."""
    for step in checkpointer(folder, {"steps": 0}, every=steps).steps(until=steps + 1):
        if step == steps:
            wait_for((folder / f"step_{steps}").exists, "the save before")
            child = os.fork()
            if child:
                (folder / "child").write_text(str(child))
            while True:
                signal.pause()


def check_one_run_at_a_time_and_a_killed_one_holds_nothing(folder: Path) -> None:
    where = folder / "run"
    holder = start_ranks(1, hold, where, 2)
    wait_for(lambda: (where / "child").exists() and (where / "child").read_text(), "the first run's loop")
    before = names(where)
    for outcome in try_ranks(2, save_each, where, 9):
        assert re.search(
            rf"opening {where} failed on rank 0: {where} is in use by another run \(process \d+ on \S+, since \S+\): end that run, "
            "or choose another directory=",
            outcome,
        ), outcome
    assert names(where) == before
    holder.kill(signal.SIGKILL)
    ((steps, _),) = run_ranks(1, save_each, where, 5)
    assert steps == 3, "after the 2 of the killed one, which counted nothing"
    child = int((where / "child").read_text())
    os.kill(child, signal.SIGKILL)  # raises where it had not lived so long


def check_two_loops_of_one_process_may_follow_each_other_only(folder: Path) -> None:
    def both() -> str:
        first = checkpointer(folder / "run", {"steps": 0}).steps(until=3)
        next(first)
        second = checkpointer(folder / "run", {"steps": 0})
        try:
            next(second.steps(until=3))
        except EverstepError as error:
            refusal = str(error)
        assert list(first) == [1, 2]
        assert list(second.steps(until=5)) == [3, 4], "the refused one may try again"
        other_state = everstep.Checkpointer({"absent": {"x": 1}}, directory=folder / "run")
        with contextlib.suppress(LoadError):
            raise AssertionError(list(other_state.steps(until=9)))
        assert list(checkpointer(folder / "run", {"steps": 0}).steps(until=6)) == [5]
        return refusal

    (refusal,) = run_ranks(1, both)
    assert "another loop of this very process" in refusal


def check_a_repaired_checkpoint_of_an_abandoned_branch_is_not_taken(folder: Path) -> None:
    """A fall-back from step 30 to 20, on to 25; then 30 can be read again."""
    where = folder / "run"
    for until in (10, 20, 30):  # a run each: within one a save may be skipped where the one before is slow
        run_ranks(2, train, where, until)
    data = (where / "step_30" / "__0_0.distcp").read_bytes()
    (where / "step_30" / "__0_0.distcp").write_bytes(b"cut")
    fallen_back = run_ranks(2, train, where, 25)
    (where / "step_30" / "__0_0.distcp").write_bytes(data)
    assert run_ranks(1, lambda: step_of(where)) == [25]
    (again,) = run_ranks(1, train, where, 25)
    assert all(torch.equal(value, again[key]) for key, value in fallen_back[0].items())
    verdicts = {path.name: complete.inspect(path, job_uids=None) for path in where.glob("step_*")}
    assert all(verdict.state == "complete" and verdict.world == 2 for verdict in verdicts.values()), verdicts
    assert (verdicts["step_25"].attempt, verdicts["step_25"].lineage) == (4, ((1, 10), (2, 20)))


def step_of(folder: Path) -> int:
    """The step to which a run of this folder is restored."""
    model = sharded_odd_shapes()
    state = {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.1)}
    one = everstep.Checkpointer(state, directory=folder)
    assert list(one.steps(until=0)) == []
    return one.step


@contextlib.contextmanager
def mounted(directory: Path) -> Iterator[None]:
    """A file system is mounted there: the folder above cannot be deleted, not even by root."""
    directory.mkdir()
    failed = LIBC.mount(b"tmpfs", os.fsencode(directory), b"tmpfs", 0, None)
    assert not failed, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        for path in directory.parent.parent.glob("*/mounted"):
            LIBC.umount2(os.fsencode(path), MNT_DETACH)


def check_an_old_checkpoint_that_cannot_be_deleted_is_no_failed_save(folder: Path) -> None:
    where = folder / "run"
    run_ranks(1, save_each, where, 2)
    with mounted(where / "step_1" / "mounted"):
        ((_, told),) = run_ranks(1, save_each, where, 6, keep_last=1)
        assert names(where) == [".trash-step_1", "step_6"], names(where)
        assert names(where / ".trash-step_1") == ["mounted"], "all that could go is gone"
        (line,) = [line for line in told.splitlines() if "cannot be deleted" in line]
        assert f"everstep: {where}/.trash-step_1 cannot be deleted" in line, line
        assert "Device or resource busy" in line, line
        assert "failed" not in told, told
        ((_, told),) = run_ranks(1, save_each, where, 8, keep_last=1)  # what that run left is tried again, once
        assert told.count("cannot be deleted") == 1, told
        assert names(where) == [".trash-step_1", "step_8"]
    run_ranks(1, save_each, where, 9)
    assert names(where) == ["step_8", "step_9"]


def check_only_unfinished_directories_are_told_before_step_0(folder: Path) -> None:
    (folder / "run" / "step_40").mkdir(parents=True)
    ((steps, told),) = run_ranks(1, save_each, folder / "run", 2)
    assert steps == 2
    assert f"{folder}/run/step_40 is passed over: has no .metadata and no manifest.json: never finished" in told
    assert f"{folder}/run: begins at step 0: there is no checkpoint" in told


def check_a_clusters_checkpoint_is_resumed_from_and_built_upon(folder: Path) -> None:
    (saved,) = run_ranks(1, train, folder / "made", 12)
    shutil.copytree(folder / "made" / "step_12", folder / "run" / "step_12")
    directory = folder / "run" / "step_12"
    (directory / "run.json").unlink()
    files = [records.FileRecord(path.name, path.stat().st_size, "0" * 32) for path in sorted(directory.iterdir())]
    metadata = next(file for file in files if file.name == ".metadata")
    data = tuple(file for file in files if file != metadata)
    manifest = records.sealed(
        records.Manifest(1, "", "a-job", 7, 12, "plan", 7, None, ((3, 10),), 1, 0, data, metadata, torch.__version__)
    )
    (directory / "manifest.json").write_text(codec.dumps(manifest))
    (again,) = run_ranks(1, train, folder / "run", 12)
    assert all(torch.equal(value, again[key]) for key, value in saved.items())
    run_ranks(1, train, folder / "run", 14)
    verdict = complete.inspect(folder / "run" / "step_14", job_uids=None)
    assert (verdict.state, verdict.attempt, verdict.lineage) == ("complete", 8, ((7, 12),))


def check_a_file_system_that_reports_nothing_is_not_full(folder: Path) -> None:
    def unknown() -> tuple[int, str]:
        os.statvfs = lambda path: SimpleNamespace(f_blocks=0, f_bavail=0, f_frsize=4096)
        return save_each(folder / "run", 3)

    ((_, told),) = run_ranks(1, unknown)
    assert "are free" not in told, told
    assert "step_3" in names(folder / "run")


def check_a_folder_that_cannot_be_written_is_told_to_every_rank_before_the_first_step(folder: Path) -> None:
    (folder / "file").write_text("in the way")
    for outcome in try_ranks(2, save_each, folder / "file" / "run", 3):
        last = outcome.strip().splitlines()[-1]
        assert last.startswith("everstep.errors.LoadError: opening "), outcome
        assert f"checkpoints cannot be written to {folder}/file/run" in last
        assert "choose another directory=" in last


def check_a_loop_that_comes_back_to_its_folder_goes_on_from_its_own_state(folder: Path) -> None:
    """Another Checkpointer wrote there meanwhile: the last one to write is what is resumed from, with nothing of the other mixed in."""

    def in_turn() -> list[int]:
        first = checkpointer(folder / "run", {"steps": 0}, keep_last=9)
        assert list(first.steps(until=2)) == [0, 1]
        assert list(checkpointer(folder / "run", {"steps": 0}, keep_last=9).steps(until=4)) == [2, 3]
        assert list(first.steps(until=3)) == [2]
        return list(checkpointer(folder / "run", {"steps": 0}, keep_last=9).steps(until=5))

    assert run_ranks(1, in_turn) == [[3, 4]]
