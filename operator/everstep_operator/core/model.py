"""The contract between the edges and the core: what is seen of one job (`Observed`) and what is decided (`Decision`).

Frozen values only. Ages are seconds by the observer's own monotonic clock (R27); the only wall-clock values are `Observed.now`
(crash window, deadline, TTL) and strings for people.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from everstep_protocol.lineage import Lineage
from everstep_protocol.messages import PrepareAnswer, PrepareRequest, SidecarStatus, Sight
from everstep_protocol.names import PORT_API
from everstep_protocol.plan import Cause, Plan, SaveInterval

# ---------------------------------------------------------------- what the user wants


@dataclass(frozen=True)
class RestartPolicy:
    """Crash budget: more than `max_crashes` within `window_seconds` fails the job.

    So do `max_without_progress` crash attempts in a row without a commit.
    """

    max_crashes: int = 5
    window_seconds: float = 3600.0
    max_without_progress: int = 3


@dataclass(frozen=True)
class JobSpec:
    """A valid spec, parsed once (`api`)."""

    min_workers: int
    max_workers: int
    processes_per_worker: int
    template_hash: str
    interval: SaveInterval
    keep_last: int
    restart: RestartPolicy = RestartPolicy()
    suspend: bool = False
    resume_from: str | None = None
    active_deadline_seconds: float | None = None
    ttl_seconds_after_finished: float | None = None
    grace_seconds: float = 30.0
    grow_interval_seconds: float | None = None  # least time between two restarts for growth; None: by what one costs


@dataclass(frozen=True)
class Settings:
    """The operator's timers, in seconds, and bounds. PROTOCOL calls them guesses: measure before changing."""

    start_window: float = 30.0  # with `min` usable, how long a start waits for the rest
    hello_deadline: float = 15.0  # R28: a member without hello after this is left out
    start_deadline: float = 600.0  # R7: go -> first step; where none is reported: -> first sign of life
    hang_deadline: float = 600.0  # T alone
    storage_deadline: float = 60.0  # a coordinator whose storage makes no progress for so long is replaced by another
    coordinator_deadline: float = 120.0  # one that answers nobody while others do: nothing is saved meanwhile
    kubelet_deadline: float = (
        300.0  # K alone, for a pod that is in no running attempt: as long as Kubernetes itself waits
    )
    restart_wait: float = 15.0  # for so long an attempt waits for a trainer container that the kubelet starts again
    sight_retry: float = 10.0  # how often a pod that does not see the storage is asked again
    training_silence: float = 3.0  # R25 T: no step for max(3 x usual, this)
    failed_probes: int = 2  # R25 N
    victim_wait: float = (
        4.0  # R32: connections broke and nobody said why: so long a lost node or pod is looked for, then it is a crash
    )
    node_ready: float = 10.0  # a returning node takes members after being Ready this long
    grow_settle: float = 3.0  # how long a joiner must be usable before the job is stopped for it
    leave_margin: float = 5.0  # R19: save-and-stop ends this long before the grace does
    grow_deadline: float = 120.0  # a save-and-stop for a planned change that takes longer is given up and tried later
    late_loop: float = 5.0  # R26
    step_write: float = 10.0  # status.step is written at most this often
    history: int = 20
    max_attempts_without_commit: int = 10
    backoff_after: int = 3  # attempts in a row without a commit before restarts back off (R32)
    backoff_first: float = 5.0
    backoff_most: float = 300.0
    wait_retry: float = 2.0  # an answer `wait` to prepare is asked for again after this
    stop_retry: float = 30.0  # an answer `stop` too
    start_on_node: float = 120.0  # what only a node is to blame for is borne for so long, then another node is tried
    start_verdict: float = (
        60.0  # what can never start fails the job after so long where the kubelet does not try again,
    )
    start_tries: int = 3  # and after so many restarts where it does
    replace_failed: float = 10.0  # a pod that failed before it was ever a member is replaced when it is this old
    finish_grace: float = 30.0  # pods that still run so long after Complete or Failed are deleted
    half_placed: float = 60.0  # a job below min that holds room and finds no more says so after this
    grow_wait: float = 120.0  # so long a worker that could join waits for those that are on their way to a node
    grow_least: float = 30.0  # the shortest interval between two restarts for growth, where the user says none
    grow_most: float = 3600.0  # and the longest, whatever a restart costs
    plain_start: float = 20.0  # a script without the library trains when it shows a sign of life so long after go
    api_port: int = PORT_API  # of sidecars in new pods; no timer, set from EVERSTEP_API_PORT


