"""Starts ranks of a torch.distributed world as forks of this process, which imported torch once and does nothing else with it."""

import faulthandler
import os
import pickle
import shutil
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
import torch._dynamo
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.tensor  # noqa: F401

HANG_SECONDS = 180.0  # a limit on hangs: two busy cores make a check of a minute out of one of twenty seconds


class Failed(Exception):
    """A rank raised; the text is its traceback."""


class Ranks:
    """Running ranks, and the folder into which they put what they return."""

    def __init__(self, world: int, call: Callable[[], Any], *, hang_seconds: float = HANG_SECONDS) -> None:
        self._folder = Path(tempfile.mkdtemp())
        self._hang_seconds = hang_seconds
        self._children = [_fork(self._folder, rank, world, call) for rank in range(world)]

    def outcomes(self) -> list[Any]:
        """For each rank a tuple with what it returned, or the text of its traceback or death."""
        found = [_collect(self._folder, rank, pid, self._hang_seconds) for rank, pid in enumerate(self._children)]
        shutil.rmtree(self._folder)
        return found

    def results(self) -> list[Any]:
        """What each rank returned. Raises Failed with the first traceback."""
        outcomes = self.outcomes()
        for rank, outcome in enumerate(outcomes):
            if isinstance(outcome, str):
                raise Failed(f"rank {rank}: {outcome}")
        return [outcome[0] for outcome in outcomes]

    def kill(self, how: int = signal.SIGKILL) -> None:
        """End all ranks."""
        for pid in self._children:
            os.kill(pid, how)
        for pid in self._children:
            os.waitpid(pid, 0)
        shutil.rmtree(self._folder)


def start_ranks(world: int, function: Callable[..., Any], *args: Any, **more: Any) -> Ranks:
    """Begin `function(*args)` on each rank."""
    return Ranks(world, lambda: function(*args, **more))


def run_ranks(world: int, function: Callable[..., Any], *args: Any, **more: Any) -> list[Any]:
    """What `function(*args)` returns on each rank. Raises Failed."""
    return start_ranks(world, function, *args, **more).results()


def try_ranks(world: int, function: Callable[..., Any], *args: Any, **more: Any) -> list[Any]:
    """See `Ranks.outcomes`."""
    return start_ranks(world, function, *args, **more).outcomes()


def _fork(folder: Path, rank: int, world: int, call: Callable[[], Any]) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    faulthandler.dump_traceback_later(HANG_SECONDS - 5)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world))
    try:
        if world > 1:
            store = f"file://{folder}/store"
            dist.init_process_group(
                "gloo", init_method=store, rank=rank, world_size=world, timeout=timedelta(seconds=HANG_SECONDS)
            )
            dist.barrier()  # a rank with little to do would be gone before its peers have connected to it
        outcome: Any = (call(),)
    except BaseException:  # noqa: BLE001 - it is the result
        outcome = traceback.format_exc()
    (folder / f"{rank}.half").write_bytes(pickle.dumps(outcome))
    (folder / f"{rank}.half").rename(folder / f"{rank}")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _collect(folder: Path, rank: int, pid: int, hang_seconds: float) -> Any:
    """Wait for a rank, kill it when it hangs."""
    deadline = time.monotonic() + hang_seconds
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "hung"
        time.sleep(0.005)
    result = folder / f"{rank}"
    return pickle.loads(result.read_bytes()) if result.exists() else "died"
