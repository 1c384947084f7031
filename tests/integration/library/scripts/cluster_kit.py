"""A cluster without Kubernetes: each rank's pod is a folder for its memory volume, with a plan; here is what a sidecar would do."""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep_protocol import codec, names, plan
from everstep_protocol.shared_memory import PHASES, Control, Page, Progress

HANG_SECONDS = 30.0


def make_pods(
    folder: Path,
    world: int,
    *,
    attempt: int = 7,
    steps: int | None = None,
    seconds: float | None = None,
    resume: tuple[str, int] | None = None,
) -> list[Path]:
    """A memory folder with a plan for each rank."""
    document = plan.sealed(
        plan.Plan(
            format=plan.FORMAT,
            job_uid="job",
            attempt=attempt,
            plan_id="",
            intent_generation=1,
            template_hash="t",
            world=world,
            coordinator=plan.Coordinator(0, "pod-0", "127.0.0.1", 7471),
            members=tuple(
                plan.Member(rank, f"pod-{rank}", "127.0.0.1", "n", (rank, rank + 1)) for rank in range(world)
            ),
            resume=plan.Resume("checkpoint", "id", *resume[:1], attempt - 1, resume[1])
            if resume
            else plan.Resume("none"),
            lineage=(),
            cause="start",
            interval=plan.SaveInterval(steps, seconds),
        )
    )
    pods = [folder / f"pod-{rank}" for rank in range(world)]
    for pod in pods:
        pod.mkdir(parents=True, exist_ok=True)
        (pod / names.PLAN_FILE_NAME).write_text(codec.dumps(document))
    return pods


def enter_pod(pod: Path, resume: Path | None = None) -> None:
    """Give this process the environment that the launcher would give it: one rank a pod."""
    os.environ[names.ENV_PLAN_FILE] = str(pod / names.PLAN_FILE_NAME)
    os.environ[names.ENV_MEMORY] = str(pod)
    os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"] = "0", "1"
    os.environ.pop(names.ENV_RESUME_DIR, None)
    if resume is not None:
        os.environ[names.ENV_RESUME_DIR] = str(resume)


def snapshots(pod: Path, attempt: int = 7) -> list[int]:
    """Steps of the snapshots in a pod's memory that are ready."""
    root = pod / names.SNAPSHOTS_NAME / f"a{attempt}"
    return sorted(int(path.parent.name[5:]) for path in root.glob("step_*/ready_*.json"))


def snapshot(pod: Path, step: int, attempt: int = 7) -> Path:
    """The folder of one."""
    return pod / names.SNAPSHOTS_NAME / f"a{attempt}" / f"step_{step}"


def commit(pods: list[Path], step: int, storage: Path) -> Path:
    """What the sidecars do with a ready save: put its files together on storage, and drop it from memory."""
    target = storage / f"step_{step}"
    target.mkdir(parents=True)
    for rank, pod in enumerate(pods):
        ready = json.loads((snapshot(pod, step) / f"ready_{rank}.json").read_text())
        for name, size in ready["files"].items():
            shutil.copy(snapshot(pod, step) / name, target / name)
            assert (target / name).stat().st_size == size
        shutil.rmtree(snapshot(pod, step))
    return target


def progress_page(pod: Path) -> Page[Progress]:
    """A rank's progress."""
    page = Page(pod / f"{names.PROGRESS_PREFIX}0", Progress)
    page.open(create=True)
    return page


def control_page(pod: Path) -> Page[Control]:
    """A pod's orders."""
    page = Page(pod / names.CONTROL_NAME, Control)
    page.open(create=True)
    return page


def phase(page: Page[Progress]) -> str:
    """The phase that a rank reports."""
    record = page.read()
    return PHASES[record.phase] if record else ""


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """The condition's value once it is true."""
    deadline = time.monotonic() + HANG_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still waiting for {what}"
        time.sleep(0.002)
    return value


def wait_saved(pod: Path, step: int) -> None:
    """Return when this rank's save of a step is ready, and the thread that saved has ended."""
    wait_for(lambda: step in snapshots(pod) and threading.active_count() == 1, f"the save after step {step}")
