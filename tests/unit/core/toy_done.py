"""What becomes of the core's actions: API calls act on the toy's objects, requests to sidecars are sent. One function an action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from everstep_operator.core.model import (
    CreatePod,
    Decision,
    DeleteJob,
    DeletePod,
    JobStatus,
    Probe,
    PublishPlan,
    WriteStatus,
)
from unit.core import toy_rules
from unit.core.jobs import pod
from unit.core.toy_operator import REQUESTS
from unit.core.toy_parts import Pod

if TYPE_CHECKING:
    from unit.core.toy_world import World


def apply(world: World, decision: Decision, version: int) -> None:
    """Each action by itself: one that fails keeps no other back."""
    for action in decision.actions:
        if type(action).__name__ in REQUESTS:
            world.operator.send(world, action)
        else:
            EFFECTS[type(action)](world, action, version)


def write(world: World, status: JobStatus, version: int) -> None:
    """R1: compare-and-swap."""
    if version != world.version:  # 409
        return
    toy_rules.check_write(world, status)
    if status.step != world.status.step:
        world.operator.step_written_at = world.now
    world.status, world.version = status, version + 1


def _write(world: World, action: WriteStatus, version: int) -> None:
    world.operator.call_api(world, "WriteStatus", "gpt", lambda: write(world, action.status, version))


def _create(world: World, action: CreatePod, _: int) -> None:
    name = f"gpt-w{action.worker_id}"

    def effect() -> None:
        if name in world.pods:
            return
        world.created += 1
        view = pod(
            action.worker_id, name=name, uid=f"u{action.worker_id}.{world.created}", ip="", node="", phase="Pending",
            sidecar_running=False, plan_attempt=0, avoid=action.avoid, template_hash=world.job.template_hash,
        )  # fmt: skip
        world.pods[name] = world.by_uid[view.uid] = Pod(view, action.avoid, world.now)
        world.wake()

    world.operator.call_api(world, "CreatePod", name, effect)


def _delete(world: World, action: DeletePod, _: int) -> None:
    def effect() -> None:
        p = world.pods.get(action.name)
        if p and p.view.uid == action.uid:
            start_deleting(world, p, force=action.force)

    world.operator.call_api(world, "DeletePod", action.name, effect)


def start_deleting(world: World, p: Pod, *, force: bool = False) -> None:
    """A pod gets its deletionTimestamp; one that runs nowhere, or is forced, goes at once."""
    if p.deleted_at is None:
        p.deleted_at = world.now
    if (not p.view.node or force) and not world.silence.stuck:
        del world.pods[p.view.name]
    world.wake()


def _publish(world: World, action: PublishPlan, _: int) -> None:
    def effect() -> None:
        p = world.pods.get(action.name)
        if p and p.view.uid == action.uid and p.view.plan_attempt == action.seen_attempt < action.plan.attempt:
            p.view = replace(p.view, plan_attempt=action.plan.attempt)
            world.wake()

    world.operator.call_api(world, "PublishPlan", action.name, effect)


def _delete_job(world: World, _: DeleteJob, __: int) -> None:
    def effect() -> None:
        world.gone = True

    world.operator.call_api(world, "DeleteJob", "gpt", effect)


def _probe(world: World, action: Probe, _: int) -> None:
    world.operator.probed.add(action.uid)


EFFECTS: dict[type, Callable[[World, Any, int], None]] = {
    WriteStatus: _write,
    CreatePod: _create,
    DeletePod: _delete,
    PublishPlan: _publish,
    DeleteJob: _delete_job,
    Probe: _probe,
}
