"""R4: prepare is fence, then look, then choose. Only what comes out of here may become a plan's resume."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from everstep_protocol import records, resume, storage
from everstep_protocol.complete import Verdict
from everstep_protocol.messages import PrepareAnswer, PrepareRequest
from everstep_protocol.records import Fence, Owner

from everstep_sidecar.store import failures, fence, go, listing, retention
from everstep_sidecar.store.files import FILES, Files
from everstep_sidecar.store.owner import Claim, claim, job_uids


def prepare(
    root: Path,
    request: PrepareRequest,
    *,
    owner: Owner,
    pod_uid: str,
    mount: Path | None = None,
    on_fenced: Callable[[str], None] = lambda raised_by: None,
    files: Files = FILES,
) -> PrepareAnswer:
    """R4: claim the path, fence everything older, list, judge, choose. Never raises OSError: unknown is `wait`, never "empty" (R12).

    Safe to repeat: the same number and intent give the same answer, or a newer look. `owner` is this job's, without `adopted`;
    `mount` is where the volume is mounted. `on_fenced`: the fence of this pod (UID) stands, the look begins.
    """
    try:
        return _prepare(root, request, owner, pod_uid, mount, on_fenced, files)
    except OSError as error:
        message = f"{failures.explain(error, root)}; nothing is decided until then"
        return dataclasses.replace(_blank(request), outcome="wait", reason="StorageError", message=message)


def _prepare(
    root: Path,
    request: PrepareRequest,
    owner: Owner,
    pod_uid: str,
    mount: Path | None,
    on_fenced: Callable[[str], None],
    files: Files,
) -> PrepareAnswer:
    claimed = claim(root, owner, known=request.storage_known, mount=mount, files=files)
    if claimed.owner is None or claimed.outcome == "another":
        return _not_ours(request, claimed, root)
    raised = fence.raise_fence(root, _fence(request, owner, pod_uid), files)
    if raised.outcome == "higher":
        message = f"attempt {raised.highest} has fenced this storage; take a higher number"
        return dataclasses.replace(
            _blank(request), outcome="fenced", reason="HigherFence", message=message, highest=raised.highest
        )
    raised_by = _raised_by(root, request, files)
    on_fenced(raised_by)
    retention.restore_misplaced(root, files)
    verdicts = listing.list_checkpoints(root, job_uids(claimed.owner), files)
    choice = resume.choose(_question(root, request, claimed.owner, files), verdicts)
    return dataclasses.replace(_answer(root, request, choice, verdicts), raised_by=raised_by)


def _raised_by(root: Path, request: PrepareRequest, files: Files) -> str:
    """UID of the pod that raised this fence first, empty where it cannot be read any more."""
    there = fence.read_fence(root, request.attempt, files)
    return there.by if there is not None else ""


def _not_ours(request: PrepareRequest, claimed: Claim, root: Path) -> PrepareAnswer:
    if claimed.outcome == "missing":
        message = (
            f"{root}/{storage.OWNER} is not there although this job has run before: the storage is not mounted, or is another "
            "one; waiting for it"
        )
        return dataclasses.replace(_blank(request), outcome="wait", reason="StorageMissing", message=message)
    if claimed.outcome == "damaged":
        message = f"{claimed.where} cannot be read as an owner file; if the path is this job's, remove that file"
        return dataclasses.replace(_blank(request), outcome="stop", reason="StorageOwnerUnreadable", message=message)
    whose = f"{claimed.owner.namespace}/{claimed.owner.name}" if claimed.owner else "another job"
    message = f"{claimed.where} says that the path belongs to {whose}; choose another checkpoint.storage.path"
    return dataclasses.replace(_blank(request), outcome="stop", reason="StorageOwnedByAnother", message=message)


def _question(root: Path, request: PrepareRequest, owner: Owner, files: Files) -> resume.Question:
    is_first = request.last_attempt == 0
    adopted = is_first and bool(owner.adopted)
    return resume.Question(
        lineage=request.lineage,
        last_attempt=request.last_attempt,
        condemned=frozenset(request.condemned),
        bad=frozenset(request.bad),
        ever=request.ever,
        resume_from=request.resume_from,
        adopted=adopted,
        # No attempt was planned and nobody was adopted: this job itself has made the owner file, in this prepare or an earlier try.
        owned=adopted or not is_first,
        finished=adopted and _former_finished(root, owner, files),
    )


def _former_finished(root: Path, owner: Owner, files: Files) -> bool:
    """Whether the last attempt of the former jobs finished. Fences of this job's own, tried before, are passed over."""
    names = files.list_names(root / storage.ATTEMPTS)
    numbers = [number for number in map(storage.parse_attempt_name, names) if number is not None]
    for number in sorted(numbers, reverse=True):
        there = fence.read_fence(root, number, files)
        if there is not None and there.job_uid != owner.job_uid:
            if go.is_finished(root, number, files):
                return True
            if go.has_go(root, number, files):
                return False
    return False


def _answer(root: Path, request: PrepareRequest, choice: resume.Choice, verdicts: tuple[Verdict, ...]) -> PrepareAnswer:
    complete = tuple(verdict for verdict in verdicts if verdict.state == "complete")
    return PrepareAnswer(
        attempt=request.attempt,
        intent_id=request.intent_id,
        outcome="ready" if choice.outcome == "resume" else "stop",
        reason=choice.reason,
        message=choice.message,
        highest=request.attempt,
        resume=choice.resume,
        lineage=choice.lineage,
        checkpoints=tuple(listing.info(root, verdict) for verdict in complete),
        refused=choice.refused,
    )


def _fence(request: PrepareRequest, owner: Owner, pod_uid: str) -> Fence:
    return Fence(
        format=records.FORMAT,
        job_uid=owner.job_uid,
        attempt=request.attempt,
        intent_id=request.intent_id,
        lineage_before=request.lineage,
        by=pod_uid,
    )


def _blank(request: PrepareRequest) -> PrepareAnswer:
    return PrepareAnswer(
        attempt=request.attempt,
        intent_id=request.intent_id,
        outcome="wait",
        reason="",
        message="",
        highest=0,
        resume=resume.NONE,
        lineage=request.lineage,
    )
