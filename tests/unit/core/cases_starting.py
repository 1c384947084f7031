"""Before the first attempt runs."""

from __future__ import annotations

from dataclasses import replace

from everstep_operator.core.model import (
    CreatePod,
    JobStatus,
    Notice,
    Prepare,
    WriteStatus,
)
from everstep_protocol.messages import PrepareRequest
from unit.core.decisions import (
    FRESH,
    IS_SUSPENDED,
    NONE_YET,
    NOTHING_RUNS,
    PEERS,
    Table,
    decision,
    starting,
)
from unit.core.jobs import (
    nodes,
    observed,
    pending,
    pod,
    sidecar,
    spec,
)

TABLE = Table()
case = TABLE.case

case(
    "a new job: Preparing 1 with an intent and ids for max workers, nothing else",
    observed(status=JobStatus(), pods=(), sidecar=None),
    decision(
        "Starting",
        "StartingWorkers",
        "the job starts",
        WriteStatus(FRESH),
        conditions={"Degraded": NOTHING_RUNS, "CheckpointHealthy": NONE_YET},
        notices=(Notice("Normal", "Starting", "the job starts"),),
    ),
)
case(
    "R1: a storage that knows attempt 7 begins at 8",
    observed(status=JobStatus(), pods=(), sidecar=sidecar(attempt=7)),
    decision(
        "Starting",
        "StartingWorkers",
        "the job starts",
        WriteStatus(
            replace(FRESH, attempt=replace(FRESH.attempt, number=8), history=(replace(FRESH.history[0], number=8),))
        ),  # type: ignore[type-var]
        conditions={"Degraded": NOTHING_RUNS, "CheckpointHealthy": NONE_YET},
        notices=(Notice("Normal", "Starting", "the job starts"),),
    ),
)
case(
    "an invalid spec: every problem is told, nothing is created",
    observed(
        spec=None,
        problems=("spec.workers: min > max", "spec.template: no command"),
        status=JobStatus(),
        pods=(),
        sidecar=None,
    ),
    decision(
        "Pending",
        "InvalidSpec",
        "spec.workers: min > max; spec.template: no command",
        conditions={
            "Valid": ("False", "InvalidSpec", "spec.workers: min > max; spec.template: no command"),
            "Degraded": NOTHING_RUNS,
            "CheckpointHealthy": NONE_YET,
        },
    ),
)
case(
    "an invalid edit: what runs is not touched, though a node is gone",
    observed(spec=None, problems=("spec.workers: no",), nodes=nodes(3)),
    decision(
        "Running",
        "InvalidSpec",
        "spec.workers: no; until this is put right, what runs is not looked after",
        conditions={"Valid": ("False", "InvalidSpec", "spec.workers: no"), "Degraded": NOTHING_RUNS},
    ),
)
case(
    "a job that is being deleted: nothing",
    observed(deleting=True, nodes=nodes(3)),
    decision("Running", "Deleting", "the job is being deleted; its checkpoints stay"),
)
case(
    "a job made suspended: no pods",
    observed(spec=spec(suspend=True), status=JobStatus(), pods=(), sidecar=None),
    decision(
        "Suspended",
        "Suspended",
        "the job was created suspended",
        conditions={"Degraded": NOTHING_RUNS, "CheckpointHealthy": NONE_YET, "Suspended": IS_SUSPENDED},
    ),
)
case(
    "Preparing without pods: pods for the ids in status; a node where nothing was lost is the scheduler's business",
    starting(nodes=nodes(5, n4={"ready_age_seconds": 1.0})),
    decision(
        "Starting",
        "StartingWorkers",
        "0 of at least 2 workers can run; waiting for "
        + "; ".join(f"worker {i}: its pod is being created" for i in range(4)),
        *(CreatePod(i) for i in range(4)),
        conditions={"Degraded": NOTHING_RUNS, "CheckpointHealthy": NONE_YET},
        requeue_after=5.0,
        suspects=("n4",),
    ),
)
case(
    "B36: a start waits a while for all workers",
    starting(pods=(pod(0), pod(1), pod(2), pending(3))),
    decision(
        "Starting",
        "StartingWorkers",
        "3 of 4 workers can run; waiting up to 30 s for worker 3: it is being scheduled",
        conditions={"Degraded": NOTHING_RUNS, "CheckpointHealthy": NONE_YET},
        requeue_after=5.0,
    ),
)
FIRST_REQUEST = PrepareRequest(1, "new", (), 0, (), (), False, False, None, PEERS[:3], ("u0", "u1", "u2"))
case(
    "B36: after the window a start goes on with those there are",
    starting(pods=(pod(0), pod(1), pod(2), pending(3)), attempt_age_seconds=30.0),
    decision(
        "Starting",
        "Preparing",
        "older attempts are fenced and the storage is read",
        Prepare("u0", "10.0.0.0", FIRST_REQUEST),
        conditions={"Degraded": NOTHING_RUNS, "CheckpointHealthy": NONE_YET},
        requeue_after=5.0,
    ),
)