# ---------------------------------------------------------------- status (what was decided so far)


@dataclass(frozen=True)
class AttemptStatus:
    """`status.attempt`. `Preparing` promises no members (R3); from `Planned` on, `plan` is the truth, word for word."""

    number: int
    state: Literal["Preparing", "Planned", "Started", "Ended"]
    intent_id: str
    cause: Cause
    intent_generation: int
    plan: Plan | None = None
    ended: str = ""  # why, when state is Ended: suspended, finished, failed
    failure_at: str = ""  # RFC 3339, for people: when what caused this attempt happened
    message: str = ""  # what happened, for people
    fenced_by: str = ""  # UID of the pod that raised its fence, from `Planned` on: who sees another's fence sees another storage (R11)
    ask_last: str = ""  # UID of the pod whose storage failed the attempt before: another one prepares and coordinates, if there is one
    go_at: str = ""  # RFC 3339, for people: when we heard of go
    training_at: str = ""  # RFC 3339: when we heard that something trains: empty: not yet


@dataclass(frozen=True)
class WorkerStatus:
    """`status.workers[]` (R20): an id is given once. `Lost` ids count 0; `Finished` survives its pod's end."""

    id: int
    state: Literal["Wanted", "Joined", "Leaving", "Lost", "Finished"]
    node: str = ""


@dataclass(frozen=True)
class NewestCheckpoint:
    """`status.checkpoints.newest`."""

    id: str
    dir: str
    attempt: int
    step: int
    committed_at: str
    bytes: int


@dataclass(frozen=True)
class CheckpointStatus:
    """`status.checkpoints`."""

    ever: bool = False
    newest: NewestCheckpoint | None = None
    condemned: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()


@dataclass(frozen=True)
class Crash:
    """One crash that spends the budget."""

    attempt: int
    at: str  # RFC 3339


@dataclass(frozen=True)
class Budget:
    """`status.budget`."""

    crashes: tuple[Crash, ...] = ()  # the last 20, or max_crashes + 1 where that is more
    without_progress: int = 0  # crash attempts in a row without a commit
    attempts_without_commit: int = 0  # attempts of any cause without a commit


@dataclass(frozen=True)
class StageSeconds:
    """Seconds from the failure to each stage; None: not reached, or not known."""

    detected: float | None = None
    planned: float | None = None
    first_step: float | None = None


@dataclass(frozen=True)
class HistoryEntry:
    """`status.history[]`: for people only, no rule reads it. The last 20 attempts."""

    number: int
    cause: Cause
    world_size: int
    resumed_step: int
    steps_lost: int | None
    seconds: StageSeconds
    nodes: tuple[str, ...]
    message: str = ""
    started_at: str = ""
    ended_at: str = ""
    num_workers: int = 0  # members of its plan; `nodes` has their nodes only where they are few


@dataclass(frozen=True)
class Growth:
    """`status.growth`: what joining costs, and when it was done last."""

    restart_seconds: float | None = None  # how long the job stood still for the last restart that it chose itself
    grown_at: str = ""  # RFC 3339: when it was last stopped to take in more workers


Restarts = dict[str, int]  # cause -> number, with `total`


