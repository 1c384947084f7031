"""R11, R17: whether this mount shows the storage that the coordinator fenced. Looks, and changes nothing."""

from __future__ import annotations

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
    judged = judge(root, owner, files)
    if judged.outcome == "missing":
        return f"{root / storage.OWNER} is not there"
    if judged.outcome == "damaged":
        return f"{root / storage.OWNER} cannot be read as an owner file"
    if judged.outcome != "ours":
        whose = f"{judged.owner.namespace}/{judged.owner.name}" if judged.owner else "another job"
        return f"{root / storage.OWNER} names another job ({whose}, or a former one of that name)"
    wanted = (intent_id, raised_by)
    if _is_there(root, owner, attempt, wanted, files):
        return None
    # An NFS client believes for a while that what was not there is not there.
    listing.list_uncached(root / storage.ATTEMPTS, files)
    if _is_there(root, owner, attempt, wanted, files):
        return None
    return f"{fence.path_of(root, attempt)} is not there, or is not the one that the coordinator wrote"


def _is_there(root: Path, owner: Owner, attempt: int, wanted: tuple[str, str], files: Files) -> bool:
    there = fence.read_fence(root, attempt, files)
    if there is None or there.job_uid != owner.job_uid:
        return False
    return all(given in ("", found) for given, found in zip(wanted, (there.intent_id, there.by), strict=True))
