"""Observed jobs for the tests of the core: a healthy one, and what is to be changed in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from everstep_operator.core.model import (
    AttemptStatus,
    CheckpointStatus,
    Doubt,
    HistoryEntry,
    JobSpec,
    JobStatus,
    Network,
    NewestCheckpoint,
    NodeView,
    Observed,
    PodView,
    Settings,
    StageSeconds,
    WorkerStatus,
)
from everstep_protocol.messages import (
    CheckpointInfo,
    MemberSummary,
    Over,
    PrepareAnswer,
    SidecarStatus,
    Sight,
    Training,
    Trouble,
)
from everstep_protocol.plan import FORMAT, Coordinator, Member, Plan, Resume, SaveInterval, sealed

SETTINGS = Settings()
NOW = 1_764_400_000.0
NOW_TEXT = "2025-11-29T07:06:40.000Z"
NONE = Resume("none")
FIRST_LINEAGE = ((0, 0),)


def spec(**changes: Any) -> JobSpec:
    base = JobSpec(
        min_workers=2,
        max_workers=4,
        processes_per_worker=1,
        template_hash="t",
        interval=SaveInterval(steps=10),
        keep_last=2,
    )
    return replace(base, **changes)


def node(name: str, **changes: Any) -> NodeView:
    base = NodeView(
        name,
        ready=True,
        unreachable=False,
        unschedulable=False,
        out_of_service=False,
        lease_age_seconds=1.0,
        lease_duration_seconds=40.0,
        ready_age_seconds=1000.0,
    )
    return replace(base, **changes)


def nodes(count: int = 4, **changed: dict[str, Any]) -> dict[str, NodeView]:
    return {name: node(name, **changed.get(name, {})) for name in (f"n{i}" for i in range(count))}


def pod(worker: int, **changes: Any) -> PodView:
    """A pod that runs well, on the node with its number, and has attempt 1's plan."""
    base = PodView(
        name=f"gpt-w{worker}",
        uid=f"u{worker}",
        resource_version="7",
        worker_id=worker,
        ip=f"10.0.0.{worker}",
        node=f"n{worker}",
        phase="Running",
        sidecar_running=True,
        deletion_age_seconds=None,
        deletion_grace_seconds=None,
        disruption="",
        trainer_terminated=False,
        trainer_restarts=0,
        termination_message="",
        template_hash="t",
        plan_attempt=1,
        avoid=(),
        unschedulable="",
        hindrance=None,
        age_seconds=500.0,
        sidecar_age_seconds=500.0,
    )
    return replace(base, **changes)


def pending(worker: int, **changes: Any) -> PodView:
    blank: dict[str, Any] = {
        "ip": "",
        "node": "",
        "phase": "Pending",
        "sidecar_running": False,
        "sidecar_age_seconds": 0.0,
    }
    return pod(worker, **{**blank, **changes})


def plan(attempt: int = 1, members: tuple[int, ...] = (0, 1, 2, 3), **changes: Any) -> Plan:
    base = Plan(
        format=FORMAT,
        job_uid="job",
        attempt=attempt,
        plan_id="",
        intent_generation=1,
        template_hash="t",
        world=len(members),
        coordinator=Coordinator(members[0], f"u{members[0]}", f"10.0.0.{members[0]}", 7471),
        members=tuple(Member(m, f"u{m}", f"10.0.0.{m}", f"n{m}", (i, i + 1)) for i, m in enumerate(members)),
        resume=NONE,
        lineage=FIRST_LINEAGE,
        cause="start",
        interval=SaveInterval(steps=10),
    )
    return sealed(replace(base, **changes))


def training(step: int = 37, **changes: Any) -> Training:
    base = Training(library=True, step=step, age_seconds=0.1, usual_seconds=0.2, phase="training")
    return replace(base, **changes)


def sidecar(
    attempt: int = 1, members: tuple[int, ...] = (0, 1, 2, 3), states: tuple[str, ...] = (), **changes: Any
) -> SidecarStatus:
    """The coordinator's answer in the middle of training."""
    base = SidecarStatus(
        format=1,
        version="v",
        pod_uid=f"u{members[0]}",
        highest=attempt,
        attempt=attempt,
        plan_id="p",
        role="coordinator",
        gone=True,
        finished=False,
        late_seconds=0.0,
        training=training(),
        members=tuple(MemberSummary(f"u{m}", states[i] if states else "running", 0, 3) for i, m in enumerate(members)),  # type: ignore[arg-type]
    )
    return replace(base, **changes)


def over(cause: str, **changes: Any) -> Over:
    return replace(Over(cause=cause, message=f"{cause} happened", uid="u1", rank=1), **changes)  # type: ignore[arg-type]


def info(attempt: int, step: int, **changes: Any) -> CheckpointInfo:
    return replace(CheckpointInfo(f"c{attempt}-{step}", f"step_{step}", attempt, step, 100, "then"), **changes)


