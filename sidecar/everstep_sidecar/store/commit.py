"""R14, R6: the commit, in PROTOCOL section 4's order, and one look before the rename."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from everstep_protocol import codec, records, storage
from everstep_protocol.messages import CheckpointInfo
from everstep_protocol.plan import Plan, Resume
from everstep_protocol.records import FileRecord, Manifest, Parent, RankRecord

from everstep_sidecar.store import failures, fence
from everstep_sidecar.store.files import FILES, Files
from everstep_sidecar.store.listing import rfc3339
from everstep_sidecar.store.temporary import METADATA_STAGED, read_records, temporary_path

_NAME_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


@dataclass(frozen=True)
class Commit:
    """`committed`: durable, under its final name. `fenced`: this attempt commits nothing any more.

    `failed`: not committed as far as is known; asking again is safe. `reason` is one word (ENOSPC, EIO, Incomplete, ...).
    """

    outcome: Literal["committed", "fenced", "failed"]
    checkpoint: CheckpointInfo | None = None
    reason: str = ""
    message: str = ""


class Incomplete(Exception):
    """The temporary directory does not hold the whole save; the text says what is missing."""


def commit(root: Path, plan: Plan, step: int, *, samples_consumed: int, torch: str, files: Files = FILES) -> Commit:
    """R14: verify, manifest.json, `.metadata`, fsync, look, rename, fsync of the parent. Never raises; a repeated call finds its own commit.

    R6: the name is `step_N`, or `step_N.a<attempt>` where that is taken; nothing that is there is moved or overwritten.
    """
    try:
        return _commit(root, plan, step, samples_consumed, torch, files)
    except Incomplete as problem:
        return Commit("failed", reason="Incomplete", message=str(problem))
    except OSError as error:
        return _after_error(root, plan, step, error, files)


def find(root: Path, plan: Plan, step: int, files: Files = FILES) -> CheckpointInfo | None:
    """What a save of this attempt has become, None: it is not committed. Raises OSError."""
    for name in (storage.step_name(step), storage.step_name_of_attempt(step, plan.attempt)):
        try:
            manifest = records.parse_manifest(files.read(root / name / storage.MANIFEST))
        except (FileNotFoundError, NotADirectoryError, codec.InvalidDocument, UnicodeDecodeError):
            continue
        if (manifest.job_uid, manifest.attempt, manifest.plan_id, manifest.step) == (
            plan.job_uid,
            plan.attempt,
            plan.plan_id,
            step,
        ):
            return _info(root, name, manifest)
    return None


def _commit(root: Path, plan: Plan, step: int, samples_consumed: int, torch: str, files: Files) -> Commit:
    folder = temporary_path(root, plan.attempt, step)
    by_rank = _verified(folder, plan, step, read_records(root, plan.attempt, step, files), files)
    manifest = _manifest(plan, step, by_rank, samples_consumed, torch)
    files.write_durably(folder / storage.MANIFEST, codec.dumps(manifest).encode())
    if METADATA_STAGED in files.list_names(folder):
        files.rename(folder / METADATA_STAGED, folder / storage.METADATA)
    files.fsync(folder)
    if not _is_highest(root, plan.attempt, files):
        return _fenced(plan.attempt)
    name = _rename(root, folder, plan.attempt, step, files)
    files.fsync(root)
    return Commit("committed", _info(root, name, manifest))


def _verified(
    folder: Path, plan: Plan, step: int, by_rank: dict[int, RankRecord], files: Files
) -> dict[int, RankRecord]:
    missing = sorted(set(range(plan.world)) - set(by_rank))
    if missing:
        raise Incomplete(f"ranks {missing[:20]} have not written their part")
    expected = (plan.job_uid, plan.attempt, plan.plan_id, step)
    for rank in range(plan.world):
        record = by_rank[rank]
        if (record.job_uid, record.attempt, record.plan_id, record.step) != expected:
            raise Incomplete(f"{storage.rank_record_name(rank)} is of another job, attempt, plan or step")
        for file in record.files:
            _verify_length(folder, rank, file)
    if storage.METADATA not in (file.name for file in by_rank[0].files):
        raise Incomplete(f"rank 0 wrote no {storage.METADATA}")
    files.step("verified", folder)
    return {rank: by_rank[rank] for rank in range(plan.world)}


def _verify_length(folder: Path, rank: int, file: FileRecord) -> None:
    is_metadata = file.name == storage.METADATA and rank == 0
    if not is_metadata and not storage.is_data_name(file.name, rank):
        raise Incomplete(f"{file.name!r} is not a file of rank {rank}")
    actual = _length(folder / (METADATA_STAGED if is_metadata else file.name))
    if actual is None and is_metadata:
        actual = _length(folder / storage.METADATA)  # an earlier try came as far as its rename
    if actual != file.bytes:
        raise Incomplete(f"{file.name} has {actual} bytes, {file.bytes} were written")


def _length(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return None


def _manifest(plan: Plan, step: int, by_rank: dict[int, RankRecord], samples_consumed: int, torch: str) -> Manifest:
    everything = [file for record in by_rank.values() for file in record.files]
    return records.sealed(
        Manifest(
            format=records.FORMAT,
            id="",
            job_uid=plan.job_uid,
            attempt=plan.attempt,
            step=step,
            plan_id=plan.plan_id,
            committed_by=plan.attempt,
            parent=_parent(plan.resume),
            lineage=plan.lineage,
            world=plan.world,
            samples_consumed=samples_consumed,
            files=tuple(file for file in everything if file.name != storage.METADATA),
            metadata=next(file for file in everything if file.name == storage.METADATA),
            torch=torch,
        )
    )


def _parent(resume: Resume) -> Parent | None:
    return None if resume.kind == "none" else Parent(resume.id, resume.attempt, resume.step)


def _is_highest(root: Path, attempt: int, files: Files) -> bool:
    """The look. Raises OSError where the own fence is not seen: that is not the storage it was raised on."""
    seen = fence.highest(root, files)
    if seen < attempt:
        raise OSError(errno.ESTALE, f"{storage.ATTEMPTS}/ does not show attempt {attempt}, only {seen}")
    return seen == attempt


def _rename(root: Path, folder: Path, attempt: int, step: int, files: Files) -> str:
    """R6: the committed name that was free."""
    name = storage.step_name(step)
    try:
        files.rename(folder, root / name)
    except OSError as error:
        if error.errno not in _NAME_TAKEN:
            raise
        name = storage.step_name_of_attempt(step, attempt)
        files.rename(folder, root / name)
    return name


def _after_error(root: Path, plan: Plan, step: int, error: OSError, files: Files) -> Commit:
    """R14: an error may hide a rename that was done (NFS retransmission, a restart): look for what this save would have become."""
    try:
        found = find(root, plan, step, files)
        if found is not None:
            files.fsync(root)
            return Commit("committed", found)
        if fence.highest(root, files) > plan.attempt:
            return _fenced(plan.attempt)
    except OSError as second:
        error = second
    return Commit("failed", reason=failures.word_of(error), message=failures.words_of(error))


def _fenced(attempt: int) -> Commit:
    return Commit("fenced", reason="Fenced", message=f"a fence above attempt {attempt} stands")


def _info(root: Path, name: str, manifest: Manifest) -> CheckpointInfo:
    seconds = (root / name / storage.MANIFEST).stat().st_mtime
    return CheckpointInfo(
        id=manifest.id,
        dir=name,
        attempt=manifest.attempt,
        step=manifest.step,
        bytes=manifest.metadata.bytes + sum(file.bytes for file in manifest.files),
        committed_at=rfc3339(seconds),
    )
