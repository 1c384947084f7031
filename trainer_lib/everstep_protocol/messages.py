"""What goes over HTTP: operator to sidecar, sidecar to sidecar. Every body is one of these dataclasses as JSON (`codec`).

All of it is POST on `names.PORT_API` except GET /v1/status; requests and answers are authenticated as `auth` says.

| path | from -> to | request -> answer |
|---|---|---|
| /v1/prepare | operator -> new coordinator | PrepareRequest -> PrepareAnswer |
| /v1/sight | operator or preparing sidecar -> any pod of the job | SightRequest -> Sight |
| /v1/announce | operator or preparing sidecar -> any pod of the job | Announce -> Ack |
| /v1/hello | member -> coordinator | Hello -> HelloAnswer (held until go, or until the attempt is over) |
| /v1/save | member -> coordinator | SaveNotice -> SaveAnswer |
| /v1/exited | member -> coordinator | Exited -> Ack |
| /v1/state | member -> coordinator | MemberState -> Ack (on change, and every second) |
| /v1/stop | coordinator -> member | StopOrder -> StopAnswer |
| /v1/leave | operator -> coordinator | LeaveRequest -> Ack |
| /v1/exit | operator -> any pod of the job | ExitRequest -> Ack |
| /v1/poll | operator -> coordinator, or any member | PollRequest -> SidecarStatus (held until something changed) |
| /v1/ping | peer -> peer | Ping -> Ack |
| GET /status | people, read only, unsigned | -> SidecarStatus, without anything that trainers said |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from everstep_protocol.lineage import Lineage
from everstep_protocol.plan import Plan, Resume
from everstep_protocol.resume import Refusal

FORMAT = 1


@dataclass(frozen=True)
class Peer:
    """Where a pod of the job can be reached."""

    uid: str
    ip: str


@dataclass(frozen=True)
class Trouble:
    """What does not work at present. Part of an answer that must come whether it works or not."""

    reason: str  # one word: ENOSPC, EIO, ...; StorageNotShared, StorageHangs, SavesOverdue, DeletionFails, StateRefused, ...
    message: str  # a sentence: what, where (worker, node, path), what to do
    age_seconds: float  # since it began


@dataclass(frozen=True)
class SightRequest:
    """R11, R17: does this pod see the storage on which the fence of this attempt and intent stands? Answered within 2 s, whatever hangs.

    Of mounts that are all apart each may hold a fence of that number and intent: who raised it tells them apart.
    """

    attempt: int
    intent_id: str
    raised_by: str = ""  # UID of the pod whose fence it must be; empty: not known


@dataclass(frozen=True)
class Sight:
    """What a pod could do for an attempt now. What it cannot see is its mount's fault, never a checkpoint's."""

    uid: str
    storage: Trouble | None  # StorageNotShared, StorageError, StorageHangs; None: it sees this job's storage
    launcher: bool  # its launcher is connected: the trainer container runs
    highest: int = 0


@dataclass(frozen=True)
class PrepareRequest:
    """R4: fence everything before `attempt`, then look, then choose. Repeated with the same intent it gives the same answer or a newer look."""

    attempt: int
    intent_id: str
    lineage: Lineage
    last_attempt: int  # `resume.Question.last_attempt`
    condemned: tuple[str, ...]
    bad: tuple[str, ...]
    ever: bool
    storage_known: bool  # status knows an attempt: the owner file must be there (R11)
    resume_from: str | None
    peers: tuple[Peer, ...]  # all live pods of the job: they are told "attempt n announced"
    expected: tuple[
        str, ...
    ] = ()  # UIDs of those that may become members: their `Sight` is asked for, and waited for a while


@dataclass(frozen=True)
class CheckpointInfo:
    """A complete checkpoint on storage."""

    id: str
    dir: str
    attempt: int
    step: int
    bytes: int
    committed_at: str = ""  # RFC 3339; for people only (R27)


@dataclass(frozen=True)
class PrepareAnswer:
    """What the fencing sidecar found.

    `ready`: `resume` and `lineage` may become the plan's. `fenced`: a higher fence exists, its number is `highest`; take a new
    number. `wait`: nothing may be decided now (storage missing, I/O error): ask again. `stop`: never by itself (owned by another
    job, no usable checkpoint left): a person must act. `busy`: the look is under way; the same question again gives its answer,
    which is kept by number and intent.
    """

    attempt: int
    intent_id: str
    outcome: Literal["ready", "fenced", "wait", "stop", "busy"]
    reason: (
        str  # one word: Newest, StorageMissing, StorageOwnedByAnother, NoUsableCheckpoint, FinishedRunInStorage, ...
    )
    message: str
    highest: int
    resume: Resume
    lineage: Lineage
    checkpoints: tuple[CheckpointInfo, ...] = ()  # all complete ones of this job, on the lineage or not
    refused: tuple[Refusal, ...] = ()
    sights: tuple[Sight, ...] = ()  # of those expected that answered, the answering pod itself included
    raised_by: str = ""  # UID of the pod that raised the fence which this one sees: another one, where it asked before with this intent
    progress_age_seconds: float = 0.0  # `busy`: since the storage last got on with it


@dataclass(frozen=True)
class Announce:
    """R23: attempt n exists: older ones stop at once. With the plan when there is one; a pod that is not in it stops and waits."""

    attempt: int
    plan: Plan | None = None


@dataclass(frozen=True)
class Ack:
    """Received. `highest` is the highest attempt that the answering pod has seen (R23): whoever sees a higher one stops its trainer.

    `finished`, in the coordinator's answer to a MemberState: the job is finished and its last commit is confirmed (R31).
    """

    highest: int
    finished: bool = False


@dataclass(frozen=True)
class Problem:
    """The body of every signed answer with a status other than 200: what is wrong and what to do, and R23's number."""

    error: str
    highest: int
    boot: str = ""  # of the answering process: a request that was meant for an earlier one is refused, and may be sent again to this


