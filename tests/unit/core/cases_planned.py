"""A planned attempt: say it, start it, leave out whom it does not reach."""

from __future__ import annotations

from dataclasses import replace

from everstep_operator.core.model import (
    Announce,
    AttemptStatus,
    Budget,
    DeletePod,
    JobStatus,
    Notice,
    PublishPlan,
    StageSeconds,
    WorkerStatus,
    WriteStatus,
)
from everstep_protocol.messages import Trouble
from unit.core.decisions import (
    NEED_4,
    PLAN_2,
    PREPARING,
    SUSPECT,
    Table,
    decision,
    planned_2,
)
from unit.core.jobs import (
    NOW_TEXT,
    entry,
    nodes,
    pending,
    pod,
    preparing,
    rows,
    sidecar,
    training,
)

TABLE = Table()
case = TABLE.case

WORKERS_2 = "attempt 2: 3 workers from step 30"
WAIT_FOR_4 = {"Degraded": ("True", "FewerWorkers", f"3 of 4 workers; waiting for {NEED_4}")}
case(
    "R2, R23: the plan to members and non-members; over HTTP to whom the kubelet may not bring it; lost pods stay until it started",
    preparing(
        status=planned_2(),
        pods=(
            pod(0),
            pod(1, plan_attempt=2),
            pod(2, plan_attempt=2),
            pod(3, plan_attempt=2, deletion_age_seconds=1.0),
            pending(4, plan_attempt=1, avoid=("n3",), unschedulable="no room"),
        ),
    ),
    decision(
        "Recovering",
        "StartingAttempt",
        WORKERS_2,
        PublishPlan("gpt-w0", "u0", 1, PLAN_2),
        PublishPlan("gpt-w4", "u4", 1, PLAN_2),
        Announce("u0", "10.0.0.0", 2, PLAN_2),
        Announce("u3", "10.0.0.3", 2, PLAN_2),
        conditions=WAIT_FOR_4,
        requeue_after=14.9,
        suspects=SUSPECT,
    ),
)
TOLD = (*(pod(i, plan_attempt=2) for i in range(4)), pending(4, plan_attempt=2, avoid=("n3",), unschedulable="no room"))
case(
    "what was said is not said again",
    preparing(status=planned_2(), pods=TOLD),
    decision("Recovering", "StartingAttempt", WORKERS_2, conditions=WAIT_FOR_4, requeue_after=14.9, suspects=SUSPECT),
)
STARTED_2 = replace(planned_2(), attempt=replace(planned_2().attempt, state="Started", go_at=NOW_TEXT))  # type: ignore[type-var]
NO_STEP_YET = f"{WORKERS_2}: the trainers were told to start at {NOW_TEXT}, and no first step is reported yet"
case(
    "R7: go was given: Started",
    preparing(status=planned_2(), pods=TOLD, sidecar=sidecar(2, (0, 1, 2), training=training(-1))),
    decision(
        "Recovering",
        "StartingTrainers",
        NO_STEP_YET,
        WriteStatus(STARTED_2),
        conditions={"Degraded": ("True", "FewerWorkers", f"3 of 4 workers; waiting for {NEED_4}")},
        notices=(Notice("Normal", "AttemptStarted", WORKERS_2),),
        suspects=SUSPECT,
    ),
)
case(
    "R21: once it started, lost pods are deleted, plainly",
    preparing(status=STARTED_2, pods=TOLD, sidecar=sidecar(2, (0, 1, 2), training=training(-1))),
    decision(
        "Recovering",
        "StartingTrainers",
        NO_STEP_YET,
        DeletePod("gpt-w3", "u3", "7"),
        conditions=WAIT_FOR_4,
        requeue_after=2.0,
        suspects=SUSPECT,
    ),
)
case(
    "R21: by force only where a human said that the node is out of service",
    preparing(
        status=STARTED_2,
        pods=TOLD,
        sidecar=sidecar(2, (0, 1, 2), training=training(-1)),
        nodes=nodes(n3={"out_of_service": True}),
    ),
    decision(
        "Recovering",
        "StartingTrainers",
        NO_STEP_YET,
        DeletePod("gpt-w3", "u3", "7", force=True),
        conditions=WAIT_FOR_4,
        requeue_after=2.0,
        suspects=SUSPECT,
    ),
)
LEFT_OUT = "worker 2 did not take attempt 2 within 15 s"


def left_out(workers: tuple[WorkerStatus, ...]) -> JobStatus:
    base = planned_2()
    attempt = AttemptStatus(
        3, "Preparing", "new", "not-delivered", 1, failure_at="2025-11-29T07:06:25.000Z", message=LEFT_OUT
    )
    ledger = entry(
        3,
        cause="not-delivered",
        world_size=0,
        resumed_step=-1,
        steps_lost=None,
        nodes=(),
        seconds=StageSeconds(detected=15.0),
        message=LEFT_OUT,
        started_at=NOW_TEXT,
    )
    return replace(
        base,
        attempt=attempt,
        workers=workers,
        next_worker_id=6,
        budget=Budget((), 0, 1),
        restarts={"node-lost": 1, "not-delivered": 1, "total": 2},
        history=(base.history[0], replace(base.history[1], ended_at=NOW_TEXT), ledger),
    )


case(
    "R28: a member without hello after the deadline is left out",
    preparing(
        status=planned_2(),
        pods=TOLD,
        attempt_age_seconds=15.0,
        sidecar=sidecar(2, (0, 1, 2), ("ready", "preparing", "absent"), gone=False, training=training(-1)),
    ),
    decision(
        "Recovering",
        "Preparing",
        LEFT_OUT,
        WriteStatus(
            left_out((*rows(0, 1), *rows(2, state="Lost"), *rows(3, state="Lost"), *rows(4, 5, state="Wanted")))
        ),
        conditions=PREPARING,
        notices=(Notice("Warning", "AttemptEnded", f"not-delivered: {LEFT_OUT}"),),
        suspects=SUSPECT,
    ),
)
HANGING = Trouble("StorageHangs", "a listing of /ckpt has not returned", 45.0)
NOBODY_COULD = sidecar(2, (0, 1, 2), ("absent", "absent", "absent"), gone=False, training=training(-1), storage=HANGING)
WAITS = f"{WORKERS_2} wait for the storage: a listing of /ckpt has not returned"
case(
    "R11: the coordinator's storage hangs: nobody is blamed, and it is said what is waited for",
    preparing(status=planned_2(), pods=TOLD, attempt_age_seconds=45.0, sidecar=NOBODY_COULD),
    decision(
        "Recovering",
        "WaitingForStorage",
        WAITS,
        conditions={
            **WAIT_FOR_4,
            "CheckpointHealthy": ("False", "StorageHangs", "a listing of /ckpt has not returned"),
        },
        requeue_after=2.0,
        suspects=SUSPECT,
    ),
)
