"""What lies in a checkpoint folder, and what is made of it; a storage that is not there."""

from __future__ import annotations

import shutil
from pathlib import Path

from everstep_protocol import storage
from kit import reference
from kit.job import Job, Space
from kit.waiting import wait_until

STEPS = 100_000


def test_broken_directories_are_refused_with_reasons_and_a_missing_storage_is_waited_for(space: Space) -> None:
    job = space.job(
        "folder",
        command=["torchrun", "--nproc-per-node=1", "/scripts/trainer_probe.py"],
        env=reference.environment(steps=STEPS, global_batch=24) | {"STEP_SECONDS": "0.05"},
        workers=(2, 2),
    )
    first = job.wait_training(2)
    job.wait_commit(above=20)
    suspend(job)
    newest = max(job.complete_steps())
    broken = make_zoo(job.folder, job.folder / storage.step_name(newest))

    job.patch_spec({"suspend": False})
    second = job.wait_training(2, after_attempt=first)
    assert job.history()[-1]["resumedStep"] == newest
    told = space.kubectl("get", "events", "-o", 'jsonpath={range .items[*]}{.message}{"\\n"}{end}')
    for name in broken:
        assert name in told, f"the reason for refusing {name} is told"

    suspend(job)
    away = job.folder.with_name("away")
    job.folder.rename(away)
    job.patch_spec({"suspend": False})
    job.wait_until(
        "it waits and says why",
        lambda: job.condition("CheckpointHealthy").get("reason") == "StorageMissing",
        hang_seconds=120,
    )
    assert max(record.attempt for record in job.records()) == second, "nothing trains from step 0"
    shutil.rmtree(job.folder, ignore_errors=True)
    away.rename(job.folder)
    job.wait_training(2, after_attempt=second, hang_seconds=120)
    assert job.history()[-1]["resumedStep"] >= newest


def suspend(job: Job) -> None:
    job.patch_spec({"suspend": True})
    job.wait_phase("Suspended", hang_seconds=120)
    wait_until("its pods are gone", lambda: not job.pods(), hang_seconds=120)


def make_zoo(folder: Path, good: Path) -> list[str]:
    """Broken and foreign entries of every kind, all with higher numbers; the names of those that look like checkpoints."""
    data = sorted(path.name for path in good.glob("*.distcp"))

    def copy(name: str) -> Path:
        target = folder / name
        shutil.copytree(good, target)
        return target

    (copy("step_900000") / storage.METADATA).unlink()
    (folder / "step_900000" / storage.MANIFEST).unlink()
    half = copy("step_910000")
    (half / storage.METADATA).rename(half / ".metadata.tmp")
    (folder / "step_920000").mkdir()
    (folder / "step_930000").write_text("a plain file")
    copy("step_940000.tmp")
    (copy("step_950000") / data[0]).unlink()
    truncate(copy("step_960000") / data[0], 0)
    shard = copy("step_970000") / data[1]
    truncate(shard, shard.stat().st_size - 64)
    truncate(copy("step_980000") / storage.METADATA, 0)
    for name in ("best", "step_12a", "step_-5", "step_1e3", "Step_7"):
        (folder / name).mkdir()
    return ["step_910000", "step_950000", "step_960000", "step_970000", "step_980000"]


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)
