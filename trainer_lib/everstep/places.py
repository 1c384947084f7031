"""Where saves go: the pod's memory volume, from which the sidecar takes them, or outside a cluster a folder of one's own."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import torch
from everstep_protocol import codec, complete, local, names, records, storage
from everstep_protocol.complete import Verdict
from everstep_protocol.plan import Plan

from everstep.console import say
from everstep.dcp_files import fsync_path
from everstep.errors import LoadError

MAX_SNAPSHOTS = 2
LOCAL_ATTEMPT = 0


class Place(Protocol):
    """One rank's view of it."""

    sync_files: bool

    def directory(self, step: int) -> Path:
        """Where the save of a step is written."""

    def make(self, step: int) -> Path:
        """That directory, made for its writer, without what a failed save of this rank left in it."""

    def num_waiting(self) -> int:
        """How many earlier saves still wait there to be taken away."""

    def free_bytes(self) -> int:
        """How much can be written."""

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

    def free_bytes(self) -> int:
        """See `Place.free_bytes`."""
        return _free_bytes(self._memory)

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


class FolderPlace:
    """`<folder>/step_<N>`, complete or not there; all ranks write into one temporary directory, rank 0 renames it."""

    sync_files = True

    def __init__(self, folder: Path, *, rank: int, keep_last: int) -> None:
        self._folder = self.folder = folder
        self._rank = rank
        self._keep_last = keep_last

    def directory(self, step: int) -> Path:
        """See `Place.directory`."""
        return self._folder / storage.temporary_name(step, LOCAL_ATTEMPT)

    def make(self, step: int) -> Path:
        """See `Place.make`."""
        self.discard(step)
        return self.directory(step)

    def num_waiting(self) -> int:
        """See `Place.num_waiting`."""
        return 0

    def free_bytes(self) -> int:
        """See `Place.free_bytes`."""
        return _free_bytes(self._folder)

    def publish(self, step: int, samples_consumed: int) -> None:
        """As rank 0, when all ranks' files and `.metadata` are on the disk: one rename, then old checkpoints go."""
        if self._rank != 0:
            return
        self.directory(step).rename(self._free_name(step))
        fsync_path(self._folder)
        self._prune()

    def discard(self, step: int) -> None:
        """See `Place.discard`."""
        if self._rank == 0:
            shutil.rmtree(self.directory(step), ignore_errors=True)

    def open(self) -> None:
        if self._rank == 0:
            self.clean()

    def resume(self) -> tuple[Path, int] | None:
        return self.newest() if self._rank == 0 else None

    def close(self) -> None:
        pass

    def clean(self) -> None:
        """As rank 0, at the start: remove what a killed run left half-written."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for entry in self._folder.iterdir():
            if storage.parse_temporary_name(entry.name) is not None or entry.name.startswith(storage.TRASH_PREFIX):
                shutil.rmtree(entry, ignore_errors=True)
        self._prune()

    def newest(self) -> tuple[Path, int] | None:
        """The newest complete checkpoint and its step, None if there never was one. Raises LoadError where there are only bad ones."""
        verdicts = self._verdicts()
        found = [verdict for verdict in verdicts if verdict.state == "complete"]
        refused = [f"{verdict.dir} ({verdict.reason})" for verdict in verdicts if verdict.state == "refused"]
        for text in refused:
            say(f"{self._folder}: not a complete checkpoint: {text}")
        if found:
            return self._folder / found[0].dir, found[0].step
        if refused:
            raise LoadError(
                f"{self._folder} holds no complete checkpoint, only {', '.join(refused)}: repair or remove these to start at step 0"
            )
        return None

    def _verdicts(self) -> list[Verdict]:
        """Newest first."""
        entries = [entry for entry in self._folder.iterdir() if storage.parse_step_name(entry.name) is not None]
        verdicts = [complete.inspect(entry, job_uids=frozenset()) for entry in entries]
        return sorted(verdicts, key=lambda verdict: (verdict.step, _again(verdict.dir)), reverse=True)

    def _free_name(self, step: int) -> Path:
        target = self._folder / storage.step_name(step)
        number = 0
        while os.path.lexists(target):
            number += 1
            target = self._folder / storage.step_name_of_attempt(step, number)
        return target

    def _prune(self) -> None:
        """Only complete ones count, and only complete ones go."""
        found = [verdict.dir for verdict in self._verdicts() if verdict.state == "complete"]
        for name in found[self._keep_last :]:
            trash = self._folder / f"{storage.TRASH_PREFIX}{name}"
            (self._folder / name).rename(trash)
            shutil.rmtree(trash)


def require_room(place: Place, needed_bytes: int) -> str:
    """Empty where there is room for a save, else a sentence."""
    free = place.free_bytes()
    if free >= needed_bytes:
        return ""
    return f"the next save needs about {_mebibytes(needed_bytes)}, {_mebibytes(free)} are free"


def _remove_if_empty(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _again(name: str) -> int:
    """Which of several checkpoints of one step: `step_30.a2` came after `step_30`."""
    _, _, number = name.partition(".a")
    return int(number or 0)


def _free_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def _mebibytes(number: int) -> str:
    return f"{number / 2**20:.1f} MiB"
