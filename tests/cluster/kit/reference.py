"""The undisturbed run: what `scripts/trainer_probe.py` computes when nothing happens to it."""

from __future__ import annotations

import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

from kit.records import read_records
from testcluster.rootfs import run_in_rootfs

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tests" / "cluster" / "scripts" / "trainer_probe.py"
DATASET = 960
STEPS_TO_THE_END = 100


def environment(*, steps: int, global_batch: int) -> dict[str, str]:
    """The variables that decide what is computed, for the job and for the reference alike."""
    return {"STEPS": str(steps), "GLOBAL_BATCH": str(global_batch), "DATASET": str(DATASET), "SEED": "0"}


def hurry(records: Path, *, until: int) -> int:
    """The question is answered: from now on steps take no longer than they must, and the job ends well a few steps from here.

    Returns how many steps it will have done: `until` at most, far enough from the newest that every rank hears of it in time.
    """
    newest = max((record.step for record in read_records(records)), default=0)
    last = min(until, newest + STEPS_TO_THE_END)
    told = records / "hurry.new"
    told.write_text(str(last))
    told.rename(records / "hurry")  # nobody reads half a number
    return last


@cache
def losses(*, steps: int, global_batch: int) -> dict[int, float]:
    """Step -> global loss of one process that is never disturbed, run in the trainer image's own system."""
    with tempfile.TemporaryDirectory() as folder:
        done = run_in_rootfs(
            "torch-new",
            ["python3", "/script.py"],
            binds={SCRIPT: "/script.py", ROOT / "trainer_lib": "/lib-everstep", Path(folder): "/records"},
            env=environment(steps=steps, global_batch=global_batch) | _SINGLE_PROCESS,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return {record.step: record.loss for record in read_records(Path(folder))}


_SINGLE_PROCESS = {
    "PYTHONPATH": "/lib-everstep",
    "RECORD_DIR": "/records",
    "EVERSTEP_CHECKPOINT_DIR": "/tmp/checkpoints",
    "RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "USE_LIBUV": "0",
}


def each_sample_once_an_epoch(samples: list[int]) -> bool:
    """Whether every sample was consumed equally often, give or take the epoch that has just begun."""
    counts = Counter(samples)
    return len(counts) == DATASET and max(counts.values()) - min(counts.values()) <= 1
