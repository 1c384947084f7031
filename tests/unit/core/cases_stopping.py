"""Save-and-stop: members that leave, growing, shrinking, suspension; and pods that nobody knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from everstep_operator.core.model import (
    AskLeave,
    DeletePod,
    Growth,
    Notice,
    WriteStatus,
)
from everstep_protocol.messages import Trouble
from unit.core.decisions import (
    ALL,
    IS_SUSPENDED,
    LEFT_3,
    NOTHING_RUNS,
    PREPARING,
    THREE,
    TRAINS,
    Table,
    after_loss,
    decision,
)
from unit.core.jobs import (
    NOW_TEXT,
    entry,
    good_sight,
    nodes,
    observed,
    over,
    pod,
    rows,
    sidecar,
    spec,
    started_status,
    training,
)

TABLE = Table()
case = TABLE.case

LEAVES = "worker 3 on node n3 was told to leave"

GOING = (*THREE, pod(3, deletion_age_seconds=1.0, deletion_grace_seconds=30.0))
case(
    "R19: a member leaves: save-and-stop is asked for once, until 5 s before its grace ends",
    observed(pods=GOING, announced=("u3",)),
    decision("Running", "Training", TRAINS, AskLeave("u0", "10.0.0.0", 1, 24.0, "departure"), requeue_after=5.0),
)
case(
    "R19: asked already: wait for it",
    observed(pods=GOING, leave_age_seconds=0.5, announced=("u3",)),
    decision("Running", "Training", TRAINS, requeue_after=5.0),
)
case(
    "R19: saved and stopped: the next attempt without it, no step lost, nothing spent",
    observed(pods=GOING, leave_age_seconds=0.5, sidecar=sidecar(over=over("stopped", step=37))),
    decision(
        "Recovering",
        "Preparing",
        LEAVES,
        WriteStatus(
            after_loss(
                "drain", LEAVES, workers=LEFT_3, next_worker_id=5, failure_at="2025-11-29T07:06:39.000Z", detected=1.0
            )
        ),
        conditions=PREPARING,
        notices=(Notice("Warning", "AttemptEnded", f"drain: {LEAVES}"),),
    ),
)
PREEMPTED = "worker 3 on node n3 was preempted by the scheduler"
case(
    "R19: the time is up: prepare without the save; preemption by its reason",
    observed(
        pods=(
            *THREE,
            pod(3, deletion_age_seconds=25.0, deletion_grace_seconds=30.0, disruption="PreemptionByScheduler"),
        ),
        leave_age_seconds=24.0,
    ),
    decision(
        "Recovering",
        "Preparing",
        PREEMPTED,
        WriteStatus(
            after_loss(
                "preemption",
                PREEMPTED,
                workers=LEFT_3,
                next_worker_id=5,
                failure_at="2025-11-29T07:06:15.000Z",
                detected=25.0,
            )
        ),
        conditions=PREPARING,
        notices=(Notice("Warning", "AttemptEnded", f"preemption: {PREEMPTED}"),),
    ),
)
THREE_RUN = started_status((0, 1, 2), workers=(*rows(0, 1, 2), *rows(4, state="Wanted")), next_worker_id=5)
FIVE_NODES = nodes(5)
TRAIN_3 = "attempt 1: 3 workers from step 0"
GROWABLE: dict[str, Any] = {
    "status": THREE_RUN,
    "pods": (*THREE, pod(4)),
    "nodes": FIVE_NODES,
    "sidecar": sidecar(members=(0, 1, 2)),
    "sights": good_sight(4),
}
case(
    "grow: a worker that settled can join: save-and-stop first",
    observed(**GROWABLE),
    decision(
        "Running",
        "Training",
        TRAIN_3,
        AskLeave("u0", "10.0.0.0", 1, 120.0, "change"),
        conditions={"Degraded": ("True", "FewerWorkers", "3 of 4 workers; more are about to join")},
        requeue_after=10.0,
    ),
)
case(
    "grow: a worker that is there has to settle first, and that is said",
    observed(**{**GROWABLE, "pods": (*THREE, pod(4, sidecar_age_seconds=1.0))}),
    decision(
        "Running",
        "Training",
        TRAIN_3,
        conditions={
            "Degraded": ("True", "FewerWorkers", "3 of 4 workers; waiting for worker 4 on node n4 to have run for 3 s")
        },
        requeue_after=10.0,
    ),
)
case(
    "R16: saves fail: planned changes wait",
    observed(
        **{**GROWABLE, "sidecar": sidecar(members=(0, 1, 2), failing=Trouble("ENOSPC", "the claim is full", 9.0))}
    ),
    decision(
        "Running",
        "Training",
        TRAIN_3,
        requeue_after=10.0,
        conditions={
            "Degraded": (
                "True",
                "FewerWorkers",
                "3 of 4 workers; more can join, but saves fail at present, and joining must not lose steps",
            ),
            "CheckpointHealthy": ("False", "CheckpointFailing", "saves fail (ENOSPC): the claim is full"),
        },
    ),
)
NO_LIBRARY = (
    "3 of 4 workers; more can join, but the script has made no everstep.Checkpointer, so it is not stopped for them: "
    "they join at the next restart"
)
case(
    "a script that reports no steps is not stopped to grow",
    observed(**{**GROWABLE, "sidecar": sidecar(members=(0, 1, 2), training=training(-1, library=False, phase="none"))}),
    decision(
        "Running",
        "Training",
        TRAIN_3,
        conditions={"Degraded": ("True", "FewerWorkers", NO_LIBRARY)},
        requeue_after=10.0,
    ),
)
GROWN = "1 more worker can join"
case(
    "grow: saved and stopped: all usable ones in the next attempt",
    observed(
        **{**GROWABLE, "sidecar": sidecar(members=(0, 1, 2), over=over("stopped", step=37)), "leave_age_seconds": 0.5}
    ),
    decision(
        "Recovering",
        "Preparing",
        GROWN,
        WriteStatus(
            after_loss(
                "grow",
                GROWN,
                workers=THREE_RUN.workers,
                next_worker_id=5,
                failure_at="2025-11-29T07:06:39.500Z",
                detected=0.5,
                growth=Growth(grown_at=NOW_TEXT),
            )
        ),
        conditions=PREPARING,
        notices=(Notice("Normal", "AttemptEnded", f"grow: {GROWN}"),),
    ),
)
case(
    "shrink: spec.workers.max was lowered: save-and-stop first",
    observed(spec=spec(max_workers=3)),
    decision("Running", "Training", TRAINS, AskLeave("u0", "10.0.0.0", 1, 120.0, "change"), requeue_after=10.0),
)
SHRUNK = "spec.workers.max is 3: 1 of 4 workers leave"
case(
    "shrink: stopped: the highest id leaves, its pod goes when the next attempt started",
    observed(spec=spec(max_workers=3), sidecar=sidecar(over=over("stopped", step=37)), leave_age_seconds=1.0),
    decision(
        "Recovering",
        "Preparing",
        SHRUNK,
        WriteStatus(
            after_loss(
                "shrink",
                SHRUNK,
                workers=(*rows(0, 1, 2), *rows(3, state="Leaving")),
                failure_at="2025-11-29T07:06:39.000Z",
                detected=1.0,
            )
        ),
        conditions=PREPARING,
        notices=(Notice("Normal", "AttemptEnded", f"shrink: {SHRUNK}"),),
    ),
)
case(
    "R30: suspend a running job: save-and-stop first",
    observed(spec=spec(suspend=True)),
    decision(
        "Running",
        "Suspending",
        "the attempt saves and stops",
        AskLeave("u0", "10.0.0.0", 1, 120.0, "suspend"),
        requeue_after=1.0,
    ),
)
SUSPENDED = started_status(
    attempt=replace(started_status().attempt, state="Ended", ended="suspended", plan=None),  # type: ignore[type-var]
    workers=(),
    started_at="",
    history=(entry(1, ended_at=NOW_TEXT),),
)
case(
    "R30: stopped: Ended(suspended), every id burnt",
    observed(spec=spec(suspend=True), sidecar=sidecar(over=over("stopped", step=37)), leave_age_seconds=1.0),
    decision(
        "Suspended",
        "Suspended",
        "the job is suspended",
        WriteStatus(SUSPENDED),
        conditions={"Degraded": NOTHING_RUNS, "Suspended": IS_SUSPENDED},
        notices=(Notice("Normal", "Suspended", "the job is suspended"),),
    ),
)
case(
    "R30: suspended: pods are deleted by UID",
    observed(spec=spec(suspend=True), status=SUSPENDED, pods=(pod(0), pod(1, deletion_age_seconds=1.0))),
    decision(
        "Suspended",
        "Suspended",
        "the job is suspended",
        DeletePod("gpt-w0", "u0", "7"),
        conditions={"Degraded": NOTHING_RUNS, "Suspended": IS_SUSPENDED},
    ),
)
case(
    "R20: a pod whose id was never given means an old status: hands off",
    observed(pods=(*ALL, pod(9, node="n0"))),
    decision("Running", "Training", TRAINS, requeue_after=10.0),
)
case(
    "R20: a pod whose id is burnt is deleted",
    observed(status=started_status(next_worker_id=10), pods=(*ALL, pod(9, node="n0"))),
    decision("Running", "Training", TRAINS, DeletePod("gpt-w9", "u9", "7"), requeue_after=10.0),
)
