"""Who trains: rank and world size, and two gloo groups of our own, so that nothing of ours meets the script's collectives (B15)."""

from __future__ import annotations

import datetime
import os
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from everstep.console import say
from everstep.errors import EverstepError, LoadError

_SLOW_GROUP_SECONDS = 5.0


class World:
    """This process's place. `control` is for the main thread, `saving` for the thread that saves; None: the process is alone."""

    def __init__(self, *, rank: int, size: int, control: Any = None, saving: Any = None) -> None:
        self.rank = rank
        self.size = size
        self.control = control
        self.saving = saving
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._default = _default_group()  # weakly: the script's own destroy_process_group is to end it

    @property
    def is_current(self) -> bool:
        """Whether torch.distributed is still as it was: its groups die with `destroy_process_group`."""
        return self._default == _default_group()

    def leave(self) -> None:
        """Let the groups go, and with them their threads: one that outlives the interpreter aborts it (TR13).

        A group's last reference is its backend's: only that one is dropped without the interpreter's lock, which the threads
        that are waited for may need (torch 2.6).
        """
        groups = [group for group in (self.control, self.saving) if group is not None]
        backends = [group._get_backend(torch.device("cpu")) for group in groups]
        while groups and self.is_current:
            dist.destroy_process_group(groups.pop())
        groups.clear()
        self.control = self.saving = self._default = None
        backends.clear()

    @classmethod
    def join(cls, *, timeout_seconds: float) -> World:
        """Make the groups, together with all ranks. Raises EverstepError where WORLD_SIZE says more than torch.distributed."""
        if not (dist.is_available() and dist.is_initialized()):
            if int(os.environ.get("WORLD_SIZE", "1")) > 1:
                raise EverstepError(
                    f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but torch.distributed is not initialised: call "
                    "torch.distributed.init_process_group() before Checkpointer.steps()"
                )
            return cls(rank=0, size=1)
        timeout = datetime.timedelta(seconds=timeout_seconds)
        began = time.monotonic()
        groups = [dist.new_group(backend="gloo", timeout=timeout) for _ in range(2)]
        _warn_if_slow(time.monotonic() - began)
        return cls(rank=dist.get_rank(), size=dist.get_world_size(), control=groups[0], saving=groups[1])

    def least(self, values: list[int]) -> list[int]:
        """The smallest of each value over all ranks (64-bit integers). All ranks call it together."""
        if self.control is None:
            return values
        tensor = torch.tensor(values, dtype=torch.int64, device="cpu")
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN, group=self.control)
        return [int(value) for value in tensor]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank."""
        if self.control is None:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.control)
        return values

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """Do a thing on all ranks or on none: a failure is told at once where it happens, then every rank raises LoadError."""
        failure: BaseException | None = None
        try:
            yield
        except (Exception, CheckpointException) as error:  # noqa: BLE001 - told to all ranks; the latter is a BaseException
            failure = error
            say(f"rank {self.rank}: {what} failed: {error}")
        failures = self.gather(None if failure is None else str(failure) or repr(failure))
        told = {text: rank for rank, text in reversed(list(enumerate(failures))) if text is not None}
        if told:
            raise LoadError(
                "; ".join(f"{what} failed on rank {rank}: {text}" for text, rank in told.items())
            ) from failure


def _default_group() -> weakref.ref[Any] | None:
    return weakref.ref(dist.group.WORLD) if dist.is_available() and dist.is_initialized() else None


def _warn_if_slow(seconds: float) -> None:
    if seconds > _SLOW_GROUP_SECONDS:
        say(
            f"making process groups took {seconds:.0f} s; gloo looks up this host's own name and address: "
            "reverse DNS that nobody answers costs 10 s each start"
        )
