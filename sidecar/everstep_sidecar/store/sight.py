"""R11, R17: whether this mount shows the storage that the coordinator fenced. Looks, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from everstep_protocol import storage
from everstep_protocol.records import Owner

from everstep_sidecar.store import fence, listing
from everstep_sidecar.store.files import FILES, Files
from everstep_sidecar.store.owner import judge


def unseen(
    root: Path, owner: Owner, *, attempt: int, intent_id: str = "", raised_by: str = "", files: Files = FILES
) -> str | None:
    """What is not as it must be on this mount, in words, with its path; None: this is the storage that was fenced.

    `owner` is this job's. `intent_id`, `raised_by` (a pod's UID): whose fence it must be; empty: anybody's of this job. Raises
    OSError where the storage does not answer.
    """
    wanted = (intent_id, raised_by)
    if (found := _unseen(root, owner, attempt, wanted, files)) is None or not found.may_be_cached:
        return found.words if found else None
    # An NFS client believes for a while that what was not there is not there.
    for folder in (root, root / storage.ATTEMPTS):
        with contextlib.suppress(FileNotFoundError):
            listing.list_uncached(folder, files)
    found = _unseen(root, owner, attempt, wanted, files)
    return found.words if found else None


@dataclass(frozen=True)
class _Unseen:
    """What is wrong. `may_be_cached`: something is not there, which may be what the client saw before it was made."""

    words: str
    may_be_cached: bool = False


def _unseen(root: Path, owner: Owner, attempt: int, wanted: tuple[str, str], files: Files) -> _Unseen | None:
    judged = judge(root, owner, files)
    if judged.outcome == "missing":
        return _Unseen(f"{root / storage.OWNER} is not there", may_be_cached=os.access(root, os.W_OK))
    if judged.outcome == "damaged":
        return _Unseen(f"{root / storage.OWNER} cannot be read as an owner file")
    if judged.outcome != "ours":
        whose = f"{judged.owner.namespace}/{judged.owner.name}" if judged.owner else "another job"
        return _Unseen(f"{root / storage.OWNER} names another job ({whose}, or a former one of that name)")
    if _is_there(root, owner, attempt, wanted, files):
        return None
    what = f"{fence.path_of(root, attempt)} is not there, or is not the one that the coordinator wrote"
    return _Unseen(what, may_be_cached=True)


def _is_there(root: Path, owner: Owner, attempt: int, wanted: tuple[str, str], files: Files) -> bool:
    there = fence.read_fence(root, attempt, files)
    if there is None or there.job_uid != owner.job_uid:
        return False
    return all(given in ("", found) for given, found in zip(wanted, (there.intent_id, there.by), strict=True))