def newest(attempt: int, step: int) -> NewestCheckpoint:
    return NewestCheckpoint(f"c{attempt}-{step}", f"step_{step}", attempt, step, "then", 100)


def resume(attempt: int, step: int) -> Resume:
    return Resume("checkpoint", f"c{attempt}-{step}", f"step_{step}", attempt, step)


def entry(number: int, **changes: Any) -> HistoryEntry:
    base = HistoryEntry(
        number, "start", 4, 0, 0, StageSeconds(0.0, 1.0, 2.0), ("n0", "n1", "n2", "n3"), started_at="then"
    )
    return replace(base, **changes)


def rows(*ids: int, state: str = "Joined") -> tuple[WorkerStatus, ...]:
    return tuple(WorkerStatus(i, state, f"n{i}" if state != "Wanted" else "") for i in ids)  # type: ignore[arg-type]


def started_status(members: tuple[int, ...] = (0, 1, 2, 3), **changes: Any) -> JobStatus:
    """Attempt 1 trains and has committed step 30."""
    base = JobStatus(
        attempt=AttemptStatus(
            1, "Started", "i1", "start", 1, plan=plan(1, members), failure_at=NOW_TEXT, message="the job starts"
        ),
        next_worker_id=max(members) + 1,
        workers=rows(*members),
        lineage=FIRST_LINEAGE,
        last_attempt=1,
        checkpoints=CheckpointStatus(ever=True, newest=newest(1, 30)),
        history=(entry(1),),
        step=37,
        started_at=NOW_TEXT,
    )
    return replace(base, **changes)


def observed(**changes: Any) -> Observed:
    """A job of four whose attempt 1 trains; nothing is to be done."""
    base = Observed(
        uid="job",
        name="gpt",
        namespace="default",
        generation=1,
        deleting=False,
        spec=spec(),
        problems=(),
        status=started_status(),
        pods=tuple(pod(i) for i in range(4)),
        nodes=nodes(),
        sidecar=sidecar(checkpoints=(info(1, 20), info(1, 30))),
        sidecar_age_seconds=0.2,
        training_age_seconds=0.3,
        networks={},
        doubt=Doubt(saw_other_node=True, saw_api=True, loop_late_seconds=0.0, sidecar_late_seconds=0.0),
        prepare=None,
        prepare_failed=(),
        attempt_age_seconds=100.0,
        go_age_seconds=99.0,
        leave_age_seconds=None,
        now=NOW,
        new_intent="new",
    )
    return replace(base, **changes)


def preparing_status(cause: str = "node-lost", number: int = 2, **changes: Any) -> JobStatus:
    """Attempt 2 is being prepared after attempt 1, whose worker 3 is lost; worker 4 is wanted."""
    attempt = AttemptStatus(number, "Preparing", "i2", cause, 1, failure_at=NOW_TEXT, message="why")  # type: ignore[arg-type]
    base = started_status(
        attempt=attempt,
        workers=(*rows(0, 1, 2), *rows(3, state="Lost"), *rows(4, state="Wanted")),
        next_worker_id=5,
        restarts={"node-lost": 1, "total": 1},
        history=(
            entry(1, ended_at="then"),
            entry(2, cause=cause, world_size=0, resumed_step=-1, steps_lost=None, nodes=()),
        ),
    )
    return replace(base, **changes)


def preparing(**changes: Any) -> Observed:
    base: dict[str, Any] = {
        "status": preparing_status(),
        "pods": (*(pod(i) for i in range(4)), pending(4, plan_attempt=0, avoid=("n3",), unschedulable="no room")),
        "sidecar": None,
        "nodes": nodes(n3={"unreachable": True}),
        "attempt_age_seconds": 0.1,
        "go_age_seconds": 0.0,
    }
    return observed(**{**base, **changes})


def answer(**changes: Any) -> PrepareAnswer:
    base = PrepareAnswer(
        attempt=2,
        intent_id="i2",
        outcome="ready",
        reason="Newest",
        message="",
        highest=2,
        resume=resume(1, 30),
        lineage=((1, 30),),
        checkpoints=(info(1, 20), info(1, 30)),
    )
    return replace(base, **changes)


def good_sight(*workers: int) -> dict[str, Sight]:
    """The sights of pods that see the storage and have their launcher."""
    return {f"u{worker}": Sight(f"u{worker}", None, launcher=True) for worker in workers}


def blind_sight(worker: int, reason: str = "StorageNotShared", **changes: Any) -> Sight:
    trouble = Trouble(reason, f"gpt-w{worker} on n{worker} does not see this job's storage: mount the claim there", 1.0)
    return replace(Sight(f"u{worker}", trouble, launcher=True), **changes)


SILENT = Network(lost_by=3, asked=3, failed_probes=2, ip_taken=False)
