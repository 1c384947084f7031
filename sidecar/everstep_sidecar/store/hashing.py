"""XXH3-128 of files, in the same pass as the copy."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import xxhash
from everstep_protocol.records import FileRecord

from everstep_sidecar.store import steps
from everstep_sidecar.store.files import FILES, Files

BLOCK_BYTES = 8 * 1024 * 1024
SYNC_BYTES = (
    64 * 1024 * 1024
)  # so often what is copied is made durable: only that is progress, a page cache takes anything


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
    total = 0
    while count := source.readinto(block):  # type: ignore[attr-defined]
        steps.note_block()
        digest.update(block[:count])
        total += count
        if sink is None:
            on_block()
            continue
        _write_all(sink, block[:count])
        if total % SYNC_BYTES < count:
            steps.note_block()
            os.fdatasync(sink.fileno())
            on_block()
    return FileRecord(name, total, digest.hexdigest())


def _write_all(sink: BinaryIO, data: memoryview) -> None:
    while data:
        data = data[sink.write(data) :]