@dataclass(frozen=True)
class Hello:
    """R7: this member's old processes are gone, its part of the resume checkpoint is verified, it is ready to start attempt n."""

    attempt: int
    plan_id: str
    nonce: str  # boot nonce of its launcher
    bad: tuple[str, ...] = ()  # ids of checkpoints whose hash did not match (R17): then the attempt is over


@dataclass(frozen=True)
class HelloAnswer:
    """`go`: start now, once. `over`: never start this attempt, wait for a new plan."""

    answer: Literal["go", "over"]
    master_addr: str = ""
    master_port: int = 0
    highest: int = 0


@dataclass(frozen=True)
class SaveNotice:
    """`ready`: ranks [lo, hi) are whole in memory. `durable`: their files and rank records are fsynced in the temporary directory."""

    attempt: int
    plan_id: str
    step: int
    ranks: tuple[int, int]
    stage: Literal["ready", "durable", "failed"]
    reason: str = ""  # of `failed`: ENOSPC, EIO, ...


@dataclass(frozen=True)
class SaveAnswer:
    """`write`: the temporary directory is there, write into it. `committed`: done, drop the snapshot.

    `drop`: this save is given up. `wait`: ask again.
    """

    answer: Literal["write", "committed", "drop", "wait"]
    highest: int


@dataclass(frozen=True)
class Exited:
    """The first process of a member that ended badly in this attempt (R32: the coordinator decides which cause counts)."""

    attempt: int
    rank: int
    cause: Literal["crash", "peer-lost", "launcher-gone"]
    exit_code: int | None
    signal: int | None
    oom_killed: bool
    last_lines: str  # at most 2 KiB
    age_seconds: float  # since it died, by the sender's monotonic clock
    finished_step: int = (
        -1
    )  # the last step that the script asked for, where all ranks of the pod had finished it; -1: not so far
    leaving: bool = (
        False  # its launcher got SIGTERM: told with the end that it explains, so that neither is known alone
    )
    refused: bool = (
        False  # it can never work, as the last lines say: not the script failed, but what starts it is wrong
    )


@dataclass(frozen=True)
class MemberState:
    """What a member's sidecar knows of its own trainers, for the coordinator's summary."""

    attempt: int
    # waiting: no part in the attempt yet, or none any more; preparing: it verifies its part of the resume, and gets on with it
    state: Literal["waiting", "preparing", "starting", "running", "saving", "stopped", "finished"]
    step: int  # newest finished step of its ranks; -1: none reported
    lost_peers: dict[str, float]  # pod UID -> seconds since the kernel lost its keepalive connection
    stopped_step: int = -1  # state `stopped`: the step at which save-and-stop ended
    leaving: bool = False  # its launcher got SIGTERM: the pod is going
    trouble: Trouble | None = None  # what keeps this member from its part: its mount, its storage, its save
    bytes_age_seconds: float | None = (
        None  # since bytes of a save last reached the storage from here; None: nothing is being saved
    )
    finished_step: int = -1  # state `finished`: the step whose checkpoint must be on storage (R31); -1: none was saved
    idle_seconds: float | None = None  # without the library: since its trainers' last sign of life; None: not known


