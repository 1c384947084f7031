"""The specification of `decide`: each id is a sentence, each case compares a whole Decision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everstep_operator.core.decide import decide
from everstep_operator.core.model import (
    Announce,
    AskLeave,
    AttemptStatus,
    Budget,
    CheckpointStatus,
    Condition,
    Crash,
    CreatePod,
    Decision,
    DeleteJob,
    DeletePod,
    JobStatus,
    Notice,
    Observed,
    Prepare,
    PublishPlan,
    StageSeconds,
    WorkerStatus,
    WriteStatus,
)
from everstep_protocol.codec import dumps
from everstep_protocol.local import TerminationMessage
from everstep_protocol.messages import Peer, PrepareRequest, SaveFailure
from everstep_protocol.plan import sealed
from everstep_protocol.resume import Refusal
from unit.core.jobs import (
    NOW_TEXT,
    SETTINGS,
    SILENT,
    answer,
    entry,
    info,
    newest,
    node,
    nodes,
    observed,
    over,
    pending,
    plan,
    pod,
    preparing,
    preparing_status,
    resume,
    rows,
    sidecar,
    spec,
    started_status,
    training,
)

TRAINS = "attempt 1: 4 workers from step 0"
HEALTHY = {
    "Valid": ("True", "Accepted", "the spec is valid"),
    "Ready": ("True", "Training", TRAINS),
    "Degraded": ("False", "AllWorkers", "as many workers as wanted"),
    "CheckpointHealthy": ("True", "Committed", "the newest checkpoint is complete"),
    "Suspended": ("False", "NotSuspended", "the job is not suspended"),
    "Complete": ("False", "NotFinished", ""),
    "Failed": ("False", "NotFinished", ""),
}
NOTHING_RUNS = ("False", "NothingRuns", "no attempt runs")
NONE_YET = ("Unknown", "NoneYet", "no checkpoint was committed yet")
IS_SUSPENDED = ("True", "Suspended", "spec.suspend is true; set it to false to go on")


def decision(phase: Any, reason: str, message: str, *actions: Any, **rest: Any) -> Decision:
    """A whole decision; `conditions` names those that differ from a healthy job's, Ready follows from reason and message."""
    conditions = {**HEALTHY, **rest.pop("conditions", {})}
    if (phase, reason) != ("Running", "Training"):
        conditions["Ready"] = ("False", reason, message)
    else:
        conditions["Ready"] = ("True", reason, message)
    built = tuple(Condition(kind, *words) for kind, words in conditions.items())  # type: ignore[arg-type]
    return Decision(phase, reason, message, actions, built, **rest)


def changed(status: JobStatus, **changes: Any) -> JobStatus:
    return replace(status, **changes)


def after_loss(cause: Any, message: str, **changes: Any) -> JobStatus:
    """Status once attempt 2 is being prepared, `failure` seconds ago."""
    failure_at = changes.pop("failure_at", NOW_TEXT)
    detected = changes.pop("detected", 0.0)
    attempt = AttemptStatus(2, "Preparing", "new", cause, 1, failure_at=failure_at, message=message)
    history = (
        entry(1, ended_at=NOW_TEXT),
        entry(
            2,
            cause=cause,
            world_size=0,
            resumed_step=-1,
            steps_lost=None,
            nodes=(),
            message=message,
            seconds=StageSeconds(detected=detected),
            started_at=NOW_TEXT,
        ),
    )
    return started_status(attempt=attempt, history=history, **{"restarts": {cause: 1, "total": 1}, **changes})


