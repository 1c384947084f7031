"""What the toy cluster is made of: nodes, pods, storage, one attempt's run. Any of them may be silent for ever."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import dataclass, field

from everstep_operator.core import model
from everstep_operator.core.model import PodView
from everstep_protocol import local, messages
from everstep_protocol.messages import CheckpointInfo, Over, Trouble
from everstep_protocol.plan import Member, Plan

STEPS_PER_TICK = 2
STEPS_PER_SAVE = 20
CUT_IS_SEEN = 3.0  # seconds until the kernel's keepalive and two probes tell a host that is cut off
LONG_AGO = -1000.0


def routes() -> dict[str, str]:
    """Path -> request, of every message between pods and the operator, from the protocol's own table."""
    rows = [line.split("|") for line in (messages.__doc__ or "").splitlines() if line.startswith("| /v1/")]
    return {row[1].strip(): row[3].split("->")[0].strip() for row in rows}


def local_messages() -> tuple[str, ...]:
    """Everything that sidecar, launcher and trainers say to each other."""
    return tuple(kind.__name__ for kind in typing.get_args(local.Message))


def actions() -> tuple[str, ...]:
    """Everything that the core can decide to do."""
    return tuple(kind.__name__ for kind in typing.get_args(model.Action))


@dataclass
class Silence:
    """Which parts answer nobody, or refuse, for as long as they are named here."""

    sidecars: set[int] = field(default_factory=set)  # worker ids: connections are accepted, nothing is answered
    launchers: set[int] = field(default_factory=set)  # worker ids: they and their trainers stand still
    containers: set[int] = field(default_factory=set)  # worker ids whose trainer container ends at once, each time
    kubelets: set[str] = field(default_factory=set)  # nodes: pods neither start nor end, all else goes on
    hanging: set[str] = field(default_factory=set)  # nodes whose mount answers no call
    apart: set[str] = field(default_factory=set)  # nodes whose mount is not the job's storage
    unknown: set[str] = field(default_factory=set)  # nodes that the operator's watch does not bring
    full: bool = False  # the storage takes no more
    kept: bool = False  # the storage deletes nothing
    stuck: bool = False  # pods that are being deleted never go
    no_room: bool = False  # no new pod is scheduled
    cut_off: bool = False  # the operator reaches no pod
    refused: set[str] = field(default_factory=set)  # kinds of action that the API server refuses
    withheld: set[str] = field(default_factory=set)  # kinds of message that never arrive
    awaited: set[str] = field(default_factory=set)  # kinds of message that anything ever depended on

    def withholds(self, *kinds: str) -> bool:
        """Whether one of these messages never arrives."""
        self.awaited.update(kinds)
        return not self.withheld.isdisjoint(kinds)


@dataclass
class Node:
    """`up`: power and network."""

    name: str
    up: bool = True
    changed_at: float = LONG_AGO  # when its kubelet was last heard first, or not heard first


@dataclass
class Storage:
    """What one mount shows: the job's storage, or an empty folder of one node."""

    owned: bool = False
    fences: dict[int, str] = field(default_factory=dict)  # attempt -> intent
    raised_by: dict[int, str] = field(default_factory=dict)  # attempt -> UID of the pod whose fence it is
    checkpoints: dict[str, CheckpointInfo] = field(default_factory=dict)


@dataclass
class Pod:
    """A pod with its sidecar, its launcher and its trainers."""

    view: PodView
    avoid: tuple[str, ...]
    created_at: float
    started_at: float | None = None
    obeys: int = 0  # attempt whose plan its sidecar has
    ran: int = 0  # attempt whose trainers were started here last; 0: none since the container's start
    launcher_starts: int = 0  # as a boot nonce tells them apart
    connected: bool = False  # its launcher said hello to its sidecar
    deleted_at: float | None = None
    grace: int = 5
    container_ended_at: float | None = None  # its trainer container is down since then
    is_exiting: bool = False  # its sidecar was told that the job has failed


@dataclass
class Run:
    """One attempt: its coordinator's book, and how far its trainers are."""

    plan: Plan
    step: int
    stepped_at: float
    lived_at: float = 0.0  # when a launcher last told that its trainers do something
    hellos: dict[str, int] = field(default_factory=dict)  # pod UID -> start of the launcher that it spoke for
    gone: bool = False
    heard: dict[str, float] = field(default_factory=dict)  # pod UID -> when its sidecar last told its state
    crashed: bool = False
    over: Over | None = None
    over_at: float = 0.0
    finished: bool = False
    due: list[tuple[int, float]] = field(default_factory=list)  # steps to be saved, and since when
    committed_at: float | None = None
    leave_until: float | None = None
    stop_step: int = -1
    failing: Trouble | None = None
    failing_since: float = 0.0

    def still(self, now: float) -> float:
        """Seconds without a step."""
        return now - self.stepped_at

    @property
    def coordinator(self) -> str:
        return self.plan.coordinator.uid

    def others(self) -> Iterator[Member]:
        """Members but the coordinator."""
        return (member for member in self.plan.members if member.uid != self.coordinator)

    @property
    def is_stopped(self) -> bool:
        """R19: all ranks wait at the step that was agreed on."""
        return 0 <= self.stop_step <= self.step

    def stage(self, until: int) -> str:
        """One word on how far it is."""
        if self.over:
            return f"over-{self.over.cause}"
        if self.finished or self.step >= until:
            return "finished" if self.finished else "finishing"
        if self.crashed:
            return "crashed"
        if self.stop_step >= 0:
            return "stopped" if self.is_stopped else "stopping"
        if self.leave_until is not None:
            return "leaving"
        if not self.gone:
            return "hello" if self.hellos else "planned"
        if self.step == self.plan.resume.step:
            return "go"
        return "training" if self.committed_at is not None else "stepping"