@dataclass(frozen=True)
class JobStatus:
    """All of status that rules read or that is carried on. Phase, conditions and columns are made from a Decision by `cluster.report`."""

    attempt: AttemptStatus | None = None
    next_worker_id: int = 0
    workers: tuple[WorkerStatus, ...] = ()
    lineage: Lineage = ()
    last_attempt: int = 0  # last attempt that was Planned: its own checkpoints count (R9)
    checkpoints: CheckpointStatus = CheckpointStatus()
    budget: Budget = Budget()
    history: tuple[HistoryEntry, ...] = ()
    restarts: Restarts = field(default_factory=lambda: {"total": 0})
    step: int = -1
    honoured_resume_generation: int = 0  # generation whose spec.resumeFrom was obeyed
    honoured_resume_from: str = (
        ""  # and its value: the same value in a later generation is not obeyed again; empty once it was taken out
    )
    started_at: str = ""  # RFC 3339: for activeDeadlineSeconds
    completed_at: str = ""  # for ttlSecondsAfterFinished
    result: Literal["", "Complete", "Failed"] = ""
    result_reason: str = ""
    result_message: str = ""
    growth: Growth = Growth()


# ---------------------------------------------------------------- what is there


@dataclass(frozen=True)
class Hindrance:
    """A container that does not come up, or does not stay up, in the kubelet's words."""

    container: str
    reason: str  # of its waiting state, or of its last end: ErrImagePull, StartError, Error ...
    message: str
    restarts: int = 0


@dataclass(frozen=True)
class PodView:
    """One pod of this job (by owner UID), trimmed."""

    name: str
    uid: str
    resource_version: str
    worker_id: int
    ip: str
    node: str
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
    sidecar_running: bool  # the sidecar container is started: it can be asked
    deletion_age_seconds: float | None  # since we first saw a deletionTimestamp, None: not being deleted
    deletion_grace_seconds: float | None
    disruption: str  # reason of a True DisruptionTarget condition, else empty
    trainer_terminated: (
        bool  # the trainer container is terminated and will not be started again (phase terminal or restart pending)
    )
    trainer_restarts: int
    termination_message: str  # JSON of `local.TerminationMessage` from the last termination, else free text
    template_hash: str
    plan_attempt: int  # annotation, 0: none
    avoid: tuple[
        str, ...
    ]  # nodes that its affinity excludes because of us: when none is suspect any more, a pending pod is made anew
    unschedulable: str  # message of PodScheduled=False, else empty
    hindrance: Hindrance | None  # of its first container that cannot start, None: there is none
    age_seconds: float
    sidecar_age_seconds: float = math.inf  # since we first saw `sidecar_running` with an IP: for `Settings.grow_settle`
    unstarted_seconds: float = (
        0.0  # since it was bound to its node without having come up, or since it stays up no more
    )
    ended_as: str = ""  # `reason: message` of a pod that ended: Evicted, UnexpectedAdmissionError, OutOfcpu ...
    image: str = ""  # of Everstep's own containers
    api_port: int = 0  # that its sidecar listens on; 0: not known
    trainer: str = ""  # name of the trainer container
    trainer_end: str = ""  # reason of the trainer container's last end: OOMKilled, Error, StartError ...
    trainer_end_age_seconds: float = math.inf  # since we saw that


@dataclass(frozen=True)
class NodeView:
    """One node that holds, or could hold, a pod of this job."""

    name: str
    ready: bool
    unreachable: bool  # Ready=Unknown or the unreachable taint: same cause as the lease (K)
    unschedulable: bool
    out_of_service: bool  # a human's word: conclusive
    lease_age_seconds: float  # since we last saw it change, covered by successful polls only
    lease_duration_seconds: float
    ready_age_seconds: float  # since we saw it become Ready


@dataclass(frozen=True)
class Network:
    """N for one member: what its peers' kernels and our own probes say (R25)."""

    lost_by: int  # other members whose keepalive connection to it is lost
    asked: int  # other members that were asked
    failed_probes: int  # our own probes in a row that timed out (a refused connection is no silence: 0)
    ip_taken: bool  # another pod UID answers at its IP: conclusive
    silent_seconds: float = (
        math.inf
    )  # since the first of those failed probes: R24 asks what happened after it; inf: not known


