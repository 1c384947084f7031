"""Starts ranks of a torch.distributed world as forks of this process, which imported torch once and does nothing else with it."""

import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import everstep.checkpointer  # noqa: F401 - imported here once, not in every rank
import torch._dynamo  # noqa: F401 - the first optimizer step imports it
import torch.distributed as dist
import torch.distributed.fsdp  # noqa: F401
import torch.distributed.tensor  # noqa: F401

HANG_SECONDS = 60.0


class Failed(Exception):
    """A rank raised; the text is its traceback."""


def run_ranks(world: int, function: Callable[..., Any], *args: Any, environment: dict[str, str] | None = None) -> list[Any]:
    """What `function(*args)` returns on each rank. Raises Failed with the first rank's traceback."""
    outcomes = try_ranks(world, function, *args, environment=environment)
    for rank, outcome in enumerate(outcomes):
        if isinstance(outcome, str):
            raise Failed(f"rank {rank}: {outcome}")
    return [outcome[0] for outcome in outcomes]


def try_ranks(world: int, function: Callable[..., Any], *args: Any, environment: dict[str, str] | None = None) -> list[Any]:
    """For each rank a tuple with what it returned, or the text of its traceback or death."""
    with tempfile.TemporaryDirectory() as folder:
        children = [_fork(Path(folder), rank, world, function, args, environment or {}) for rank in range(world)]
        return [collect(Path(folder), rank, pid) for rank, pid in enumerate(children)]


def _fork(folder: Path, rank: int, world: int, function: Callable[..., Any], args: Any, environment: dict[str, str]) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    os.environ.update(environment, RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world))
    try:
        if world > 1:
            store = f"file://{folder}/store"
            dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=timedelta(seconds=HANG_SECONDS))
        outcome: Any = (function(*args),)
    except BaseException:
        outcome = traceback.format_exc()
    (folder / f"{rank}.half").write_bytes(pickle.dumps(outcome))
    (folder / f"{rank}.half").rename(folder / f"{rank}")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def collect(folder: Path, rank: int, pid: int) -> Any:
    """Wait for a rank, kill it when it hangs."""
    deadline = time.monotonic() + HANG_SECONDS
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "hung"
        time.sleep(0.005)
    result = folder / f"{rank}"
    return pickle.loads(result.read_bytes()) if result.exists() else "died"
