"""Two small files on the memory volume through which trainers and sidecar see each other without a system call a step.

Each is one fixed record behind a sequence number: odd while it is written, so a reader that sees it odd or changed reads again.
Times are CLOCK_MONOTONIC in nanoseconds: one clock for all containers of a pod.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Generic, TypeVar

_SEQUENCE = struct.Struct("<Q")

PHASES = ("none", "starting", "loading", "training", "saving", "stopped", "finished")


@dataclass(frozen=True)
class Progress:
    """`progress-<local rank>`: written by one trainer, read by the sidecar."""

    attempt: int
    step: int  # newest finished step, -1: none in this attempt
    step_at_ns: int  # when it finished
    usual_ns: int  # a step's usual time, 0: not known
    phase: int  # index in PHASES
    samples_consumed: int
    num_skipped_saves: int
    num_failed_saves: int = 0  # of this attempt, too


@dataclass(frozen=True)
class Control:
    """`control`: written by the sidecar, read by its trainers at the end of each step (R19).

    A rank that finishes `stop_step` while `confirmed` is 0 waits until it is 1 (save, then stop) or `stop_step` changes (go on).
    The rank publishes its progress before it reads this; the sidecar writes this before it reads the progress: one of the two sees the other.
    """

    attempt: int
    stop_step: int  # -1: none
    confirmed: int  # 0 proposed, 1 confirmed


Record = TypeVar("Record", Progress, Control)


class Page(Generic[Record]):
    """One record in one mapped file. One writer, any number of readers."""

    def __init__(self, path: Path, kind: type[Record]) -> None:
        self._path = path
        self._kind: type[Record] = kind
        self._struct = struct.Struct("<" + "q" * len(kind.__dataclass_fields__))
        self._map: mmap.mmap | None = None
        self._fence = threading.Lock()

    def open(self, *, create: bool) -> None:
        """Map the file; `create`: make it, full of zeros, if it is not there. Raises FileNotFoundError otherwise.

        The containers of a pod may run as different users, whatever their umask: everybody may write.
        """
        size = _SEQUENCE.size + self._struct.size
        flags = os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        handle = os.open(self._path, flags, 0o666)
        try:
            if create:
                with suppress(PermissionError):  # somebody else's, who has done it
                    os.fchmod(handle, 0o666)
            if os.fstat(handle).st_size < size:
                os.ftruncate(handle, size)
            self._map = mmap.mmap(handle, size)
        finally:
            os.close(handle)

    def write(self, record: Record) -> None:
        """Publish a record."""
        assert self._map is not None
        (sequence,) = _SEQUENCE.unpack_from(self._map)
        sequence += sequence % 2  # a writer that died half-way left it odd
        _SEQUENCE.pack_into(self._map, 0, sequence + 1)
        self._struct.pack_into(self._map, _SEQUENCE.size, *astuple(record))
        _SEQUENCE.pack_into(self._map, 0, sequence + 2)
        # A writer that reads the other side's page next must not do so before this write is seen (`Control`): a lock is a full fence.
        with self._fence:
            pass

    def read(self) -> Record | None:
        """The newest record; None while there is none, or where its writer died in the middle of one."""
        assert self._map is not None
        for _ in range(1000):
            (before,) = _SEQUENCE.unpack_from(self._map)
            values = self._struct.unpack_from(self._map, _SEQUENCE.size)
            (after,) = _SEQUENCE.unpack_from(self._map)
            if before == after and before % 2 == 0:
                return self._kind(*values) if before else None
        return None

    def close(self) -> None:
        """Unmap."""
        if self._map is not None:
            self._map.close()
            self._map = None
