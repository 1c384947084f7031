"""JobStatus to the JSON in the API and back; a merge patch that says exactly this status; bounded size (B42)."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from everstep_operator.api import status as status_json
from everstep_operator.api.status_types import TrainingJobStatus
from everstep_operator.core.model import Crash, HistoryEntry, JobStatus, StageSeconds

_spec = importlib.util.spec_from_file_location("status_samples", Path(__file__).with_name("status_samples.py"))
assert _spec is not None
assert _spec.loader is not None
samples: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(samples)


def merged(old: Any, patch: Any) -> Any:
    """RFC 7386, as the API server merges."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


EMPTY = JobStatus()
FULL: JobStatus = samples.full_status()
PREPARING = dataclasses.replace(
    FULL, attempt=dataclasses.replace(FULL.attempt, number=8, state="Preparing", plan=None, ended="")
)


@pytest.mark.parametrize("status", [EMPTY, FULL, PREPARING], ids=["empty", "full", "preparing"])
@pytest.mark.parametrize("before", [EMPTY, FULL, PREPARING], ids=["from-empty", "from-full", "from-preparing"])
def test_a_merge_patch_says_exactly_this_status(before: JobStatus, status: JobStatus) -> None:
    status = dataclasses.replace(status, restarts={**before.restarts, **status.restarts})  # they only grow
    stored = merged(merged({}, status_json.to_patch(before)), status_json.to_patch(status))
    assert status_json.from_json(json.loads(json.dumps(stored))) == status


def test_what_is_stored_is_what_the_schema_says() -> None:
    stored = merged({}, status_json.to_patch(FULL))
    TrainingJobStatus.model_validate(stored)
    assert stored["attempt"]["plan"]["planID"] == FULL.attempt.plan.plan_id  # type: ignore[union-attr]


def test_no_status_is_an_empty_status() -> None:
    assert status_json.from_json(None) == EMPTY


def test_a_step_that_is_not_known_is_left_out() -> None:
    assert status_json.to_patch(EMPTY)["step"] is None


def test_b42_the_status_stays_small_after_500_restarts() -> None:
    noise = "Traceback\n" + "x" * 5_000_000
    history = tuple(HistoryEntry(i, "crash", 4, 0, 1, StageSeconds(1, 1, 1), ("n1",) * 8, noise) for i in range(500))
    crashes = tuple(Crash(i, samples.TIME) for i in range(500))
    status = dataclasses.replace(
        FULL,
        attempt=dataclasses.replace(FULL.attempt, message=noise),
        history=history,
        result_message=noise,
        budget=dataclasses.replace(FULL.budget, crashes=crashes),
    )
    patch = status_json.to_patch(status)
    assert len(json.dumps(patch)) < 64 * 1024
    assert [entry["number"] for entry in patch["history"]] == list(range(480, 500))


@pytest.mark.parametrize("text", ["", "short", "ä" * 3000, "\ud800" * 3000, "x" * 4096])
def test_cut_keeps_beginning_and_end_within_bytes(text: str) -> None:
    shortened = status_json.cut(text, 100)
    assert len(shortened.encode()) <= 100
    if len(text) > 100:
        assert "..." in shortened


def test_what_only_a_plan_can_say_is_left_out_while_there_is_none() -> None:
    entry = HistoryEntry(8, "node-lost", 0, -1, None, StageSeconds(4.1), (), "lost", samples.TIME)
    status = dataclasses.replace(FULL, history=(entry,))
    (stored,) = merged({}, status_json.to_patch(status))["history"]
    assert stored == {
        "number": 8, "cause": "node-lost", "seconds": {"detected": 4.1}, "message": "lost", "startedAt": samples.TIME
    }  # fmt: skip
    TrainingJobStatus.model_validate({"history": [stored]})
    assert status_json.from_json({"history": [stored]}).history == (entry,)


def test_a_budget_of_more_than_20_crashes_is_stored_whole() -> None:
    crashes = tuple(Crash(i, samples.TIME) for i in range(31))
    status = dataclasses.replace(FULL, budget=dataclasses.replace(FULL.budget, crashes=crashes))
    stored = merged({}, status_json.to_patch(status))
    assert status_json.from_json(stored).budget.crashes == crashes


def test_the_restarts_of_a_job_that_never_restarted_are_0() -> None:
    assert status_json.to_patch(EMPTY)["restarts"] == {"total": 0}


def test_what_was_not_said_is_not_shown_as_empty_text() -> None:
    assert "" not in merged({}, status_json.to_patch(EMPTY)).values()
