"""A JobStatus with every field set, for round trips."""

from __future__ import annotations

from everstep_operator.core.model import (
    AttemptStatus,
    Budget,
    CheckpointStatus,
    Crash,
    HistoryEntry,
    JobStatus,
    NewestCheckpoint,
    StageSeconds,
    WorkerStatus,
)
from everstep_protocol.plan import FORMAT, Coordinator, Member, Plan, Resume, SaveInterval, sealed

TIME = "2026-11-29T01:02:03.250Z"


def full_plan(attempt: int = 7) -> Plan:
    return sealed(
        Plan(
            format=FORMAT,
            job_uid="job-uid",
            attempt=attempt,
            plan_id="",
            intent_generation=3,
            template_hash="abc",
            world=4,
            coordinator=Coordinator(1, "pod-1", "10.0.0.1", 7471),
            members=(Member(1, "pod-1", "10.0.0.1", "n1", (0, 2)), Member(4, "pod-4", "10.0.0.4", "n4", (2, 4))),
            resume=Resume("checkpoint", "id", "step_400", 6, 400),
            lineage=((3, 300), (6, 400)),
            cause="node-lost",
            interval=SaveInterval(50, None),
        )
    )


def full_status(attempt: int = 7) -> JobStatus:
    return JobStatus(
        attempt=AttemptStatus(
            number=attempt,
            state="Started",
            intent_id="intent",
            cause="node-lost",
            intent_generation=3,
            plan=full_plan(attempt),
            ended="suspended",
            failure_at=TIME,
            message="node n2 does not answer",
            fenced_by="u2",
            ask_last="u9",
        ),
        next_worker_id=5,
        workers=(WorkerStatus(1, "Joined", "n1"), WorkerStatus(4, "Wanted")),
        lineage=((3, 300), (6, 400)),
        last_attempt=attempt,
        checkpoints=CheckpointStatus(True, NewestCheckpoint("id", "step_400", 6, 400, TIME, 123), ("a", "b"), ("c",)),
        budget=Budget((Crash(5, TIME),), 1, 2),
        history=(
            HistoryEntry(6, "start", 4, 0, None, StageSeconds(), ("n1", "n2")),
            HistoryEntry(
                attempt, "node-lost", 4, 400, 12, StageSeconds(4.1, 4.5, 5.2), ("n1", "n4"), "lost", TIME, TIME, 2
            ),
        ),
        restarts={"node-lost": 1, "total": 1},
        step=412,
        honoured_resume_generation=2,
        honoured_resume_from="none",
        started_at=TIME,
        completed_at=TIME,
        result="Failed",
        result_reason="NoProgress",
        result_message="3 crashes in a row",
    )
