"""Outside a cluster: a folder of checkpoints that are complete or not there, whatever kills the run."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cluster_kit as kit
import everstep
import torch
from checks_state import train
from everstep_protocol import complete
from models import OddShapes, assert_equal, everything, step_by_hand
from ranks import run_ranks, start_ranks, try_ranks

EXAMPLE = "/src/examples/gpt/train.py"


def steps_in(folder: Path) -> list[int]:
    """Steps of the complete checkpoints; there is nothing half-done under a committed name."""
    verdicts = [
        complete.inspect(path, job_uids=frozenset()) for path in folder.glob("step_*") if ".tmp-" not in path.name
    ]
    assert all(verdict.state == "complete" for verdict in verdicts), verdicts
    return sorted(verdict.step for verdict in verdicts)


def check_killed_at_any_moment_it_resumes_and_ends_like_an_undisturbed_run(folder: Path) -> None:
    dice = random.Random(3)
    (undisturbed,) = run_ranks(1, train, folder / "undisturbed", 40)

    def slow(where: Path) -> Any:
        from everstep import dcp_files

        fsync = dcp_files.fsync_path
        dcp_files.fsync_path = lambda path: (time.sleep(0.01), fsync(path))
        model = OddShapes()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for step in everstep.Checkpointer({"model": model, "optimizer": optimizer}, directory=where, every=1).steps(
            until=40
        ):
            time.sleep(0.01)
            step_by_hand(model, optimizer, step)
        return everything(model, optimizer)

    reached = 0
    for _ in range(8):
        ranks = start_ranks(1, slow, folder / "killed")
        time.sleep(0.15 + 0.2 * dice.random())
        ranks.kill(signal.SIGKILL)
        found = steps_in(folder / "killed") if (folder / "killed").exists() else []
        assert not found or found[-1] >= reached
        reached = found[-1] if found else reached
    assert reached > 0
    (result,) = run_ranks(1, slow, folder / "killed")
    assert_equal(result, undisturbed)
    assert steps_in(folder / "killed")[-1] == 40
    assert len(steps_in(folder / "killed")) == 3
    assert not list((folder / "killed").glob("*.tmp-*"))


def check_commit_order(folder: Path) -> None:
    """Data durable, then `.metadata`, then the record of the run, then one rename, then its folder."""

    def record() -> list[str]:
        told: list[str] = []
        fsync, rename = os.fsync, os.rename

        def spy_fsync(handle: Any) -> None:
            number = handle if isinstance(handle, int) else handle.fileno()
            told.append("fsync " + str(Path(f"/proc/self/fd/{number}").readlink()).replace(str(folder) + "/", ""))
            fsync(handle)

        def spy_rename(source: Any, target: Any, **more: Any) -> None:
            told.append(f"rename {Path(source).name} {Path(target).name}")
            rename(source, target, **more)

        os.fsync, os.rename = spy_fsync, spy_rename
        train(folder / "run", 1)
        return told

    (told,) = run_ranks(1, record)
    told = [line for line in told if not line.endswith(".metadata.tmp")]
    tmp = "run/step_1.tmp-0"
    assert told[0] == f"fsync {tmp}/__0_0.distcp", told
    assert told[-7:] == [
        "rename .metadata.tmp .metadata",
        f"fsync {tmp}/.metadata",
        f"fsync {tmp}",
        f"fsync {tmp}/run.json",
        f"fsync {tmp}",
        "rename step_1.tmp-0 step_1",
        "fsync run",
    ], told


def check_only_complete_checkpoints_count(folder: Path) -> None:
    """Broken ones are passed over and told; where nothing else is left it stops instead of starting from 0; kept are complete ones."""
    where = folder / "run"
    run_ranks(1, train, where, 12)
    saved = everything_at(where, 12)
    for name in ("step_20", "step_30"):
        shutil.copytree(where / "step_12", where / name)
    (where / "step_30" / ".metadata").unlink()  # incomplete: no checkpoint
    (where / "step_20" / "__0_0.distcp").write_bytes(b"short")  # refused
    (where / "step_40.tmp-0").mkdir()
    (where / "best").mkdir()
    assert_equal(everything_at(where, 12), saved)
    assert not (where / "step_40.tmp-0").exists()
    (result,) = run_ranks(1, train, where, 20)  # the name step_20 is taken
    assert (where / "step_20.a2").is_dir()
    assert_equal(everything_at(where, 20), result)
    only_bad = folder / "bad"
    shutil.copytree(where / "step_20", only_bad / "step_20")
    (outcome,) = try_ranks(1, train, only_bad, 21)
    assert "no checkpoint can be resumed from (step_20: " in outcome


def everything_at(folder: Path, step: int) -> Any:
    """What a run that has nothing left to do restores."""
    (result,) = run_ranks(1, train, folder, step)
    return result


def check_the_example_runs_alone_and_under_torchrun_and_resumes(folder: Path) -> None:
    environment = {**os.environ, "EVERSTEP_CHECKPOINT_DIR": str(folder / "ckpt")}
    alone = run([sys.executable, EXAMPLE, "--steps", "2", "--global-batch", "7"], environment)
    assert [line.split(" loss")[0] for line in alone.splitlines()] == ["step 0", "step 1"]
    ranks = ["--nproc-per-node=2", "--standalone", EXAMPLE, "--steps", "4", "--global-batch", "7"]
    both = run([sys.executable, "-m", "torch.distributed.run", *ranks], environment)
    lines = [line for line in both.splitlines() if line.startswith("step")]
    assert [line.split(" loss")[0] for line in lines] == ["step 2", "step 3"], both
    assert all(line.endswith("world 2") for line in lines)
    assert steps_in(folder / "ckpt") == [2, 4]


def run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=kit.HANG_SECONDS * 4)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
