"""The last valid spec, as status keeps it for the time in which the newest is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everstep_operator.api import accepted
from everstep_operator.api.accepted import Accepted
from everstep_operator.core.model import JobSpec, RestartPolicy
from everstep_protocol.plan import SaveInterval

SPEC = JobSpec(2, 4, 8, "hash", SaveInterval(None, 30.0), 3, RestartPolicy(1, 60.0, 2))
FULL = replace(SPEC, interval=SaveInterval(5, 1.5), suspend=True, resume_from="a/b", active_deadline_seconds=9.0)


def stored(spec: JobSpec, generation: int = 3) -> dict[str, Any]:
    """As a server keeps it: without nulls."""
    document = accepted.to_json(spec, generation, None)

    def kept(value: Any) -> Any:
        return {k: kept(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else value

    return dict(kept(document))


@pytest.mark.parametrize("spec", [SPEC, FULL], ids=["short", "full"])
def test_it_is_read_back(spec: JobSpec) -> None:
    assert accepted.from_json({"accepted": stored(spec)}) == Accepted(3, spec)


@pytest.mark.parametrize("spec", [SPEC, FULL], ids=["short", "full"])
def test_a_later_generation_that_means_the_same_is_no_news(spec: JobSpec) -> None:
    assert accepted.to_json(spec, 7, stored(spec)) == stored(spec)
    assert accepted.to_json(replace(spec, keep_last=9), 7, stored(spec))["generation"] == 7


@pytest.mark.parametrize(
    "status",
    [None, {}, {"accepted": None}, {"accepted": {}}, {"accepted": {"generation": 1, "spec": {"minWorkers": "x"}}}],
)
def test_what_is_not_there_or_not_ours_is_none(status: dict[str, Any] | None) -> None:
    assert accepted.from_json(status) is None


@pytest.mark.parametrize(
    ("spec", "suspend"),
    [({"suspend": True}, True), ({}, False), ({"suspend": "yes"}, True), (None, True), ([], True)],
)
def test_suspending_works_whatever_else_is_wrong(spec: object, suspend: bool) -> None:
    found = accepted.obeyed({"spec": spec, "status": {"accepted": stored(FULL)}})
    assert found == Accepted(3, replace(FULL, suspend=suspend))
