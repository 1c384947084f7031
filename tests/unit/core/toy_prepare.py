"""R4, R5, R11 in the toy: a sidecar fences on its own mount, looks, asks the others what they see, and chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everstep_operator.core.model import Prepare
from everstep_protocol.lineage import cut, is_on
from everstep_protocol.messages import PrepareAnswer, PrepareRequest, Sight, Trouble
from everstep_protocol.plan import Resume
from unit.core.toy_parts import Pod, Storage

if TYPE_CHECKING:
    from unit.core.toy_world import World

NONE = Resume("none")


def is_busy(world: World, action: Prepare) -> bool:
    """Whether the look makes no progress."""
    p = world.pod(action.uid)
    return p is not None and p.view.node in world.silence.hanging


def prepare(world: World, action: Prepare) -> PrepareAnswer | None:
    """The answer of this pod's sidecar; None: the pod is gone meanwhile."""
    p, request = world.pod(action.uid), action.request
    if p is None:
        return None
    if is_busy(world, action):
        began = world.looks.setdefault((request.attempt, request.intent_id, action.uid), world.now)
        where = f"worker {p.view.worker_id} on node {p.view.node}"
        return _answer(
            request, "busy", "StorageHangs", f"the storage at /c of {where} does not answer; check its server and mount",
            sights=_sights(world, request), progress_age_seconds=world.now - began + 5.0,
        )  # fmt: skip
    storage = world.storage_of(p.view.node)
    if request.storage_known and not storage.owned:
        why = f"worker {p.view.worker_id} on node {p.view.node}: no everstep.json at /c; mount the job's claim there"
        return _answer(request, "wait", "StorageMissing", why, sights=_sights(world, request))
    higher = max(storage.fences, default=0)
    if higher > request.attempt or storage.fences.get(request.attempt, request.intent_id) != request.intent_id:
        return _answer(request, "fenced", "Newest", "", highest=higher)
    if world.silence.full and request.attempt not in storage.fences:
        why = f"worker {p.view.worker_id} on node {p.view.node} cannot write to /c: no space left; free or add space"
        return _answer(request, "wait", "StorageError", why, sights=_sights(world, request))
    _fence(world, storage, request, p.view.uid)
    return _choose(world, storage, request)


def _fence(world: World, storage: Storage, request: PrepareRequest, uid: str) -> None:
    storage.owned = True
    storage.fences[request.attempt] = request.intent_id
    storage.raised_by.setdefault(request.attempt, uid)
    if world.run and world.run.plan.attempt < request.attempt and storage is world.places["shared"]:
        world.run = None  # the fence took its commits away


def _choose(world: World, storage: Storage, request: PrepareRequest) -> PrepareAnswer:
    found = storage.checkpoints.values()
    on = [
        c
        for c in found
        if is_on(request.lineage, (c.attempt, c.step), current=request.last_attempt) and c.id not in request.condemned
    ]
    raised_by = storage.raised_by[request.attempt]
    sights = _sights(world, request, raised_by)
    if not on and request.ever:
        assert storage is not world.places["shared"], "a job that had a checkpoint would start at 0"
        why = "no usable checkpoint is left at /c; restore one or set spec.resumeFrom"
        return _answer(request, "stop", "NoUsableCheckpoint", why, sights=sights)
    best = max(on, key=lambda c: (c.attempt, c.step), default=None)
    resume = Resume("checkpoint", best.id, best.dir, best.attempt, best.step) if best else NONE
    world.answers.add((request.attempt, resume))
    return _answer(
        request, "ready", "Newest", "", highest=request.attempt, resume=resume,
        lineage=cut(request.lineage, (resume.attempt, resume.step)), checkpoints=tuple(found), sights=sights,
        raised_by=raised_by,
    )  # fmt: skip


def _answer(request: PrepareRequest, outcome: Any, reason: str, message: str, **rest: Any) -> PrepareAnswer:
    given = {"highest": request.attempt, "resume": NONE, "lineage": (), **rest}
    return PrepareAnswer(request.attempt, request.intent_id, outcome, reason, message, **given)


def _sights(world: World, request: PrepareRequest, raised_by: str = "") -> tuple[Sight, ...]:
    asked = (world.pod(uid) for uid in request.expected)
    return tuple(
        sight(world, p, request.attempt, raised_by)
        for p in asked
        if p and world.speaks(p.view.uid) and not world.silence.withholds("SightRequest")
    )


def sight(world: World, p: Pod, attempt: int, raised_by: str) -> Sight:
    """R11: what a pod says of its own mount."""
    trouble = storage_trouble(world, p, attempt, raised_by)
    return Sight(p.view.uid, trouble, p.connected and world.hears_launcher(p), p.obeys)


def storage_trouble(world: World, p: Pod, attempt: int, raised_by: str = "") -> Trouble | None:
    """Why this pod does not see the fence of the attempt on its mount; `raised_by`: whose it must be, empty: anybody's."""
    where = f"worker {p.view.worker_id} on node {p.view.node}"
    if p.view.node in world.silence.hanging:
        return Trouble("StorageHangs", f"{where}: /c does not answer; check the storage's server and the mount", 5.0)
    storage = world.storage_of(p.view.node)
    if attempt and (attempt not in storage.fences or raised_by not in ("", storage.raised_by[attempt])):
        return Trouble(
            "StorageNotShared", f"{where} does not see the job's storage at /c; mount the same claim there", 5.0
        )
    return None