FRESH = JobStatus(
    attempt=AttemptStatus(1, "Preparing", "new", "start", 1, failure_at=NOW_TEXT, message="the job starts"),
    next_worker_id=4,
    workers=rows(0, 1, 2, 3, state="Wanted"),
    history=(
        entry(
            1,
            world_size=0,
            resumed_step=-1,
            steps_lost=None,
            nodes=(),
            seconds=StageSeconds(detected=0.0),
            message="the job starts",
            started_at=NOW_TEXT,
        ),
    ),
    started_at=NOW_TEXT,
)
LOST_3 = (*rows(0, 1, 2), *rows(3, state="Lost"), *rows(4, state="Wanted"))
LEFT_3 = (*rows(0, 1, 2), *rows(3, state="Leaving"), *rows(4, state="Wanted"))
ALL = tuple(pod(i) for i in range(4))
THREE = tuple(pod(i) for i in range(3))
PLAN_2 = sealed(replace(plan(2, (0, 1, 2)), resume=resume(1, 30), lineage=((1, 30),), cause="node-lost"))
PEERS = tuple(Peer(f"u{i}", f"10.0.0.{i}") for i in range(4))
REQUEST = PrepareRequest(2, "i2", ((0, 0),), 1, (), (), True, True, None, PEERS)


def planned_2(**changes: Any) -> JobStatus:
    """Attempt 2 of three workers is Planned."""
    base = preparing_status()
    assert base.attempt
    return replace(
        base,
        attempt=replace(base.attempt, state="Planned", plan=PLAN_2),
        lineage=((1, 30),),
        last_attempt=2,
        step=30,
        history=(
            entry(1, ended_at="then"),
            entry(
                2,
                cause="node-lost",
                world_size=3,
                resumed_step=30,
                steps_lost=7,
                nodes=("n0", "n1", "n2"),
                seconds=StageSeconds(0.0, 0.0, 2.0),
            ),
        ),
        **changes,
    )


NEED_4 = "worker 4: it cannot be scheduled: no room"
SUSPECT = ("n3",)
CRASHED = Budget((Crash(1, NOW_TEXT),), 0, 0)
DYING = TerminationMessage(attempt=1, result="finished")

CASES: dict[str, tuple[Observed, Decision]] = {}


def case(name: str, seen: Observed, expected: Decision) -> None:
    assert name not in CASES
    CASES[name] = (seen, expected)


def starting(status: JobStatus = FRESH, **changes: Any) -> Observed:
    return observed(
        **{"status": status, "pods": (), "sidecar": None, "attempt_age_seconds": 1.0, "go_age_seconds": 0.0, **changes}
    )


# ------------------------------------------------------------ before the first attempt
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
        "spec.workers: no",
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
    "Preparing without pods: pods for the ids in status, never on a suspect node",
    starting(nodes=nodes(5, n4={"ready_age_seconds": 1.0})),
    decision(
        "Starting",
        "StartingWorkers",
        "0 of at least 2 workers can run; waiting for "
        + "; ".join(f"worker {i}: its pod is being created" for i in range(4)),
        *(CreatePod(i, ("n4",)) for i in range(4)),
        conditions={"Degraded": NOTHING_RUNS, "CheckpointHealthy": NONE_YET},
        requeue_after=29.0,
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
        requeue_after=29.0,
    ),
)
FIRST_REQUEST = PrepareRequest(1, "new", (), 0, (), (), False, False, None, PEERS[:3])
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

