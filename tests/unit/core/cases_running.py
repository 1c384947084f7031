"""A running attempt: keep the books, see what ends it, stop it with grace."""

from __future__ import annotations

from typing import Any

from everstep_operator.core.model import (
    Budget,
    CheckpointStatus,
    Crash,
    Notice,
    WriteStatus,
)
from unit.core.decisions import (
    CRASHED,
    LEFT_3,
    LOST_3,
    NONE_YET,
    NOTHING_RUNS,
    PREPARING,
    THREE,
    TRAINS,
    Table,
    after_loss,
    decision,
    failed,
)
from unit.core.jobs import (
    NOW_TEXT,
    SILENT,
    info,
    newest,
    nodes,
    observed,
    over,
    pod,
    sidecar,
    spec,
    started_status,
    training,
)

TABLE = Table()
case = TABLE.case

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
        step_age_seconds=10.0,
        status=started_status(checkpoints=CheckpointStatus(True, newest(1, 30), ("c1-10",))),
        sidecar=sidecar(checkpoints=(info(1, 20), info(1, 30)), deleted=("c1-10",)),
    ),
    decision("Running", "Training", TRAINS, WriteStatus(started_status())),
)
case(
    "R13: what was deleted is forgotten with the next write: it is worth none of its own",
    observed(
        status=started_status(checkpoints=CheckpointStatus(True, newest(1, 30), ("c1-10",))),
        sidecar=sidecar(checkpoints=(info(1, 20), info(1, 30)), deleted=("c1-10",)),
    ),
    decision("Running", "Training", TRAINS, requeue_after=10.0),
)
case(
    "of many jobs a quiet one is looked at less often",
    observed(look_pause=30.0),
    decision("Running", "Training", TRAINS, requeue_after=30.0),
)
case(
    "of many jobs each writes its step less often",
    observed(step_age_seconds=99.0, step_pause=100.0, sidecar=sidecar(training=training(39))),
    decision("Running", "Training", TRAINS, requeue_after=10.0),
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
    "R32: connections broke and nobody said why: a victim is looked for before anybody is charged",
    observed(sidecar=sidecar(over=over("peer-lost", age_seconds=3.0))),
    decision("Running", "Training", TRAINS, requeue_after=0.5),
)
case(
    "R32: connections broke, nobody said why, and no victim is found: a crash",
    observed(sidecar=sidecar(over=over("peer-lost", age_seconds=4.0))),
    decision(
        "Recovering",
        "Preparing",
        "peer-lost happened",
        WriteStatus(
            after_loss(
                "crash", "peer-lost happened", failure_at="2025-11-29T07:06:35.800Z", detected=4.2, budget=CRASHED
            )
        ),
        conditions=PREPARING,
        notices=(Notice("Warning", "AttemptEnded", "crash: peer-lost happened"),),
    ),
)
case(
    "R32: peers felt it, but a node is gone: node-lost, nothing spent",
    observed(sidecar=sidecar(over=over("peer-lost")), nodes=nodes(3), gone_nodes=frozenset({"n3"})),
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
            "Complete": ("False", "NoProgress", "the job has ended otherwise: see condition Failed"),
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
            "Complete": ("False", "CrashBudgetExceeded", "the job has ended otherwise: see condition Failed"),
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
            "Complete": ("False", "DeadlineExceeded", "the job has ended otherwise: see condition Failed"),
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
