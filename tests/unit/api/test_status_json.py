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