# ------------------------------------------------------------ recovery
PREPARING = {"Degraded": NOTHING_RUNS}
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
case(
    "R4: when all left it unanswered, the first is asked again",
    preparing(pods=ALL, prepare_failed=("u1", "u2", "u0")),
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
NOT_ENOUGH = (
    f"1 of at least 2 workers can run; waiting for {NEED_4}; worker 5: it is starting on node n5; "
    "worker 6: its container cannot start: ErrImagePull: no"
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
            pending(6, node="n0", waiting="ErrImagePull: no"),
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
BACKOFF = "4 attempts in a row ended without a checkpoint in between: the next one waits 10 s"
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

# ------------------------------------------------------------ a planned attempt
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
            pending(4, plan_attempt=2, avoid=("n3",), unschedulable="no room"),
        ),
    ),
    decision(
        "Recovering",
        "StartingAttempt",
        WORKERS_2,
        PublishPlan("gpt-w0", "u0", 1, PLAN_2),
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
case(
    "R7: go was given: Started",
    preparing(status=planned_2(), pods=TOLD, sidecar=sidecar(2, (0, 1, 2), training=training(-1))),
    decision(
        "Running",
        "Training",
        WORKERS_2,
        WriteStatus(replace(planned_2(), attempt=replace(planned_2().attempt, state="Started"))),  # type: ignore[type-var]
        conditions={"Degraded": ("True", "FewerWorkers", f"3 of 4 workers; waiting for {NEED_4}")},
        notices=(Notice("Normal", "AttemptStarted", WORKERS_2),),
        suspects=SUSPECT,
    ),
)
STARTED_2 = replace(planned_2(), attempt=replace(planned_2().attempt, state="Started"))  # type: ignore[type-var]
case(
    "R21: once it started, lost pods are deleted, plainly",
    preparing(status=STARTED_2, pods=TOLD, sidecar=sidecar(2, (0, 1, 2), training=training(-1))),
    decision(
        "Running",
        "Training",
        WORKERS_2,
        DeletePod("gpt-w3", "u3", "7"),
        conditions=WAIT_FOR_4,
        requeue_after=10.0,
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
        "Running",
        "Training",
        WORKERS_2,
        DeletePod("gpt-w3", "u3", "7", force=True),
        conditions=WAIT_FOR_4,
        requeue_after=10.0,
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

# ------------------------------------------------------------ a running attempt
case(
    "nothing to do: no action, the next look in 10 s",
    observed(),
    decision("Running", "Training", TRAINS, requeue_after=10.0),
)
case(
    "a commit: newest, step and the counts without progress begin anew",
    observed(
        status=started_status(budget=Budget((Crash(0, NOW_TEXT),), 2, 5)),
        sidecar=sidecar(checkpoints=(info(1, 30), info(1, 40)), training=training(41)),
    ),
    decision(
        "Running",
        "Training",
        TRAINS,
        WriteStatus(
            started_status(
                budget=Budget((Crash(0, NOW_TEXT),), 0, 0), step=41, checkpoints=CheckpointStatus(True, newest(1, 40))
            )
        ),
    ),
)
case(
    "R13: what exceeds keepLast is condemned in status",
    observed(sidecar=sidecar(checkpoints=(info(1, 10), info(1, 20), info(1, 30)))),
    decision(
        "Running",
        "Training",
        TRAINS,
        WriteStatus(started_status(checkpoints=CheckpointStatus(True, newest(1, 30), ("c1-10",)))),
    ),
)
case(
    "R13: status forgets what was deleted",
    observed(
        status=started_status(checkpoints=CheckpointStatus(True, newest(1, 30), ("c1-10",))),
        sidecar=sidecar(checkpoints=(info(1, 20), info(1, 30)), deleted=("c1-10",)),
    ),
    decision("Running", "Training", TRAINS, WriteStatus(started_status())),
)
NO_ANSWER = "worker 3 on node n3 does not answer"
SAW_LOSS = {
    "sidecar": sidecar(training=training(37, age_seconds=4.0)),
    "training_age_seconds": 4.0,
    "networks": {"u3": SILENT},
}
case(
    "R25: a node lost by N and T: a new number, the id is given up, another one is wanted at once",
    observed(**SAW_LOSS),
    decision(
        "Recovering",
        "Preparing",
        NO_ANSWER,
        WriteStatus(
            after_loss(
                "node-lost",
                NO_ANSWER,
                workers=LOST_3,
                next_worker_id=5,
                failure_at="2025-11-29T07:06:36.000Z",
                detected=4.0,
            )
        ),
        conditions=PREPARING,
        notices=(Notice("Warning", "AttemptEnded", f"node-lost: {NO_ANSWER}"),),
    ),
)
case(
    "R32: a crash in place: same pods, one crash spent",
    observed(sidecar=sidecar(over=over("crash"))),
    decision(
        "Recovering",
        "Preparing",
        "crash happened",
        WriteStatus(
            after_loss("crash", "crash happened", failure_at="2025-11-29T07:06:39.800Z", detected=0.2, budget=CRASHED)
        ),
        conditions=PREPARING,
        notices=(Notice("Warning", "AttemptEnded", "crash: crash happened"),),
    ),
)
case(
    "R32: peers felt it, but a node is gone: node-lost, nothing spent",
    observed(sidecar=sidecar(over=over("peer-lost")), nodes=nodes(3)),
    decision(
        "Recovering",
        "Preparing",
        "node n3 of worker 3 was removed from the cluster",
        WriteStatus(
            after_loss(
                "node-lost",
                "node n3 of worker 3 was removed from the cluster",
                workers=LOST_3,
                next_worker_id=5,
                failure_at="2025-11-29T07:06:39.700Z",
                detected=0.3,
            )
        ),
        conditions=PREPARING,
        notices=(Notice("Warning", "AttemptEnded", "node-lost: node n3 of worker 3 was removed from the cluster"),),
    ),
)
LEAVES = "worker 3 on node n3 was told to leave"
case(
    "R32: a crash of a pod that was told to leave is a drain, nothing spent",
    observed(
        sidecar=sidecar(over=over("crash", uid="u3")),
        pods=(*THREE, pod(3, deletion_age_seconds=1.0, deletion_grace_seconds=30.0)),
    ),
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
NEXT_CRASH = Budget((Crash(1, NOW_TEXT),), 3, 3)


def failed(reason: str, message: str, base: JobStatus, **changes: Any) -> JobStatus:
    ended = replace(base.attempt, state="Ended", ended="failed", plan=None)  # type: ignore[type-var]
    ledger = tuple(e if e.ended_at else replace(e, ended_at=NOW_TEXT) for e in base.history)
    return replace(
        base,
        attempt=ended,
        history=ledger,
        completed_at=NOW_TEXT,
        result="Failed",
        result_reason=reason,
        result_message=message,
        **changes,
    )


NEVER_COMMITTED: dict[str, Any] = {"checkpoints": CheckpointStatus(), "step": -1}
AT_IMPORT = "3 crashes in a row without a checkpoint in between. crash happened"
case(
    "R32: the third crash in a row without a commit: NoProgress, with what the first rank said last",
    observed(
        status=started_status(budget=Budget((), 2, 2), **NEVER_COMMITTED),
        sidecar=sidecar(over=over("crash"), training=training(-1)),
    ),
    decision(
        "Failed",
        "NoProgress",
        AT_IMPORT,
        WriteStatus(failed("NoProgress", AT_IMPORT, started_status(budget=NEXT_CRASH, **NEVER_COMMITTED))),
        conditions={
            "Degraded": NOTHING_RUNS,
            "CheckpointHealthy": NONE_YET,
            "Failed": ("True", "NoProgress", AT_IMPORT),
            "Complete": ("False", "NoProgress", ""),
        },
        notices=(Notice("Warning", "NoProgress", AT_IMPORT),),
    ),
)
SPENT = "6 crashes within 3600 s, restartPolicy.maxCrashes is 5. crash happened"
FIVE = tuple(Crash(0, NOW_TEXT) for _ in range(5))
COMMITTED_HERE = Budget((*FIVE, Crash(1, NOW_TEXT)), 0, 0)
case(
    "R32: the budget fails when crashes in the window exceed maxCrashes, though each made progress",
    observed(status=started_status(budget=Budget(FIVE, 0, 0)), sidecar=sidecar(over=over("crash"))),
    decision(
        "Failed",
        "CrashBudgetExceeded",
        SPENT,
        WriteStatus(failed("CrashBudgetExceeded", SPENT, started_status(budget=COMMITTED_HERE))),
        conditions={
            "Degraded": NOTHING_RUNS,
            "Failed": ("True", "CrashBudgetExceeded", SPENT),
            "Complete": ("False", "CrashBudgetExceeded", ""),
        },
        notices=(Notice("Warning", "CrashBudgetExceeded", SPENT),),
    ),
)
LATE = "the job was active for more than activeDeadlineSeconds (60 s)"
case(
    "activeDeadlineSeconds is over",
    observed(spec=spec(active_deadline_seconds=60.0), status=started_status(started_at="2025-11-29T07:05:39.000Z")),
    decision(
        "Failed",
        "DeadlineExceeded",
        LATE,
        WriteStatus(failed("DeadlineExceeded", LATE, started_status(started_at="2025-11-29T07:05:39.000Z"))),
        conditions={
            "Degraded": NOTHING_RUNS,
            "Failed": ("True", "DeadlineExceeded", LATE),
            "Complete": ("False", "DeadlineExceeded", ""),
        },
        notices=(Notice("Warning", "DeadlineExceeded", LATE),),
    ),
)
case(
    "R17: bad is remembered",
    observed(sidecar=sidecar(over=over("bad-checkpoint", bad=("c0-9",)))),
    decision(
        "Recovering",
        "Preparing",
        "bad-checkpoint happened",
        WriteStatus(
            after_loss(
                "bad-checkpoint",
                "bad-checkpoint happened",
                checkpoints=CheckpointStatus(True, newest(1, 30), (), ("c0-9",)),
                failure_at="2025-11-29T07:06:39.800Z",
                detected=0.2,
            )
        ),
        conditions=PREPARING,
        notices=(Notice("Warning", "AttemptEnded", "bad-checkpoint: bad-checkpoint happened"),),
    ),
)
HANG = "no step for 600 s and nothing else is wrong: the trainers hang"
case(
    "T alone, long enough: a hang, which spends the budget",
    observed(sidecar=sidecar(training=training(age_seconds=600.0)), training_age_seconds=600.0),
    decision(
        "Recovering",
        "Preparing",
        HANG,
        WriteStatus(after_loss("hang", HANG, failure_at="2025-11-29T06:56:40.000Z", detected=600.0, budget=CRASHED)),
        conditions=PREPARING,
        notices=(Notice("Warning", "AttemptEnded", f"hang: {HANG}"),),
    ),
)
GOING = (*THREE, pod(3, deletion_age_seconds=1.0, deletion_grace_seconds=30.0))
case(
    "R19: a member leaves: save-and-stop is asked for once, until 5 s before its grace ends",
    observed(pods=GOING, announced=("u3",)),
    decision("Running", "Training", TRAINS, AskLeave("u0", "10.0.0.0", 1, 24.0), requeue_after=5.0),
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
}
case(
    "grow: a worker that settled can join: save-and-stop first",
    observed(**GROWABLE),
    decision(
        "Running",
        "Training",
        TRAIN_3,
        AskLeave("u0", "10.0.0.0", 1, 120.0),
        conditions={"Degraded": ("True", "FewerWorkers", "3 of 4 workers; more are about to join")},
        requeue_after=10.0,
    ),
)
case(
    "R16: saves fail: planned changes wait",
    observed(
        **{**GROWABLE, "sidecar": sidecar(members=(0, 1, 2), failing=SaveFailure("ENOSPC", "the claim is full", 9.0))}
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
            )
        ),
        conditions=PREPARING,
        notices=(Notice("Normal", "AttemptEnded", f"grow: {GROWN}"),),
    ),
)
case(
    "shrink: spec.workers.max was lowered: save-and-stop first",
    observed(spec=spec(max_workers=3)),
    decision("Running", "Training", TRAINS, AskLeave("u0", "10.0.0.0", 1, 120.0), requeue_after=10.0),
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
        "Running", "Suspending", "the attempt saves and stops", AskLeave("u0", "10.0.0.0", 1, 120.0), requeue_after=1.0
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

# ------------------------------------------------------------ the end
COMPLETE_TEXT = "every worker finished and the last checkpoint is committed"
COMPLETE = started_status(
    attempt=replace(started_status().attempt, state="Ended", ended="finished", plan=None),  # type: ignore[type-var]
    workers=rows(0, 1, 2, 3, state="Finished"),
    history=(entry(1, ended_at=NOW_TEXT),),
    completed_at=NOW_TEXT,
    result="Complete",
    result_reason="Finished",
    result_message=COMPLETE_TEXT,
)
IS_COMPLETE = {
    "Degraded": NOTHING_RUNS,
    "Complete": ("True", "Finished", COMPLETE_TEXT),
    "Failed": ("False", "Finished", ""),
}
ENDED = {"phase": "Succeeded", "trainer_terminated": True, "termination_message": dumps(DYING)}
case(
    "R31: the coordinator says finished: Complete",
    observed(sidecar=sidecar(finished=True)),
    decision(
        "Succeeded",
        "Finished",
        COMPLETE_TEXT,
        WriteStatus(COMPLETE),
        conditions=IS_COMPLETE,
        notices=(Notice("Normal", "Complete", COMPLETE_TEXT),),
    ),
)
case(
    "R31: every member's last word is finished: Complete",
    observed(sidecar=None, pods=tuple(pod(i, **ENDED) for i in range(4))),
    decision(
        "Succeeded",
        "Finished",
        COMPLETE_TEXT,
        WriteStatus(COMPLETE),
        conditions=IS_COMPLETE,
        notices=(Notice("Normal", "Complete", COMPLETE_TEXT),),
    ),
)
case(
    "R31: one member's last word: its state outlives its pod",
    observed(pods=(*THREE, pod(3, **ENDED))),
    decision(
        "Running",
        "Training",
        TRAINS,
        WriteStatus(started_status(workers=(*rows(0, 1, 2), *rows(3, state="Finished")))),
    ),
)
case(
    "R31: and it is not lost when its pod is gone",
    observed(pods=THREE, status=started_status(workers=(*rows(0, 1, 2), *rows(3, state="Finished")))),
    decision("Running", "Training", TRAINS, requeue_after=10.0),
)
case(
    "B37: after Complete: finished pods stay, a pending one goes at once",
    observed(status=COMPLETE, pods=(pod(0, **ENDED), pod(1), pending(9))),
    decision(
        "Succeeded",
        "Finished",
        COMPLETE_TEXT,
        DeletePod("gpt-w9", "u9", "7"),
        conditions=IS_COMPLETE,
        requeue_after=30.0,
    ),
)
case(
    "B37: pods that still run after a while are deleted",
    observed(status=replace(COMPLETE, completed_at="2025-11-29T07:06:00.000Z"), pods=(pod(0, **ENDED), pod(1))),
    decision("Succeeded", "Finished", COMPLETE_TEXT, DeletePod("gpt-w1", "u1", "7"), conditions=IS_COMPLETE),
)
case(
    "the TTL is over: the job goes",
    observed(
        status=replace(COMPLETE, completed_at="2025-11-29T07:05:00.000Z"), spec=spec(ttl_seconds_after_finished=60.0)
    ),
    decision("Succeeded", "Finished", COMPLETE_TEXT, DeleteJob(), conditions=IS_COMPLETE),
)
case(
    "after Failed: running pods are deleted, ended ones stay for their logs",
    observed(status=failed("NoProgress", "why", started_status()), pods=(pod(0), pod(1, phase="Failed"))),
    decision(
        "Failed",
        "NoProgress",
        "why",
        DeletePod("gpt-w0", "u0", "7"),
        requeue_after=30.0,
        conditions={
            "Degraded": NOTHING_RUNS,
            "Failed": ("True", "NoProgress", "why"),
            "Complete": ("False", "NoProgress", ""),
        },
    ),
)


@pytest.mark.parametrize(("seen", "expected"), CASES.values(), ids=CASES)
def test_decide(seen: Observed, expected: Decision) -> None:
    assert decide(seen, SETTINGS) == expected


@pytest.mark.parametrize(("seen", "expected"), CASES.values(), ids=CASES)
def test_a_status_write_is_the_only_action_of_its_decision(seen: Observed, expected: Decision) -> None:
    actions = decide(seen, SETTINGS).actions
    assert len(actions) == 1 or not any(isinstance(action, WriteStatus) for action in actions)