@dataclass(frozen=True)
class Doubt:
    """R26: what voids our own evidence."""

    saw_other_node: bool  # some sidecar on another node answered within 5 s
    saw_api: bool  # the API answered within 5 s
    loop_late_seconds: float
    sidecar_late_seconds: float


@dataclass(frozen=True)
class RefusedAction:
    """An action that the API server refuses, again and again."""

    what: str  # `delete pod gpt-w3`
    why: str  # in the API server's own words; the same while only its numbers change
    count: int  # refusals in a row
    age_seconds: float  # since the first of them


LeavePurpose = Literal["", "departure", "suspend", "change"]  # members leave; spec.suspend; grow or shrink


@dataclass(frozen=True)
class Observed:
    """Everything that a decision may depend on. Never built before all caches are synced."""

    uid: str
    name: str
    namespace: str
    generation: int
    deleting: bool
    spec: JobSpec | None  # None: invalid, and nothing is under way; else the newest that was accepted
    problems: tuple[str, ...]  # why the newest one is invalid: one line a field
    status: JobStatus
    pods: tuple[PodView, ...]
    nodes: dict[str, NodeView]
    sidecar: SidecarStatus | None  # newest answer for the current attempt, of the coordinator or of another member
    sidecar_age_seconds: float  # since that answer
    training_age_seconds: float  # T: since the newest step finished, by the trainers' clock, extended by the answer's age only if answers still come
    networks: dict[str, Network]  # by pod UID
    doubt: Doubt
    prepare: PrepareAnswer | None  # answer for the current number and intent
    prepare_failed: tuple[
        str, ...
    ]  # UIDs of pods that did not answer this number and intent, or with nothing of use (`wait`), oldest first: ask another one
    attempt_age_seconds: float  # since we saw the attempt enter its present state
    go_age_seconds: float  # since we saw go; 0 before
    leave_age_seconds: (
        float | None
    )  # since we first tried to ask for save-and-stop, for this purpose, in this attempt; None: we did not
    now: float  # wall clock, seconds since the epoch: only for crash window, deadline, TTL
    new_intent: str  # a fresh random id, to be used if a new intent is formed in this pass
    prepare_age_seconds: float = (
        math.inf
    )  # since `prepare` was answered: `wait` and `stop` are asked for again after a while
    announced: tuple[str, ...] = ()  # UIDs of pods that acknowledged an Announce of the current attempt's plan
    names_taken: tuple[int, ...] = ()  # worker ids whose pod name belongs to an object that is not ours: burnt (R20)
    step_age_seconds: float = 0.0  # since status.step was last written, for `Settings.step_write`
    leave_purpose: LeavePurpose = ""  # what that was asked for; empty: not told apart
    pods_refused: dict[int, str] = field(
        default_factory=dict
    )  # worker ids whose pod the API server does not admit, and why
    prepare_by: str = ""  # UID of the pod that gave `prepare`; empty: not known
    version: str = (
        ""  # resourceVersion of the object that `status` and `spec` were read from: the write is compared with it (R1)
    )
    leave_accepted: bool = True  # the coordinator acknowledged that
    gone_nodes: frozenset[str] = frozenset()  # nodes that a GET did not find: only they are gone (R25, C)
    gone_pods: frozenset[str] = frozenset()  # UIDs of pods of whom a GET says the same
    coordinator_age_seconds: float = (
        0.0  # since the coordinator itself last answered for this attempt, or since it was Planned
    )
    sights: dict[str, Sight] = field(
        default_factory=dict
    )  # newest word of each pod, by UID, about the current attempt's storage
    sight_ages: dict[str, float] = field(default_factory=dict)  # seconds since then
    refused_actions: tuple[RefusedAction, ...] = ()
    accepted_generation: int = 0  # where `problems` are of a newer one: the generation that `spec` is of
    has_template: bool = True  # whether pods can be made: an operator that never saw a valid spec has none
    look_pause: float = 0.0  # where there are many jobs a quiet one is looked at after so many seconds only,
    step_pause: float = 0.0  # and its step written so long after the last one, where `Settings.step_write` is shorter
    half_placed: tuple[str, ...] = ()  # namespace/name of other jobs that hold room while they find no more
    remembered: dict[object, object] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )  # facts worked out from the rest in this pass (`pods.once_a_pass`); never filled in from outside


