"""Where saves go: in a cluster the pod's memory volume, from which the sidecar takes them; alone a folder (see `folder`)."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import torch
from everstep_protocol import codec, local, names, records, storage
from everstep_protocol.plan import Plan

from everstep.console import say
from everstep.room import free_bytes

MAX_SNAPSHOTS = 2


class Place(Protocol):
    """One rank's view of it."""

    sync_files: bool

    def directory(self, step: int) -> Path:
        """Where the save of a step is written."""

    def make(self, step: int) -> Path:
        """That directory, made for its writer, without what a failed save of this rank left in it."""

    def num_waiting(self) -> int:
        """How many earlier saves still wait there to be taken away."""

    def free_bytes(self) -> int | None:
        """How much can be written; None: the file system does not say."""

    def publish(self, step: int, samples_consumed: int) -> None:
        """The save of this rank is whole: say so. Runs on the thread that saves. Raises OSError."""

    def discard(self, step: int) -> None:
        """Remove this rank's files of a failed save."""


class MemoryPlace:
    """`<memory>/snapshots/a<attempt>/step_<N>/` in the pod; the sidecar copies and then deletes what is ready."""

    sync_files = False

    def __init__(self, memory: Path, plan: Plan, *, rank: int) -> None:
        self._memory = memory
        self._plan = plan
        self._rank = rank
        self._told = False
        self._root = memory / names.SNAPSHOTS_NAME / storage.snapshot_name(plan.attempt)

    def directory(self, step: int) -> Path:
        """See `Place.directory`."""
        return self._root / storage.step_name(step)

    def make(self, step: int) -> Path:
        """See `Place.make`. The sidecar may run as another user, and takes away what it has written: everybody may write."""
        directory = self.directory(step)
        self._clear(directory)
        with suppress(OSError):  # the writer meets it, too: there it is a failed save, here it would end the training
            directory.mkdir(parents=True, exist_ok=True)
            for path in (directory, self._root, self._root.parent):
                path.chmod(0o777)
        return directory

    def num_waiting(self) -> int:
        """See `Place.num_waiting`."""
        try:
            return sum(storage.parse_step_name(entry.name) is not None for entry in self._root.iterdir())
        except FileNotFoundError:
            return 0

    def free_bytes(self) -> int | None:
        """See `Place.free_bytes`."""
        return free_bytes(self._memory)

    def publish(self, step: int, samples_consumed: int) -> None:
        """Write `ready_<rank>.json` (whole or not at all), then nudge the sidecar."""
        directory = self.directory(step)
        paths = self._files(directory)
        for path in paths:
            path.chmod(0o644)  # the sidecar may be another user, and the script's umask a strict one
        files = {path.name: path.stat().st_size for path in paths}
        plan = self._plan
        ready = records.Ready(
            plan.attempt, plan.plan_id, step, self._rank, files, samples_consumed, str(torch.__version__)
        )
        target = directory / storage.ready_name(self._rank)
        half = target.with_name(f"{target.name}.tmp")
        half.write_text(codec.dumps(ready))
        half.chmod(0o644)
        half.rename(target)
        self._nudge(step)

    def discard(self, step: int) -> None:
        """See `Place.discard`."""
        directory = self.directory(step)
        self._clear(directory)
        with suppress(FileNotFoundError):
            _remove_if_empty(directory)

    def _clear(self, directory: Path) -> None:
        """Another rank of this pod, or the sidecar, may take the directory away meanwhile; one that a rank has just made stays."""
        ready = storage.ready_name(self._rank)
        with suppress(FileNotFoundError):
            for path in [directory / ready, directory / f"{ready}.tmp", *self._files(directory)]:
                path.unlink(missing_ok=True)
            for path in directory.glob(f"{storage.METADATA}*") if self._rank == 0 else ():
                path.unlink(missing_ok=True)

    def _files(self, directory: Path) -> list[Path]:
        index = [directory / storage.METADATA] if self._rank == 0 and (directory / storage.METADATA).exists() else []
        return [path for path in directory.iterdir() if storage.is_data_name(path.name, self._rank)] + index

    def _nudge(self, step: int) -> None:
        message = local.encode(local.Saved(self._plan.attempt, step, self._rank))
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(1.0)
                connection.connect(str(self._memory / names.SOCKET_NAME))
                connection.sendall(message)
        except OSError as error:  # the file is the truth, the nudge only saves a look
            if not self._told:
                say(f"the sidecar was not told of the save after step {step}, it will find it by itself: {error}")
            self._told = True


def require_room(place: Place, needed_bytes: int) -> str:
    """Empty where there is room for a save, or nobody knows; else a sentence."""
    free = place.free_bytes()
    if free is None or free >= needed_bytes:
        return ""
    return f"the next save needs about {_mebibytes(needed_bytes)}, {_mebibytes(free)} are free"


def _remove_if_empty(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _mebibytes(number: int) -> str:
    return f"{number / 2**20:.1f} MiB"
