"""XXH3-128 of files, in the same pass as the copy."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import xxhash
from everstep_protocol.records import FileRecord

from everstep_sidecar.store import steps
from everstep_sidecar.store.files import FILES, Files

BLOCK_BYTES = 8 * 1024 * 1024
SYNC_BYTES = 64 * 1024 * 1024  # so often, at most, what is copied is made durable: a page cache takes anything at once
SYNC_SECONDS = 1.0  # so long that takes, at most: only what is durable is progress, and it is told then


def hash_file(path: Path, on_block: Callable[[], None] = lambda: None) -> FileRecord:
    """Name, length and hash of a regular file, no symbolic link followed; `on_block` is called as it gets on.

    Raises OSError, also for another kind of file.
    """
    with open_regular(path) as source:
        return _pump(source, None, path.name, on_block)


def copy_and_hash(
    source: BinaryIO, target: Path, name: str, files: Files = FILES, on_block: Callable[[], None] = lambda: None
) -> FileRecord:
    """Copy into `target`, whose folder must exist, fsync it, and say what was written, to be recorded as `name`.

    `on_block` is called as bytes reach the storage.
    """
    files.step("write", target)
    with target.open("wb", buffering=0) as sink:
        record = _pump(source, sink, name, on_block)
        files.step("fsync", target)
        os.fsync(sink.fileno())
    on_block()
    return record


def open_regular(path: Path) -> BinaryIO:
    """Open for reading; raises OSError for anything but a regular file."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path} is not a regular file")
    return os.fdopen(handle, "rb", buffering=0)


def _pump(
    source: BinaryIO, sink: BinaryIO | None, name: str, on_block: Callable[[], None] = lambda: None
) -> FileRecord:
    digest = xxhash.xxh3_128()
    block = memoryview(bytearray(BLOCK_BYTES))
    total = synced = 0
    sync_bytes = BLOCK_BYTES
    while count := source.readinto(block):  # type: ignore[attr-defined]
        steps.note_block()
        digest.update(block[:count])
        total += count
        if sink is None:
            on_block()
            continue
        _write_all(sink, block[:count])
        if total - synced >= sync_bytes:
            sync_bytes, synced = _next_sync_bytes(sync_bytes, _sync(sink)), total
            on_block()
    return FileRecord(name, total, digest.hexdigest())


def _sync(sink: BinaryIO) -> float:
    """Seconds that it took."""
    steps.note_block()
    began = time.monotonic()
    os.fdatasync(sink.fileno())
    return time.monotonic() - began


def _next_sync_bytes(now: int, took_seconds: float) -> int:
    """A storage that is fast is not held up, and of one that is slow it is known that it gets on."""
    if took_seconds > SYNC_SECONDS:
        return max(BLOCK_BYTES, now // 2)
    return min(SYNC_BYTES, 2 * now) if 2 * took_seconds < SYNC_SECONDS else now


def _write_all(sink: BinaryIO, data: memoryview) -> None:
    while data:
        data = data[sink.write(data) :]