# ---------------------------------------------------------------- what is decided

Phase = Literal["Pending", "Starting", "Running", "Recovering", "Waiting", "Suspended", "Succeeded", "Failed"]


@dataclass(frozen=True)
class WriteStatus:
    """R1: compare-and-swap. Always the only action of its decision: effects come in the next pass, from the written status."""

    status: JobStatus


@dataclass(frozen=True)
class CreatePod:
    """Make worker `worker_id`'s pod, never on the nodes in `avoid`."""

    worker_id: int
    avoid: tuple[str, ...] = ()
    image: str = ""  # of Everstep's own containers, as in the job's other pods; empty: the operator's
    api_port: int = 0  # of its sidecar, in the same way; 0: the operator's


@dataclass(frozen=True)
class DeletePod:
    """R2: with preconditions on UID and resourceVersion. Never forced (R21), but for `force`: node gone or out-of-service."""

    name: str
    uid: str
    resource_version: str
    force: bool = False


@dataclass(frozen=True)
class PublishPlan:
    """R2: JSON patch of both annotations with `test` on uid and on the attempt seen; only upwards. Members and non-members alike."""

    name: str
    uid: str
    seen_attempt: int
    plan: Plan


@dataclass(frozen=True)
class Announce:
    """R23: tell a pod over HTTP that attempt n exists (with its plan, once planned)."""

    uid: str
    ip: str
    attempt: int
    plan: Plan | None


@dataclass(frozen=True)
class Prepare:
    """R4: ask this pod's sidecar to fence and to look."""

    uid: str
    ip: str
    request: PrepareRequest


@dataclass(frozen=True)
class AskSight:
    """R11: ask a pod that may join whether it sees the storage of the current attempt."""

    uid: str
    ip: str
    attempt: int
    intent_id: str
    raised_by: str = ""  # UID of the pod whose fence it must see; empty: not known


@dataclass(frozen=True)
class Probe:
    """R25, N: try to reach this pod, again and again for as long as each pass wishes it; the result is in `Observed.networks`."""

    uid: str
    ip: str


@dataclass(frozen=True)
class AskLeave:
    """R19: save-and-stop, to the coordinator."""

    uid: str
    ip: str
    attempt: int
    deadline_seconds: float
    purpose: LeavePurpose = ""


@dataclass(frozen=True)
class AskExit:
    """The job has failed: this pod is to end by itself, so that its logs stay."""

    uid: str
    ip: str
    attempt: int
    why: str


@dataclass(frozen=True)
class DeleteJob:
    """The TTL is over."""


Action = (
    WriteStatus
    | CreatePod
    | DeletePod
    | PublishPlan
    | Announce
    | Prepare
    | AskSight
    | Probe
    | AskLeave
    | AskExit
    | DeleteJob
)


@dataclass(frozen=True)
class Condition:
    """One condition; `cluster.report` fills in transition times."""

    type: Literal["Valid", "Ready", "Degraded", "CheckpointHealthy", "Suspended", "Complete", "Failed"]
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


@dataclass(frozen=True)
class Notice:
    """A Kubernetes Event and a log line, posted once: when the status write that goes with it succeeded."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class Decision:
    """What to do and what to say."""

    phase: Phase
    reason: str
    message: str
    actions: tuple[Action, ...] = ()
    conditions: tuple[Condition, ...] = ()
    notices: tuple[Notice, ...] = ()
    requeue_after: float | None = None
    suspects: tuple[str, ...] = ()  # names of nodes that take no new member now
