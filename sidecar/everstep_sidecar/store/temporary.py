"""R14: the temporary directory of one save: made once by the coordinator, filled by every rank's sidecar, never made anew by them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from everstep_protocol import codec, storage
from everstep_protocol.records import FileRecord, RankRecord, Ready

from everstep_sidecar.store import fence
from everstep_sidecar.store.files import FILES, Files
from everstep_sidecar.store.hashing import copy_and_hash, open_regular
from everstep_sidecar.store.listing import list_uncached

NOT_SHARED = "StorageNotShared"  # a member does not see what the coordinator made
METADATA_STAGED = ".metadata.rank-0"  # gets its final name last, by the coordinator


class Fenced(Exception):
    """The attempt is over: its temporary directory was taken away, or a higher fence stands."""


class BadSnapshot(Exception):
    """A snapshot in memory is not what its ready record says."""


def open_temporary(root: Path, attempt: int, step: int, files: Files = FILES) -> Path:
    """R14: make the save's temporary directory, exclusively; for the coordinator only. Its own, from before a restart, is used again.

    Raises Fenced where a higher fence stands already (only to spare the writing: what counts is the look before the rename).
    """
    if fence.highest(root, files) > attempt:
        raise Fenced(f"attempt {attempt} is over")
    path = temporary_path(root, attempt, step)
    try:
        files.make_dir(path)
    except FileExistsError:
        if not path.is_dir():
            raise
    files.fsync(root)
    return path


def write_rank(
    root: Path,
    snapshot: Path,
    ready: Ready,
    *,
    job_uid: str,
    on_block: Callable[[], None] = lambda: None,
    files: Files = FILES,
) -> RankRecord:
    """R14: copy one rank's files out of its snapshot, each fsynced, then its record. What is recorded already is not copied again.

    Rank 0 brings `.metadata`, under a staging name. Raises Fenced: the temporary directory is not there (any more); it is never
    made here. BadSnapshot: a file is missing, has another length than `ready` says, or a name that is not this rank's.
    `on_block` is called as bytes reach the storage.
    """
    folder = temporary_path(root, ready.attempt, ready.step)
    target = folder / storage.rank_record_name(ready.rank)
    done = _read_record(target, files)
    if done is not None and done.plan_id == ready.plan_id:
        return done
    copied = tuple(_copy(snapshot, folder, name, ready, files, on_block) for name in sorted(ready.files))
    record = RankRecord(job_uid, ready.attempt, ready.plan_id, ready.step, ready.rank, copied)
    try:
        files.write_durably(target, codec.dumps(record).encode())
    except FileNotFoundError as error:
        raise _fenced(ready) from error
    return record


def is_seen(root: Path, attempt: int, step: int, files: Files = FILES) -> bool:
    """Whether this mount shows the temporary directory of a save, past its caches. Raises OSError."""
    try:
        return storage.temporary_name(step, attempt) in list_uncached(root, files)
    except FileNotFoundError:
        return False


def read_ready(snapshot: Path, rank: int) -> Ready | None:
    """The ready record of one rank in a snapshot; None while there is none. Raises BadSnapshot for one that cannot be read."""
    try:
        return codec.loads(Ready, (snapshot / storage.ready_name(rank)).read_bytes())
    except FileNotFoundError:
        return None
    except (codec.InvalidDocument, UnicodeDecodeError, OSError) as error:
        raise BadSnapshot(f"the ready record of rank {rank} cannot be read: {error}") from error


def read_records(root: Path, attempt: int, step: int, files: Files = FILES) -> dict[int, RankRecord]:
    """The rank records in a temporary directory, by rank. Raises FileNotFoundError where the directory is not there."""
    folder = temporary_path(root, attempt, step)
    records = (_read_record(folder / name, files) for name in files.list_names(folder) if name.startswith("rank_"))
    return {record.rank: record for record in records if record is not None}


def discard(root: Path, attempt: int, step: int, files: Files = FILES) -> None:
    """R16: give up a save of the own attempt: its temporary directory goes. Ranks that still write into it see Fenced."""
    files.remove_tree(temporary_path(root, attempt, step))


def temporary_path(root: Path, attempt: int, step: int) -> Path:
    """Where a save of this attempt is written."""
    return root / storage.temporary_name(step, attempt)


def _copy(
    snapshot: Path, folder: Path, name: str, ready: Ready, files: Files, on_block: Callable[[], None]
) -> FileRecord:
    is_metadata = name == storage.METADATA and ready.rank == 0
    if not is_metadata and not storage.is_data_name(name, ready.rank):
        raise BadSnapshot(f"{name!r} is not a file of rank {ready.rank}")
    with _open_source(snapshot / name) as source:
        try:
            record = copy_and_hash(source, folder / (METADATA_STAGED if is_metadata else name), name, files, on_block)
        except FileNotFoundError as error:
            raise _fenced(ready) from error
    if record.bytes != ready.files[name]:
        raise BadSnapshot(f"{name} has {record.bytes} bytes, its ready record says {ready.files[name]}")
    return record


def _open_source(path: Path) -> BinaryIO:
    try:
        return open_regular(path)
    except OSError as error:
        raise BadSnapshot(f"{path.name} cannot be read from memory: {error}") from error


def _read_record(path: Path, files: Files) -> RankRecord | None:
    with contextlib.suppress(FileNotFoundError, codec.InvalidDocument, UnicodeDecodeError):
        return codec.loads(RankRecord, files.read(path))
    return None


def _fenced(ready: Ready) -> Fenced:
    return Fenced(f"{storage.temporary_name(ready.step, ready.attempt)} is gone: attempt {ready.attempt} is over")
