"""What is written of status, and when nothing is."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from everstep_operator.api import status as status_json
from everstep_operator.cluster.metrics import Metrics
from everstep_operator.cluster.report import build_patch, condition_notices, count_ready, merge_conditions
from everstep_operator.core.model import (
    AttemptStatus,
    Condition,
    Decision,
    HistoryEntry,
    JobStatus,
    Notice,
    Observed,
    StageSeconds,
)
from prometheus_client import generate_latest
from unit.core.jobs import nodes, observed, pod

READY = Condition("Ready", "True", "Training", "4 workers train")
NOT_READY = Condition("Ready", "False", "NodeLost", "n2 is gone")


def seen(status: JobStatus | None = None) -> Observed:
    return observed(
        uid="u",
        namespace="team",
        generation=3,
        spec=None,
        problems=("x",),
        status=status or JobStatus(),
        pods=(),
        nodes={},
        sidecar=None,
        sidecar_age_seconds=math.inf,
    )


def stored(patch: dict[str, Any]) -> dict[str, Any]:
    def prune(value: Any) -> Any:
        return {k: prune(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else value

    return {"status": prune(patch)}


def test_a_pass_that_changes_nothing_writes_nothing() -> None:
    decision = Decision("Running", "Training", "fine", conditions=(READY,))
    first = build_patch({}, seen(), decision, JobStatus())
    assert first["phase"] == "Running"
    assert build_patch(stored(first), seen(), decision, JobStatus()) == {}


def test_only_what_changed_is_written() -> None:
    decision = Decision("Running", "Training", "fine", conditions=(READY,))
    body = stored(build_patch({}, seen(), decision, JobStatus()))
    assert build_patch(body, seen(), decision, dataclasses.replace(JobStatus(), step=7)) == {"step": 7}


def test_a_field_that_vanishes_is_written_as_null() -> None:
    decision = Decision("Running", "Training", "fine")
    attempt = AttemptStatus(1, "Preparing", "i", "start", 1)
    body = stored(build_patch({}, seen(), decision, JobStatus(attempt=attempt)))
    assert build_patch(body, seen(), decision, JobStatus()) == {"attempt": None}


def test_a_condition_s_time_changes_only_when_it_flips() -> None:
    first = merge_conditions([], (READY,), generation=1, now="t1")
    again = merge_conditions(first, (dataclasses.replace(READY, message="other"),), generation=2, now="t2")
    assert [(c["lastTransitionTime"], c["message"], c["observedGeneration"]) for c in again] == [("t1", "other", 2)]
    flipped = merge_conditions(again, (NOT_READY,), generation=2, now="t3")
    assert [(c["lastTransitionTime"], c["status"]) for c in flipped] == [("t3", "False")]


def test_b42_one_entry_a_type_and_short_messages() -> None:
    conditions: list[dict[str, Any]] = []
    for i in range(500):
        message = Condition("Ready", "True" if i % 2 else "False", "R", "x" * 100_000)
        conditions = merge_conditions(conditions, (message,), generation=i, now=str(i))
    assert len(conditions) == 1
    assert len(conditions[0]["message"].encode()) <= status_json.MESSAGE_LIMIT


def test_b52_no_series_is_left_of_a_job_and_all_are_there_from_the_start() -> None:
    metrics = Metrics()
    phases: list[str] = []
    metrics.watch_phases(lambda: phases)
    base = generate_latest(metrics.registry).decode().count("\n")
    assert 'everstep_attempts_total{cause="node-lost"} 0.0' in generate_latest(metrics.registry).decode()
    phases.extend(["Running"] * 300)
    assert 'everstep_jobs{phase="Running"} 300.0' in generate_latest(metrics.registry).decode()
    phases.clear()
    assert generate_latest(metrics.registry).decode().count("\n") == base


def test_attempts_and_recoveries_are_counted_once() -> None:
    metrics = Metrics()
    attempt = AttemptStatus(2, "Preparing", "i", "node-lost", 1)
    entry = HistoryEntry(2, "node-lost", 3, 400, 12, StageSeconds(4.0), ("n1",))
    first = JobStatus(attempt=attempt, history=(entry,))
    then = dataclasses.replace(first, history=(dataclasses.replace(entry, seconds=StageSeconds(4.0, 4.4)),))
    metrics.count_change(JobStatus(), first)
    metrics.count_change(first, then)
    metrics.count_change(then, then)
    text = generate_latest(metrics.registry).decode()
    assert 'everstep_attempts_total{cause="node-lost"} 1.0' in text
    assert 'everstep_recovery_seconds_count{stage="detected"} 1.0' in text
    assert 'everstep_recovery_seconds_count{stage="planned"} 1.0' in text
    assert 'everstep_recovery_seconds_count{stage="first_step"} 0.0' in text


def test_what_did_not_fail_is_no_recovery() -> None:
    metrics = Metrics()
    entry = HistoryEntry(1, "start", 4, 0, None, StageSeconds(0.0, 20.0, 30.0), ("n1",))
    metrics.count_change(JobStatus(), JobStatus(history=(entry,)))
    assert 'everstep_recovery_seconds_count{stage="planned"} 0.0' in generate_latest(metrics.registry).decode()
    assert 'everstep_api_errors_total{code="409",verb="PATCH"} 0.0' in generate_latest(metrics.registry).decode()


MISSING = Condition("CheckpointHealthy", "False", "StorageMissing", "mount it")


def told(*conditions: Condition, old: tuple[Condition, ...] = (), phase: Any = "Waiting", **rest: Any) -> list[Notice]:
    entries = merge_conditions([], old, generation=1, now="t")
    return list(condition_notices(entries, Decision(phase, "R", "m", conditions=conditions, **rest)))


def test_a_condition_that_turns_bad_is_an_event_once() -> None:
    assert told(MISSING) == [Notice("Warning", "StorageMissing", "mount it")]
    assert told(dataclasses.replace(MISSING, message="mount it soon"), old=(MISSING,)) == []
    other = dataclasses.replace(MISSING, reason="StorageOwnedByAnother")
    assert told(other, old=(MISSING,)) == [Notice("Warning", "StorageOwnedByAnother", "mount it")]
    waits = Condition("Degraded", "True", "NotEnoughWorkers", "waiting for worker 3")
    assert told(waits, dataclasses.replace(waits, type="Ready", status="False")) == [
        Notice("Warning", "NotEnoughWorkers", "waiting for worker 3")
    ]
    assert told(READY, NOT_READY) == [], "losses are told by the core"


WAITING = (
    ("Degraded", "True", "ApiRefuses"),
    ("Degraded", "True", "PodsRemain"),
    ("Ready", "False", "BackOff"),
    ("Ready", "False", "NotProgressing"),
    ("Ready", "False", "StoppedWithoutSave"),
    ("Ready", "False", "WaitingForStorage"),
    ("Ready", "False", "WorkersSilent"),
)


@pytest.mark.parametrize(("kind", "status", "reason"), WAITING)
def test_what_a_job_waits_for_is_an_event_once(kind: Any, status: Any, reason: str) -> None:
    waits = Condition(kind, status, reason, "look at worker 3")
    assert told(waits) == [Notice("Warning", reason, "look at worker 3")]
    assert told(dataclasses.replace(waits, message="look at worker 4"), old=(waits,)) == []


def test_one_fault_is_one_event() -> None:
    finished = Condition("Valid", "False", "FinishedRunInStorage", "set spec.resumeFrom")
    assert len(told(finished, dataclasses.replace(finished, type="CheckpointHealthy"))) == 1
    assert told(MISSING, notices=(Notice("Warning", "StorageMissing", "x"),)) == []


def test_a_storage_that_is_well_again_is_told_when_the_job_runs() -> None:
    well = Condition("CheckpointHealthy", "True", "Committed", "fine")
    assert told(well, old=(MISSING,)) == [], "nobody knows yet"
    assert told(well, old=(MISSING,), phase="Running") == [Notice("Normal", "CheckpointHealthy", "fine")]


def test_nobody_is_ready_when_nothing_shall_train() -> None:
    there = dataclasses.replace(seen(), pods=(pod(0), pod(1)), nodes=nodes())
    assert count_ready(there, Decision("Waiting", "R", "m"), JobStatus()) == 2
    for phase in ("Suspended", "Succeeded", "Failed"):
        assert count_ready(there, Decision(phase, "R", "m"), JobStatus()) == 0  # type: ignore[arg-type]
