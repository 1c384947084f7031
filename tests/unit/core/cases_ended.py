"""After the end."""

from __future__ import annotations

from dataclasses import replace

from everstep_operator.core.model import (
    AskExit,
    DeleteJob,
    DeletePod,
    Notice,
    WriteStatus,
)
from everstep_protocol.codec import dumps
from unit.core.decisions import (
    DYING,
    NOTHING_RUNS,
    THREE,
    TRAINS,
    Table,
    decision,
    failed,
)
from unit.core.jobs import (
    NOW_TEXT,
    entry,
    observed,
    pending,
    pod,
    rows,
    sidecar,
    spec,
    started_status,
)

TABLE = Table()
case = TABLE.case

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
    "Failed": ("False", "Finished", "the job has ended otherwise: see condition Complete"),
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
IS_FAILED = {
    "Degraded": NOTHING_RUNS,
    "Failed": ("True", "NoProgress", "why"),
    "Complete": ("False", "NoProgress", "the job has ended otherwise: see condition Failed"),
}
FAILED = failed("NoProgress", "why", started_status())
case(
    "after Failed: pods that trained are asked to end by themselves, ended ones stay for their logs, others go",
    observed(
        status=replace(FAILED, workers=(*FAILED.workers, *rows(8, 9, state="Wanted"))),
        pods=(pod(0), pod(1, phase="Failed"), pod(2, sidecar_running=False), pod(8), pending(9)),
    ),
    decision(
        "Failed",
        "NoProgress",
        "why",
        AskExit("u0", "10.0.0.0", 1, "NoProgress: why"),
        DeletePod("gpt-w8", "u8", "7"),
        DeletePod("gpt-w9", "u9", "7"),
        requeue_after=30.0,
        conditions=IS_FAILED,
    ),
)
case(
    "after Failed: what does not end by itself is deleted after a while",
    observed(status=replace(FAILED, completed_at="2025-11-29T07:06:00.000Z"), pods=(pod(0), pod(1, phase="Succeeded"))),
    decision("Failed", "NoProgress", "why", DeletePod("gpt-w0", "u0", "7"), conditions=IS_FAILED),
)
case(
    "after Failed: who is given up or being deleted already is asked nothing",
    observed(
        status=replace(FAILED, workers=(*rows(0), *rows(1, state="Lost"))),
        pods=(pod(0, deletion_age_seconds=1.0), pod(1)),
    ),
    decision(
        "Failed",
        "NoProgress",
        "why",
        DeletePod("gpt-w1", "u1", "7"),
        requeue_after=30.0,
        conditions=IS_FAILED,
        suspects=("n1",),
    ),
)
