"""What the tables of `decide` are written in: whole decisions, and the statuses that they write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from everstep_operator.core.model import (
    AttemptStatus,
    Budget,
    Condition,
    Crash,
    Decision,
    JobStatus,
    Observed,
    StageSeconds,
)
from everstep_operator.core.workers import REPAIR
from everstep_protocol.local import TerminationMessage
from everstep_protocol.messages import Peer, PrepareRequest
from everstep_protocol.plan import sealed
from unit.core.jobs import (
    NOW_TEXT,
    entry,
    observed,
    plan,
    pod,
    preparing_status,
    resume,
    rows,
    started_status,
)


class Table(dict[str, tuple[Observed, Decision]]):
    """Sentences and what they mean."""

    def case(self, name: str, seen: Observed, expected: Decision) -> None:
        """One more; each sentence once."""
        assert name not in self
        self[name] = (seen, expected)


TRAINS = "attempt 1: 4 workers from step 0"
HEALTHY = {
    "Valid": ("True", "Accepted", "the spec is valid"),
    "Ready": ("True", "Training", TRAINS),
    "Degraded": ("False", "AllWorkers", "as many workers as wanted"),
    "CheckpointHealthy": ("True", "Committed", "the newest checkpoint is complete"),
    "Suspended": ("False", "NotSuspended", "the job is not suspended"),
    "Complete": ("False", "NotFinished", "the job has not ended"),
    "Failed": ("False", "NotFinished", "the job has not ended"),
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
REQUEST = PrepareRequest(2, "i2", ((0, 0),), 1, (), (), True, True, None, PEERS, ("u0", "u1", "u2"))


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
                num_workers=3,
                seconds=StageSeconds(0.0, 0.0, 2.0),
            ),
        ),
        **changes,
    )


NEED_4 = (
    f"worker 4: it cannot be scheduled: no room (the pod of worker 3 on node n3 is still there: if that node does not answer, {REPAIR}); "
    "make room for it, or lower spec.workers.max"
)
SUSPECT = ("n3",)
CRASHED = Budget((Crash(1, NOW_TEXT),), 0, 0)
DYING = TerminationMessage(attempt=1, result="finished")


def starting(status: JobStatus = FRESH, **changes: Any) -> Observed:
    return observed(
        **{"status": status, "pods": (), "sidecar": None, "attempt_age_seconds": 1.0, "go_age_seconds": 0.0, **changes}
    )


PREPARING = {"Degraded": NOTHING_RUNS}


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
