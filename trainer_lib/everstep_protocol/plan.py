"""The plan: the document that describes one attempt, written by the operator, obeyed by sidecars and launchers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from everstep_protocol import codec
from everstep_protocol.lineage import Lineage

FORMAT = 1

Cause = Literal[
    "start",  # the job's first attempt
    "resume",  # after suspension
    "crash",  # a trainer died, or its container did
    "oom",  # a trainer, or its whole container, was killed for want of memory
    "evicted",  # the kubelet ended the pod for what the pod itself used beyond its own limits
    "pod-restart",  # the pod's sandbox died, and the kubelet started all of its containers anew
    "hang",  # no step for too long, nothing else wrong
    "node-lost",
    "drain",  # a pod was deleted or evicted with grace
    "preemption",
    "grow",
    "shrink",  # spec.workers was lowered
    "template",
    "bad-checkpoint",  # a hash mismatch in the checkpoint that was to be loaded
    "not-delivered",  # a member never got the plan, or never said hello
    "storage",
]


@dataclass(frozen=True)
class Resume:
    """Where an attempt begins. `none`: step 0, `dir` and `id` empty, attempt and step 0."""

    kind: Literal["none", "checkpoint", "memory", "import"]
    id: str = ""  # manifest id; empty for `import`
    dir: str = ""  # name of the directory, relative to the job's storage path
    attempt: int = 0
    step: int = 0


@dataclass(frozen=True)
class Member:
    """One worker of an attempt. R22: it is its pod's UID at this IP, nothing less."""

    id: int
    uid: str
    ip: str
    node: str
    ranks: tuple[int, int]  # first, one past the last


@dataclass(frozen=True)
class Coordinator:
    """The member whose sidecar fences, says go and commits. It holds rank 0."""

    id: int
    uid: str
    ip: str
    port: int


@dataclass(frozen=True)
class SaveInterval:
    """When to save, whichever comes first; None: not by this measure. Both None: only when told, and at the end."""

    steps: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Plan:
    """An attempt in full. It never changes: another set of members, ranks or coordinator is another plan (R2, R3)."""

    format: int
    job_uid: str
    attempt: int
    plan_id: str  # digest of all the rest
    intent_generation: int
    template_hash: str
    world: int  # number of ranks
    coordinator: Coordinator
    members: tuple[Member, ...]
    resume: Resume
    lineage: Lineage
    cause: Cause
    interval: SaveInterval

    def member(self, uid: str) -> Member | None:
        """The member with this pod UID, or None for a stranger."""
        return next((member for member in self.members if member.uid == uid), None)


def sealed(plan: Plan) -> Plan:
    """The plan with its `plan_id` filled in."""
    return codec.sealed(plan, "plan_id")


def parse_plan(text: str | bytes) -> Plan:
    """The plan in an annotation or a file. Raises InvalidDocument: wrong fields, another format, an id that is not its own."""
    return codec.loads_sealed(Plan, text, known_format=FORMAT, id_field="plan_id")
