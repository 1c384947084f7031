"""Faults of the toy cluster: each part silent for ever, each kind of message withheld for ever, each kind of action refused for ever.

Kinds come from the protocol and from the core's own types, so that a new one is a new fault. Each fault says what the job must name
where it does not come to rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unit.core import toy_parts
from unit.core.toy_operator import REQUESTS, VERBS
from unit.core.toy_parts import Node
from unit.core.toy_world import World

STORAGE = ("StorageNotShared", "StorageMissing", "StorageHangs", "StorageError")
SAVES = ("CheckpointFailing", "SavesOverdue", "CoordinatorSilent")
WORKERS = ("NotEnoughWorkers", "HalfPlaced", "FewerWorkers", "MoreWorkers", "NotProgressing")
RESTARTS = ("BackOff", "NoProgress", "CrashBudgetExceeded")


@dataclass(frozen=True)
class Victim:
    """One worker, and the node that it is or will be on."""

    worker: int
    node: str

    @property
    def names(self) -> tuple[str, ...]:
        return (f"worker {self.worker}", f"node {self.node}")


@dataclass(frozen=True)
class Fault:
    """`begin` and `end` act on the world; `reasons` and `names`: what a condition must say, one of each."""

    name: str
    begin: Callable[[World, Victim], None]
    end: Callable[[World, Victim], None]
    reasons: tuple[str, ...]
    names: Callable[[Victim], tuple[str, ...]]
    is_head: bool = False  # the victim is the coordinator, or whoever would be


def victim(world: World, *, head: bool) -> Victim:
    """The coordinator, or the worker of the highest id; the first or last id to come where there is none."""
    rows = [row for row in world.status.workers if row.state in ("Wanted", "Joined")]
    run = world.current_run()
    first = world.status.next_worker_id
    ids = [row.id for row in rows] or [first, first + world.job.max_workers - 1]
    if run:
        ids = [m.id for m in run.plan.members]
    worker = (run.plan.coordinator.id if run else min(ids)) if head else max(ids)
    p = world.pods.get(f"gpt-w{worker}")
    return Victim(worker, p.view.node if p and p.view.node else ("n0" if head else "n3"))


def _in_set(part: str, what: Callable[[Victim], Any]) -> tuple[Any, Any]:
    """Put into one of the sets of silent parts, and take out of it."""

    def begin(world: World, who: Victim) -> None:
        getattr(world.silence, part).add(what(who))

    def end(world: World, who: Victim) -> None:
        getattr(world.silence, part).discard(what(who))

    return begin, end


def _flag(part: str) -> tuple[Any, Any]:
    def begin(world: World, _: Victim) -> None:
        setattr(world.silence, part, True)

    def end(world: World, _: Victim) -> None:
        setattr(world.silence, part, False)

    return begin, end


def _everywhere(part: str) -> tuple[Any, Any]:
    def begin(world: World, _: Victim) -> None:
        getattr(world.silence, part).update(world.nodes)

    def end(world: World, _: Victim) -> None:
        getattr(world.silence, part).clear()

    return begin, end


def _power() -> tuple[Any, Any]:
    def begin(world: World, who: Victim) -> None:
        world.power_off(who.node)

    def end(world: World, who: Victim) -> None:
        world.boot(who.node)

    return begin, end


def _kubelet() -> tuple[Any, Any]:
    add, discard = _in_set("kubelets", lambda who: who.node)

    def begin(world: World, who: Victim) -> None:
        world.nodes[who.node] = Node(who.node, world.nodes[who.node].up, world.now)
        add(world, who)

    def end(world: World, who: Victim) -> None:
        world.nodes[who.node] = Node(who.node, world.nodes[who.node].up, world.now)
        discard(world, who)

    return begin, end


def _worker(who: Victim) -> tuple[str, ...]:
    return who.names


def _node(who: Victim) -> tuple[str, ...]:
    return (*who.names, "unreachable")  # the scheduler's word for it, where the pod that has no room is another


def _any_worker(_: Victim) -> tuple[str, ...]:
    return ("worker",)


def _words(*words: str) -> Callable[[Victim], tuple[str, ...]]:
    return lambda _: words


def _by_worker(who: Victim) -> int:
    return who.worker


def _by_node(who: Victim) -> str:
    return who.node


PARTS: dict[str, tuple[tuple[Any, Any], tuple[str, ...]]] = {
    "sidecar hung": (_in_set("sidecars", _by_worker), WORKERS + SAVES),
    "launcher hung": (_in_set("launchers", _by_worker), WORKERS + RESTARTS),
    "container ends": (_in_set("containers", _by_worker), WORKERS + RESTARTS),
    "storage hangs": (_in_set("hanging", _by_node), WORKERS + STORAGE + SAVES),
    "storage apart": (_in_set("apart", _by_node), WORKERS + STORAGE + SAVES),
    "kubelet gone": (_kubelet(), WORKERS),
    "power cut": (_power(), WORKERS),
}
NODES = ("kubelet gone", "power cut")
WHOLE: dict[str, tuple[tuple[Any, Any], tuple[str, ...], Any]] = {
    "storage hangs everywhere": (_everywhere("hanging"), STORAGE + SAVES, _words("/c")),
    "storage missing everywhere": (_everywhere("apart"), STORAGE + SAVES, _words("/c")),
    "storage full": (_flag("full"), STORAGE + SAVES, _words("/c")),
    "storage deletes nothing": (_flag("kept"), (*SAVES, "DeletionFails"), _words("/c")),
    "pods never go": (_flag("stuck"), WORKERS, _any_worker),
    "no room": (_flag("no_room"), WORKERS, _any_worker),
    "operator cut off": (
        _flag("cut_off"),
        (*SAVES, *WORKERS, "WorkersSilent", "StartingAttempt"),
        _words("NetworkPolicy", "the network to it"),
    ),
    "node unknown": (_in_set("unknown", _by_node), WORKERS, _worker),
}
MESSAGE_REASONS = (*WORKERS, *SAVES, *RESTARTS, "WorkersSilent", "StartingAttempt", "Preparing", "RestartingWorkers")
NOT_A_MESSAGE = ("Probe",)  # no answer is awaited: a result that never comes
NOT_AWAITED = {
    "Ping": "a plan is announced, and is on the pod: a ping tells of a higher attempt what both did not",
    "Saved": "the sidecar looks for snapshots by itself (unit/sidecar/test_limits_of_saves.py)",
}


def faults() -> tuple[Fault, ...]:
    """All of them."""
    parts = (
        Fault(f"{name} ({role})", *ways, reasons, _node if name in NODES else _worker, role == "coordinator")
        for name, (ways, reasons) in PARTS.items()
        for role in ("coordinator", "member")
    )
    whole = (Fault(name, *ways, reasons, names) for name, (ways, reasons, names) in WHOLE.items())
    refused = (
        Fault(
            f"{kind} refused",
            *_in_set("refused", lambda _, kind=kind: kind),
            ("ApiRefuses", *WORKERS),
            _words("API server"),
        )
        for kind in toy_parts.actions()
        if kind in VERBS
    )
    withheld = (
        Fault(f"{kind} withheld", *_in_set("withheld", lambda _, kind=kind: kind), MESSAGE_REASONS, _any_worker)
        for kind in sorted(kinds_of_message())
        if kind not in NOT_AWAITED
    )
    return (*parts, *whole, *refused, *withheld)


def kinds_of_message() -> set[str]:
    """All that may never arrive."""
    return {*toy_parts.routes().values(), *toy_parts.local_messages(), *NOT_A_MESSAGE}


def unknown_actions() -> set[str]:
    """Kinds of action that are neither API calls nor requests here: the toy must learn them first."""
    return set(toy_parts.actions()) - set(VERBS) - set(REQUESTS) - set(NOT_A_MESSAGE)
