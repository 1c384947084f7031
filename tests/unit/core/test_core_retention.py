"""R13: what may be deleted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everstep_operator.core import attempts, retention
from everstep_operator.core.attempts import as_newest
from everstep_operator.core.decide import decide
from everstep_operator.core.model import CheckpointStatus
from everstep_operator.core.retention import Branch, KeepLatest, condemn
from hypothesis import given
from hypothesis import strategies as st
from unit.core.jobs import (
    SETTINGS,
    info,
    observed,
    preparing,
    sidecar,
    started_status,
)

LINE = Branch(((1, 30), (3, 60)), 4, "c3-60")
RETAINED: dict[str, tuple[int, tuple[Any, ...], set[str]]] = {
    "few enough": (3, (info(3, 60), info(4, 70), info(4, 80)), set()),
    "the oldest goes": (2, (info(1, 30), info(4, 70), info(4, 80)), {"c1-30"}),
    "never fewer than two": (1, (info(4, 70), info(4, 80), info(4, 90)), {"c4-70"}),
    "the resume stays": (1, (info(3, 60), info(4, 70), info(4, 80)), set()),
    "off the lineage, before the first commit: the only other way back": (
        1,
        (info(3, 60), info(2, 50), info(3, 90)),
        set(),
    ),
    "off the lineage, after it": (1, (info(3, 60), info(2, 50), info(3, 90), info(4, 70)), {"c2-50", "c3-90"}),
    "order is attempt, then step": (2, (info(1, 30), info(3, 40), info(4, 35)), {"c1-30"}),
    "a stock import is never ours to delete": (
        1,
        (info(0, 5, id=""), info(0, 6), info(4, 70), info(4, 80), info(4, 90)),
        {"c4-70"},
    ),
}


@pytest.mark.parametrize(("keep", "infos", "doomed"), RETAINED.values(), ids=RETAINED)
def test_r13_condemn(keep: int, infos: tuple[Any, ...], doomed: set[str]) -> None:
    assert condemn(KeepLatest(keep), LINE, infos, frozenset()) == doomed


PLACES = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), unique=True, max_size=20)


@given(PLACES, st.integers(0, 5))
def test_r13_whatever_is_there_two_on_the_lineage_and_the_resume_stay(places: list[tuple[int, int]], keep: int) -> None:
    infos = tuple(info(attempt, step) for attempt, step in places)
    line = Branch(((1, 4), (2, 6)), 3, "c2-6")
    left = [i for i in infos if i.id not in condemn(KeepLatest(keep), line, infos, frozenset())]
    on = [
        i
        for i in infos
        if i.attempt == 3 or (i.attempt, i.step) in {(1, s) for s in range(5)} | {(2, s) for s in range(7)}
    ]
    best = sorted(on, key=retention.place)[-max(2, keep) :]
    assert set(best) <= set(left)
    assert [i for i in infos if i.id == "c2-6"] == [i for i in left if i.id == "c2-6"]


def test_r13_nothing_is_condemned_while_preparing_or_before_go() -> None:
    many = tuple(info(1, step) for step in (10, 20, 30))
    status = started_status()
    seen = observed(sidecar=sidecar(gone=False, checkpoints=many), attempt_age_seconds=1.0)
    planned = replace(seen, status=replace(status, attempt=replace(status.attempt, state="Planned")))  # type: ignore[type-var]
    assert decide(planned, SETTINGS).actions == ()
    assert decide(preparing(sidecar=sidecar(checkpoints=many)), SETTINGS).reason == "Preparing"


def test_r13_condemned_ones_and_bad_ones_do_not_count_as_kept() -> None:
    infos = tuple(info(4, step) for step in (70, 80, 90))
    assert condemn(KeepLatest(2), LINE, infos, frozenset({"c4-90"})) == frozenset()


def test_checkpoint_status_keeps_ever() -> None:
    assert attempts.found(CheckpointStatus(ever=True), LINE, ()).ever


def test_r9_the_newest_is_the_newest_on_the_lineage() -> None:
    found = attempts.found(CheckpointStatus(), LINE, (info(3, 60), info(3, 90), info(2, 50)))
    assert found.newest
    assert (found.newest.attempt, found.newest.step) == (3, 60)
    abandoned = attempts.found(CheckpointStatus(), LINE, (info(3, 90),))
    assert (abandoned.newest, abandoned.ever) == (None, False)


def test_r13_no_more_than_100_are_condemned_at_a_time_the_oldest_first() -> None:
    many = tuple(info(1, step) for step in range(1, 151))
    seen = observed(sidecar=sidecar(checkpoints=many))
    (write,) = decide(seen, SETTINGS).actions
    condemned = write.status.checkpoints.condemned  # type: ignore[union-attr]
    assert condemned == tuple(f"c1-{step}" for step in range(1, 101))
    stuck = started_status(
        checkpoints=replace(seen.status.checkpoints, newest=as_newest(many[-1]), condemned=condemned)
    )
    assert decide(replace(seen, status=stuck), SETTINGS).actions == ()
