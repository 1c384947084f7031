"""From a failure to the next plan."""

from __future__ import annotations

from dataclasses import replace

from everstep_operator.core.model import (
    AskSight,
    AttemptStatus,
    Budget,
    CreatePod,
    DeletePod,
    Hindrance,
    Notice,
    Prepare,
    StageSeconds,
    WorkerStatus,
    WriteStatus,
)
from everstep_protocol.resume import Refusal
from unit.core.decisions import (
    ALL,
    IS_SUSPENDED,
    NEED_4,
    NOTHING_RUNS,
    PREPARING,
    REQUEST,
    SUSPECT,
    Table,
    decision,
    planned_2,
)
from unit.core.jobs import (
    NOW_TEXT,
    answer,
    blind_sight,
    entry,
    good_sight,
    node,
    nodes,
    pending,
    pod,
    preparing,
    preparing_status,
    rows,
    spec,
)

TABLE = Table()
case = TABLE.case

case(
    "R4: survivors go on at once: the lowest id is asked to fence and to look; the missing pod is made",
    preparing(pods=ALL),
    decision(
        "Recovering",
        "Preparing",
        "older attempts are fenced and the storage is read",
        Prepare("u0", "10.0.0.0", REQUEST),
        CreatePod(4, SUSPECT),
        conditions=PREPARING,
        requeue_after=5.0,
        suspects=SUSPECT,
    ),
)
case(
    "R4: a coordinator that leaves prepare unanswered: another one is asked, same number, same intent",
    preparing(pods=ALL, prepare_failed=("u0",)),
    decision(
        "Recovering",
        "Preparing",
        "older attempts are fenced and the storage is read",
        Prepare("u1", "10.0.0.1", REQUEST),
        CreatePod(4, SUSPECT),
        conditions=PREPARING,
        requeue_after=5.0,
        suspects=SUSPECT,
    ),
)
NOBODY = (
    "no worker that could prepare attempt 2 answers the operator (worker 0 on node n0, worker 1 on node n1, worker 2 on node n2): "
    "does a NetworkPolicy forbid it to reach the pods?"
)
case(
    "R4: when all left it unanswered, the first is asked again, and it is said that nobody answers",
    preparing(pods=ALL, prepare_failed=("u1", "u2", "u0")),
    decision(
        "Waiting",
        "WorkersSilent",
        NOBODY,
        Prepare("u1", "10.0.0.1", REQUEST),
        CreatePod(4, SUSPECT),
        conditions=PREPARING,
        requeue_after=5.0,
        suspects=SUSPECT,
    ),
)
NOT_ENOUGH = (
    f"1 of at least 2 workers can run; waiting for {NEED_4}; worker 5: it is starting on node n5; look at its events if it stays so; "
    "worker 6: its container main cannot start on node n0: ErrImagePull: no; it is tried again and again; look at the events of pod gpt-w6"
)
case(
    "below min: Waiting tells how many, which and why; the lost workers' pods go, they may hold the room",
    preparing(
        status=preparing_status(
            workers=(
                *rows(0),
                *rows(3, state="Lost"),
                WorkerStatus(4, "Wanted"),
                WorkerStatus(5, "Wanted"),
                WorkerStatus(6, "Wanted"),
            ),
            next_worker_id=7,
        ),
        pods=(
            pod(0),
            pod(3),
            pending(4, plan_attempt=0, avoid=("n3",), unschedulable="no room"),
            pending(5, node="n5"),
            pending(6, node="n0", hindrance=Hindrance("main", "ErrImagePull", "no")),
        ),
        nodes={**nodes(n3={"unreachable": True}), "n5": node("n5")},
    ),
    decision(
        "Waiting",
        "NotEnoughWorkers",
        NOT_ENOUGH,
        DeletePod("gpt-w3", "u3", "7"),
        conditions={"Degraded": ("True", "NotEnoughWorkers", NOT_ENOUGH)},
        requeue_after=5.0,
        suspects=SUSPECT,
    ),
)
case(
    "R3: the answer to prepare becomes the plan; the ledger says what was lost",
    preparing(prepare=answer()),
    decision(
        "Recovering",
        "StartingAttempt",
        "attempt 2: 3 workers from step 30",
        WriteStatus(
            replace(
                planned_2(),
                history=(
                    entry(1, ended_at="then"),
                    entry(
                        2,
                        cause="node-lost",
                        world_size=3,
                        resumed_step=30,
                        steps_lost=7,
                        nodes=("n0", "n1", "n2"),
                        num_workers=3,
                        seconds=StageSeconds(0.0, 0.0, 2.0),
                    ),
                ),
            )
        ),
        conditions={"Degraded": ("True", "FewerWorkers", "3 of 4 workers; more join when they can")},
        notices=(Notice("Normal", "AttemptPlanned", "attempt 2: 3 workers from step 30"),),
        suspects=SUSPECT,
    ),
)
RENUMBERED = preparing_status(
    attempt=AttemptStatus(10, "Preparing", "new", "node-lost", 1, failure_at=NOW_TEXT, message="why"),
    history=(
        entry(1, ended_at="then"),
        entry(
            10,
            cause="node-lost",
            world_size=0,
            resumed_step=-1,
            steps_lost=None,
            nodes=(),
            seconds=StageSeconds(detected=0.0),
            message="why",
            started_at=NOW_TEXT,
        ),
    ),
)
case(
    "R1: fenced by a higher attempt: the number above it, a new intent, nothing counted twice",
    preparing(prepare=answer(outcome="fenced", highest=9)),
    decision(
        "Recovering",
        "Renumbered",
        "a newer attempt, 9, was found on storage",
        WriteStatus(RENUMBERED),
        conditions=PREPARING,
        suspects=SUSPECT,
    ),
)
case(
    "R11: storage missing is unknown, not empty: wait, ask again",
    preparing(prepare=answer(outcome="wait", reason="StorageMissing", message="everstep.json is not there"), pods=ALL),
    decision(
        "Waiting",
        "StorageMissing",
        "everstep.json is not there",
        Prepare("u0", "10.0.0.0", REQUEST),
        CreatePod(4, SUSPECT),
        conditions={**PREPARING, "CheckpointHealthy": ("False", "StorageMissing", "everstep.json is not there")},
        requeue_after=2.0,
        suspects=SUSPECT,
    ),
)
REFUSED = "none is complete (refused: step_30: rank file 2 is short)"
case(
    "R12: no usable checkpoint: stop, with every directory and why; not asked again at once",
    preparing(
        prepare=answer(
            outcome="stop",
            reason="NoUsableCheckpoint",
            message="none is complete",
            refused=(Refusal("step_30", "rank file 2 is short"),),
        ),
        prepare_age_seconds=10.0,
    ),
    decision(
        "Waiting",
        "NoUsableCheckpoint",
        REFUSED,
        conditions={**PREPARING, "CheckpointHealthy": ("False", "NoUsableCheckpoint", REFUSED)},
        requeue_after=20.0,
        suspects=SUSPECT,
    ),
)
FINISHED_RUN = "set resumeFrom"
case(
    "B48: a finished run of a former job in the storage: the spec must say what to do",
    preparing(
        prepare=answer(outcome="stop", reason="FinishedRunInStorage", message=FINISHED_RUN), prepare_age_seconds=10.0
    ),
    decision(
        "Waiting",
        "FinishedRunInStorage",
        FINISHED_RUN,
        conditions={
            **PREPARING,
            "Valid": ("False", "FinishedRunInStorage", FINISHED_RUN),
            "CheckpointHealthy": ("False", "FinishedRunInStorage", FINISHED_RUN),
        },
        requeue_after=20.0,
        suspects=SUSPECT,
    ),
)
case(
    "R12: the spec was edited after a stop: asked again under a new number",
    preparing(prepare=answer(outcome="stop", reason="NoUsableCheckpoint"), generation=2, spec=spec(resume_from="none")),
    decision(
        "Recovering",
        "Renumbered",
        "the spec was changed",
        WriteStatus(
            replace(
                RENUMBERED,
                attempt=replace(RENUMBERED.attempt, number=3, intent_generation=2),  # type: ignore[type-var]
                history=(RENUMBERED.history[0], replace(RENUMBERED.history[1], number=3)),
            )
        ),
        conditions=PREPARING,
        suspects=SUSPECT,
    ),
)
BACKOFF = "4 attempts in a row ended and reported no checkpoint: the next one waits 10 s"
case(
    "R32: free restarts without a commit back off",
    preparing(status=preparing_status(budget=Budget((), 0, 4))),
    decision("Waiting", "BackOff", BACKOFF, conditions=PREPARING, requeue_after=9.9, suspects=SUSPECT),
)
case(
    "R30: suspended while preparing: the number is burnt, every id too",
    preparing(spec=spec(suspend=True)),
    decision(
        "Suspended",
        "Suspended",
        "the job is suspended",
        WriteStatus(
            preparing_status(
                attempt=replace(preparing_status().attempt, state="Ended", ended="suspended"),  # type: ignore[type-var]
                workers=(),
                started_at="",
                history=(entry(1, ended_at="then"), replace(preparing_status().history[1], ended_at=NOW_TEXT)),
            )
        ),
        conditions={"Degraded": NOTHING_RUNS, "Suspended": IS_SUSPENDED},
        notices=(Notice("Normal", "Suspended", "the job is suspended"),),
        suspects=SUSPECT,
    ),
)
NOT_SEEN = "2 of at least 3 workers see the storage of this job; gpt-w2 on n2 does not see this job's storage: mount the claim there"
case(
    "R11: too few see the storage: wait, name worker, node and path, and ask again; nothing is decided by those that see too little",
    preparing(
        pods=ALL,
        spec=spec(min_workers=3),
        prepare=answer(sights=(*good_sight(0, 1).values(), blind_sight(2))),
        prepare_by="u0",
        prepare_age_seconds=20.0,
    ),
    decision(
        "Waiting",
        "StorageNotShared",
        NOT_SEEN,
        AskSight("u2", "10.0.0.2", 2, "i2"),
        CreatePod(4, SUSPECT),
        DeletePod("gpt-w3", "u3", "7"),
        conditions={**PREPARING, "CheckpointHealthy": ("False", "StorageNotShared", NOT_SEEN)},
        requeue_after=5.0,
        suspects=SUSPECT,
    ),
)
STALLED = (
    "the storage hangs at worker 0 on node n0: calls into it do not return; look at the mount there and at the storage's server; "
    "other workers are asked meanwhile"
)
case(
    "R4: a look at the storage that does not get on: told with worker and node, and another pod is asked, same number, same intent",
    preparing(
        pods=ALL,
        prepare=answer(outcome="busy", reason="", message="", progress_age_seconds=30.0),
        prepare_by="u0",
        prepare_age_seconds=0.2,
    ),
    decision(
        "Waiting",
        "StorageHangs",
        STALLED,
        Prepare("u1", "10.0.0.1", REQUEST),
        CreatePod(4, SUSPECT),
        conditions={**PREPARING, "CheckpointHealthy": ("False", "StorageHangs", STALLED)},
        requeue_after=1.0,
        suspects=SUSPECT,
    ),
)
