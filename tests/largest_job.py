"""The largest job there may be, with everything as long as it can be: what the API server and the limits are tried with."""

from __future__ import annotations

from everstep_operator.api.size import MOST_WORKERS
from everstep_operator.api.status import HISTORY_LIMIT, LAST_LINES_LIMIT, MESSAGE_LIMIT
from everstep_operator.core.attempts import LONGEST_LINEAGE
from everstep_operator.core.bookkeeping import MOST_CONDEMNED
from everstep_operator.core.history import MOST_NODES
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
UID = "00000000-0000-0000-0000-{:012d}"
IPV6 = "2001:0db8:0000:0000:0000:ffff:{:04x}:{:04x}"
PROCESSES = 1024
ATTEMPT = 10**9
STEP = 10**15
MOST_CRASHES = 501


def node(i: int) -> str:
    """A name of 63 characters."""
    return f"n{i:062d}"


def largest_plan(workers: int = MOST_WORKERS) -> Plan:
    first = 10**6  # ids grow with each worker that was replaced
    members = tuple(
        Member(first + i, UID.format(i), IPV6.format(i, i), node(i), (i * PROCESSES, (i + 1) * PROCESSES))
        for i in range(workers)
    )
    head = members[0]
    return sealed(
        Plan(
            format=FORMAT,
            job_uid=UID.format(0),
            attempt=ATTEMPT,
            plan_id="",
            intent_generation=ATTEMPT,
            template_hash="f" * 64,
            world=workers * PROCESSES,
            coordinator=Coordinator(head.id, head.uid, head.ip, 65535),
            members=members,
            resume=Resume("checkpoint", "f" * 64, "d" * 512, ATTEMPT, STEP),
            lineage=tuple((ATTEMPT - i, STEP - i) for i in range(LONGEST_LINEAGE)),
            cause="bad-checkpoint",
            interval=SaveInterval(STEP, 1e9),
        )
    )


def largest_status(workers: int = MOST_WORKERS) -> JobStatus:
    plan = largest_plan(workers)
    ids = tuple(f"{i:064d}" for i in range(MOST_CONDEMNED))
    entry = HistoryEntry(
        ATTEMPT,
        "bad-checkpoint",
        plan.world,
        STEP,
        STEP,
        StageSeconds(1234.567, 1234.567, 1234.567),
        tuple(node(i) for i in range(MOST_NODES)),
        "m" * LAST_LINES_LIMIT,
        TIME,
        TIME,
        workers,
    )
    return JobStatus(
        attempt=AttemptStatus(
            ATTEMPT, "Started", "f" * 16, "bad-checkpoint", ATTEMPT, plan, "suspended", TIME, "m" * MESSAGE_LIMIT,
            UID.format(1), UID.format(2),
        ),
        next_worker_id=10**6 + workers,
        workers=tuple(WorkerStatus(member.id, "Finished", member.node) for member in plan.members),
        lineage=plan.lineage,
        last_attempt=ATTEMPT,
        checkpoints=CheckpointStatus(True, NewestCheckpoint("f" * 64, "d" * 512, ATTEMPT, STEP, TIME, STEP), ids, ids),
        budget=Budget(tuple(Crash(ATTEMPT, TIME) for _ in range(MOST_CRASHES)), ATTEMPT, ATTEMPT),
        history=tuple(entry for _ in range(HISTORY_LIMIT)),
        restarts={"bad-checkpoint": ATTEMPT, "total": ATTEMPT},
        step=STEP,
        honoured_resume_generation=ATTEMPT,
        honoured_resume_from="d" * 512,
        started_at=TIME,
        completed_at=TIME,
        result="Failed",
        result_reason="NoProgress",
        result_message="m" * MESSAGE_LIMIT,
    )  # fmt: skip