@dataclass(frozen=True)
class StopOrder:
    """R19, two rounds, so that all ranks stop at one step: `propose` (ranks that reach it wait), then `confirm` or `withdraw`."""

    attempt: int
    step: int
    order: Literal["propose", "confirm", "withdraw"]


@dataclass(frozen=True)
class StopAnswer:
    """`agreed`: none of this member's ranks had passed the step when it was proposed. `past`: name another; `step` is the newest."""

    answer: Literal["agreed", "past", "no-library"]
    step: int


@dataclass(frozen=True)
class LeaveRequest:
    """R19: save and stop the attempt at a step that all agree on, within the deadline (seconds from receipt)."""

    attempt: int
    deadline_seconds: float


@dataclass(frozen=True)
class Ping:
    """A look at a peer, with the highest attempt seen (R23)."""

    highest: int


@dataclass(frozen=True)
class PollRequest:
    """R13: the condemned ids go with the poll. The answer comes when `version` differs from the sidecar's, or after `wait_seconds`."""

    version: str | None
    wait_seconds: float
    attempt: int
    condemned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Training:
    """This pod's own trainers, by their own monotonic clock, read from shared memory when the answer was made (R25)."""

    library: bool  # they report steps; False: the script never made an everstep.Checkpointer
    step: int  # newest finished step, -1: none yet
    # since it finished, or since the trainers' start; without the library: since the launcher last told a sign of life (CPU time used,
    # something printed), in the coordinator's answer any member's
    age_seconds: float
    usual_seconds: float  # a step's usual time, 0: not known
    phase: Literal["none", "starting", "loading", "training", "saving", "stopped", "finished"]


@dataclass(frozen=True)
class MemberSummary:
    """A member as the coordinator sees it."""

    uid: str
    state: Literal[
        "absent", "preparing", "ready", "running", "stopped", "finished"
    ]  # preparing: no hello yet, but it verifies its part of the resume and gets on with it
    lost_by: int  # how many other members' kernels lost their connection to it
    asked: int  # how many other members were asked
    leaving: bool = False  # its launcher got SIGTERM: the pod is going
    trouble: Trouble | None = None  # as it said itself
    heard_age_seconds: float | None = None  # since it last said anything to the coordinator; None: it never did


@dataclass(frozen=True)
class Over:
    """R7, R32: the attempt has ended, and why. The operator makes the next one."""

    cause: Literal["crash", "hang", "peer-lost", "not-started", "bad-checkpoint", "stopped", "launcher-gone"]
    message: str  # one sentence
    uid: str = ""  # pod of the first cause
    rank: int = -1
    step: int = -1  # cause `stopped`: the step that was saved; committed when it is the newest checkpoint
    bad: tuple[str, ...] = ()
    age_seconds: float = 0.0  # since then, when the answer was made
    details: str = ""  # the last lines of the rank that died first: never told without a signature
    oom: bool = False  # cause `crash`: for want of memory
    refused: bool = False  # cause `crash`: it can never work, as `details` say


@dataclass(frozen=True)
class SidecarStatus:
    """The answer to a poll, and what /status serves to people. Version 1 of the format; later ones only add."""

    format: int
    version: str  # opaque; changes whenever something changed that is worth an answer
    pod_uid: str
    highest: int  # highest attempt seen
    attempt: int  # of the plan that it obeys, 0: none
    plan_id: str
    role: Literal["none", "member", "coordinator"]
    gone: bool  # coordinator: go was given
    finished: bool  # coordinator: all members finished and nothing is left to commit (R31)
    late_seconds: float  # by how much its own loop was late, worst of the last seconds (R26)
    training: Training
    members: tuple[MemberSummary, ...] = ()  # coordinator only
    lost_peers: dict[str, float] = field(default_factory=dict)  # this pod's own view: pod UID -> seconds
    over: Over | None = None
    checkpoints: tuple[CheckpointInfo, ...] = ()  # coordinator: all complete ones that it knows on storage
    deleted: tuple[str, ...] = ()  # condemned ids that are gone
    failing: Trouble | None = None
    num_skipped_saves: int = 0
    num_failed_saves: int = 0  # that never became whole in memory
    storage: Trouble | None = None  # this pod's own calls into the storage fail, or have not returned for seconds
    bytes_age_seconds: float | None = None  # coordinator: least of all members' that save; None: nobody saves


@dataclass(frozen=True)
class ExitRequest:
    """The job has failed, nothing follows `attempt`: end the trainers and let the pod end by itself, so that its logs stay."""

    attempt: int
    why: str  # for people: the pod's last words
