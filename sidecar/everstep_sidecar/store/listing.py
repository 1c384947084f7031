"""R12, R14: what lies on storage, read past caches."""

from __future__ import annotations

import datetime
import uuid
from pathlib import Path

from everstep_protocol import storage
from everstep_protocol.complete import Verdict, inspect
from everstep_protocol.messages import CheckpointInfo

from everstep_sidecar.store.files import FILES, Files

PROBE_PREFIX = ".probe-"
_RFC3339 = "%Y-%m-%dT%H:%M:%SZ"


def list_uncached(folder: Path, files: Files = FILES) -> list[str]:
    """R14: the names in a folder as the server has them now.

    Creating and removing a file in it makes an NFS client see that the folder changed; without, it may answer from a cache that
    is up to 60 s old. Raises FileNotFoundError where there is no such folder.
    """
    probe = folder / f"{PROBE_PREFIX}{uuid.uuid4().hex}"
    files.write(probe, b"")
    files.remove(probe)
    return [name for name in files.list_names(folder) if not name.startswith(PROBE_PREFIX)]


def list_checkpoints(root: Path, job_uids: frozenset[str], files: Files = FILES) -> tuple[Verdict, ...]:
    """R12: a verdict on each directory with a committed name, oldest (attempt, step) first; every other name is left alone.

    `incomplete` ones are among them, so that people can be told. Raises OSError: then nothing is known.
    """
    names = [name for name in list_uncached(root, files) if storage.parse_step_name(name) is not None]
    verdicts = [_inspect(root / name, job_uids, files) for name in names]
    return tuple(sorted(verdicts, key=lambda verdict: (verdict.attempt, verdict.step, verdict.dir)))


def _inspect(directory: Path, job_uids: frozenset[str], files: Files) -> Verdict:
    files.step("inspect", directory)
    return inspect(directory, job_uids=job_uids)


def info(root: Path, verdict: Verdict) -> CheckpointInfo:
    """What the operator is told of a complete checkpoint; the time is its manifest's, for people only (R27)."""
    marker = root / verdict.dir / (storage.MANIFEST if verdict.id else storage.METADATA)
    return CheckpointInfo(
        id=verdict.id,
        dir=verdict.dir,
        attempt=verdict.attempt,
        step=verdict.step,
        bytes=verdict.bytes,
        committed_at=rfc3339(marker.stat().st_mtime),
    )


def rfc3339(seconds: float) -> str:
    """A file's time for people (R27)."""
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime(_RFC3339)


def unix_time(stamp: str) -> float:
    """The inverse of `rfc3339`."""
    return datetime.datetime.strptime(stamp, f"{_RFC3339[:-1]}%z").timestamp()
