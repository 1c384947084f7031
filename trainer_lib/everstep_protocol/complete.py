"""The one definition of a complete checkpoint (DESIGN "What must always hold", 1), used by all."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from everstep_protocol import codec, dcp_metadata, records, storage
from everstep_protocol.dcp_metadata import InvalidMetadata
from everstep_protocol.verdict import Verdict

__all__ = ["Verdict", "inspect"]

MAX_MANIFEST_BYTES = 64 * 1024 * 1024


def inspect(directory: Path, *, job_uids: frozenset[str] | None) -> Verdict:
    """Judge one directory whose name `storage.parse_step_name` admits.

    With a manifest (ours): its id is its digest, its job is one of `job_uids`, its files and `.metadata` are regular files (no
    symlink) of exactly the recorded lengths. Without (stock DCP): `.metadata` is read by the size-capped allow-list reader
    (`dcp_metadata`), and every file that it names is a regular file inside the directory and long enough for its items.
    `job_uids` None: in a folder outside a cluster. There every job's manifest counts, and the record of a run (`run.json`) gives a
    stock directory its identity: the run's number as attempt, step, lineage, world. In a cluster such a directory is plain stock.
    Contents are not hashed here. Raises OSError where the storage does not answer: unknown is not missing (R12).
    """
    blank = Verdict(directory.name, "incomplete", "", storage.parse_step_name(directory.name) or 0)
    status = _lstat(directory)
    if status is None:
        return dataclasses.replace(blank, reason="is gone")
    if stat.S_ISLNK(status.st_mode):
        return _refused(blank, "is a symbolic link")
    if not stat.S_ISDIR(status.st_mode):
        return dataclasses.replace(blank, reason="is not a directory")
    if _lstat(directory / storage.MANIFEST) is not None:
        return _inspect_ours(directory, blank, job_uids)
    if job_uids is None and _lstat(directory / storage.RUN) is not None:
        return _inspect_run(directory, blank)
    return _inspect_stock(directory, blank)


def _inspect_ours(directory: Path, blank: Verdict, job_uids: frozenset[str] | None) -> Verdict:
    try:
        raw = dcp_metadata.read_regular_file(directory / storage.MANIFEST, limit_bytes=MAX_MANIFEST_BYTES)
        manifest = records.parse_manifest(raw)
    except InvalidMetadata as problem:
        return _refused(_attributed(directory, blank, job_uids), str(problem))
    except codec.InvalidDocument as problem:
        damaged = f"{storage.MANIFEST} is damaged: {str(problem)[:300]}"
        return _refused(_attributed(directory, blank, job_uids), damaged)
    named = _verdict_of(manifest, blank)
    if job_uids is not None and manifest.job_uid not in job_uids:
        return _refused(
            blank, f"belongs to another job (UID {manifest.job_uid}); to import it, remove its {storage.MANIFEST}"
        )
    if manifest.metadata.name != storage.METADATA or not manifest.files:
        return _refused(named, f"{storage.MANIFEST} names no data, or no {storage.METADATA}")
    exact = {record.name: record.bytes for record in (*manifest.files, manifest.metadata)}
    return _judge_files(directory, named, exact, exactly=True)


def _attributed(directory: Path, blank: Verdict, job_uids: frozenset[str] | None) -> Verdict:
    """R12: who made a checkpoint whose manifest nobody can read: an attempt that saved has saved, whatever became of it."""
    attempts = {record.attempt for record in _rank_records(directory) if job_uids is None or record.job_uid in job_uids}
    named = storage.parse_attempt_of_step_name(directory.name)
    return dataclasses.replace(blank, attempt=max(attempts, default=named))


def _rank_records(directory: Path) -> Iterator[records.RankRecord]:
    """Those that can be read. Raises OSError where the storage does not answer."""
    for path in sorted(directory.iterdir()):
        if not storage.is_rank_record_name(path.name):
            continue
        with contextlib.suppress(InvalidMetadata, codec.InvalidDocument):
            raw = dcp_metadata.read_regular_file(path, limit_bytes=MAX_MANIFEST_BYTES)
            yield codec.loads(records.RankRecord, raw)


def _inspect_run(directory: Path, blank: Verdict) -> Verdict:
    """Stock with a record. Where that is damaged nobody knows what the checkpoint continues: it is not taken for an import."""
    try:
        raw = dcp_metadata.read_regular_file(directory / storage.RUN, limit_bytes=MAX_MANIFEST_BYTES)
        run = records.parse_run(raw)
    except (InvalidMetadata, codec.InvalidDocument) as problem:
        verdict = _inspect_stock(directory, blank)
        reason = f"{storage.RUN} is damaged: {str(problem)[:300]}; without that file the directory counts as an import"
        return verdict if verdict.state == "incomplete" else _refused(blank, reason)
    named = dataclasses.replace(blank, step=run.step, id=run.id, attempt=run.run, lineage=run.lineage, world=run.world)
    return _inspect_stock(directory, named)


def _inspect_stock(directory: Path, blank: Verdict) -> Verdict:
    if _lstat(directory / storage.METADATA) is None:
        return dataclasses.replace(blank, reason=f"has no {storage.METADATA} and no {storage.MANIFEST}: never finished")
    try:
        least = dcp_metadata.read_file_lengths(directory / storage.METADATA)
    except InvalidMetadata as problem:
        return _refused(blank, str(problem))
    return _judge_files(directory, blank, least, exactly=False)


def _judge_files(directory: Path, verdict: Verdict, lengths: dict[str, int], *, exactly: bool) -> Verdict:
    total = 0
    for name, length in lengths.items():
        if not dcp_metadata.is_plain_name(name):
            return _refused(verdict, f"names a file outside its directory: {name[:80]!r}")
        status = _lstat(directory / name)
        if status is None:
            return _refused(verdict, f"{name} is missing")
        if not stat.S_ISREG(status.st_mode):
            return _refused(verdict, f"{name} is not a regular file")
        if status.st_size < length or (exactly and status.st_size != length):
            return _refused(
                verdict, f"{name} has {status.st_size} bytes, {'' if exactly else 'at least '}{length} are needed"
            )
        total += status.st_size
    return dataclasses.replace(verdict, state="complete", bytes=total)


def _verdict_of(manifest: records.Manifest, blank: Verdict) -> Verdict:
    return dataclasses.replace(
        blank,
        step=manifest.step,
        id=manifest.id,
        attempt=manifest.attempt,
        lineage=manifest.lineage,
        world=manifest.world,
    )


def _refused(verdict: Verdict, reason: str) -> Verdict:
    return dataclasses.replace(verdict, state="refused", reason=reason)


def _lstat(path: Path) -> os.stat_result | None:
    """None where there is nothing; raises OSError where the storage does not say (EIO, ESTALE, EACCES)."""
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
