"""When workers that can join do: what comes is taken in together, and restarts are rare enough to be cheap."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from everstep_operator.api.parse import parse_job
from everstep_operator.core import clock, growth, leaving
from everstep_operator.core.decide import decide
from everstep_operator.core.model import AskLeave, Growth, JobStatus, Observed, PodView, WriteStatus
from unit.core.jobs import (
    NOW,
    NOW_TEXT,
    SETTINGS,
    entry,
    good_sight,
    nodes,
    observed,
    over,
    pending,
    pod,
    rows,
    sidecar,
    spec,
    started_status,
    training,
)

LONG_AGO = clock.rfc3339(NOW - 10_000)


def job(
    *others: PodView,
    members: int = 2,
    most: int | None = None,
    grown: Growth = Growth(),
    knob: float | None = None,
    **changes: Any,
) -> Observed:
    """Some train, the others would like to; those that run see the storage."""
    there = tuple(range(members))
    wanted = tuple(one.worker_id for one in others)
    status = started_status(
        there,
        workers=(*rows(*there), *rows(*wanted, state="Wanted")),
        next_worker_id=max((*there, *wanted)) + 1,
        growth=grown,
    )
    base: dict[str, Any] = {
        "spec": spec(max_workers=most or members + len(others), grow_interval_seconds=knob),
        "status": status,
        "pods": (*(pod(i) for i in there), *others),
        "nodes": nodes(members + len(others) + 1),
        "sidecar": sidecar(members=there),
        "sights": good_sight(*(one.worker_id for one in others if one.sidecar_running)),
    }
    return observed(**{**base, **changes})


def up(worker: int) -> PodView:
    return pod(worker, sidecar_age_seconds=10.0)


def on_its_way(worker: int, seconds: float) -> PodView:
    return pending(worker, node=f"n{worker}", unstarted_seconds=seconds)


def grows(seen: Observed) -> bool:
    return any(isinstance(action, AskLeave) for action in decide(seen, SETTINGS).actions)


def told(seen: Observed) -> str:
    return next(c.message for c in decide(seen, SETTINGS).conditions if c.type == "Degraded")


@pytest.mark.parametrize(
    ("other", "sights", "joins"),
    [
        (on_its_way(3, 5.0), (2,), False),
        (on_its_way(3, 119.0), (2,), False),
        (on_its_way(3, 120.0), (2,), True),
        (pending(3, unschedulable="no room"), (2,), True),
        (pod(3, sidecar_age_seconds=2.0), (2,), False),
        (pod(3, sidecar_age_seconds=12.0), (2,), False),
        (pod(3, sidecar_age_seconds=13.0), (2,), True),
        (pod(3, sidecar_age_seconds=12.0), (2, 3), True),
    ],
    ids=["bound", "bound a while", "bound for long", "no node", "just up", "not asked yet", "never answers", "both"],
)
def test_who_is_on_the_way_is_waited_for(other: PodView, sights: tuple[int, ...], joins: bool) -> None:
    seen = job(pod(2, sidecar_age_seconds=10.0), other, sights=good_sight(*sights))
    assert grows(seen) is joins


def test_nobody_waits_for_ever_for_those_that_come_one_after_the_other() -> None:
    seen = job(pod(2, sidecar_age_seconds=122.0), on_its_way(3, 1.0))
    assert not grows(seen)
    assert grows(job(pod(2, sidecar_age_seconds=123.0), on_its_way(3, 1.0)))


def test_after_an_interval_who_is_on_the_way_is_waited_for_as_well() -> None:
    just_over = Growth(10.0, clock.rfc3339(NOW - 201))
    assert not grows(job(pod(2, sidecar_age_seconds=190.0), on_its_way(3, 1.0), grown=just_over))


def test_where_the_room_is_filled_nobody_else_is_waited_for() -> None:
    seen = job(up(2), on_its_way(3, 1.0), most=3)
    assert leaving.planned_change(seen, SETTINGS) is not None
    assert leaving.planned_change(replace(seen, spec=spec(max_workers=4)), SETTINGS) is None


@pytest.mark.parametrize(
    ("grown", "knob", "joins"),
    [
        (Growth(), None, True),
        (Growth(10.0, clock.rfc3339(NOW - 199)), None, False),
        (Growth(10.0, clock.rfc3339(NOW - 200)), None, True),
        (Growth(None, clock.rfc3339(NOW - 29)), None, False),
        (Growth(None, clock.rfc3339(NOW - 30)), None, True),
        (Growth(1000.0, clock.rfc3339(NOW - 3599)), None, False),
        (Growth(1000.0, clock.rfc3339(NOW - 3600)), None, True),
        (Growth(10.0, clock.rfc3339(NOW - 1)), 0.0, True),
        (Growth(10.0, clock.rfc3339(NOW - 500)), 600.0, False),
        (Growth(10.0, clock.rfc3339(NOW + 3600)), None, True),
    ],
    ids=[
        "never grown", "5 % of the time", "5 % at last", "least", "least over", "most", "most over", "0s", "10m", "clock set back",
    ],
)  # fmt: skip
def test_the_interval_follows_what_a_restart_cost(grown: Growth, knob: float | None, joins: bool) -> None:
    assert grows(job(up(2), grown=grown, knob=knob)) is joins


def test_an_edited_spec_is_obeyed_at_once() -> None:
    assert grows(job(up(2), grown=Growth(10.0, NOW_TEXT), generation=2))
    assert not grows(job(up(2), grown=Growth(10.0, NOW_TEXT)))


def test_what_was_asked_for_is_not_taken_back_and_a_stopped_job_takes_in_who_is_there() -> None:
    asked = job(up(2), on_its_way(3, 1.0), leave_age_seconds=5.0, leave_purpose="change")
    assert leaving.planned_change(asked, SETTINGS) is not None
    stopped = job(up(2), on_its_way(3, 1.0), sidecar=sidecar(members=(0, 1), over=over("stopped", step=37)))
    (write,) = decide(stopped, SETTINGS).actions
    assert isinstance(write, WriteStatus)
    assert write.status.attempt
    assert (write.status.attempt.cause, write.status.attempt.message) == ("grow", "1 more worker can join")


def test_the_sentence_says_until_when_and_why_and_stays_the_same() -> None:
    seen = job(up(2), grown=Growth(12.4, NOW_TEXT), now=NOW + 5)
    said = (
        "2 of 3 workers; 1 more can join; they join after 2025-11-29T07:10:48.000Z, because each time the job restarts, "
        "which took 12 s last time; spec.workers.growInterval sets another interval"
    )
    assert told(seen) == said
    assert told(replace(seen, now=NOW + 200)) == said
    assert decide(replace(seen, now=NOW + 246), SETTINGS).requeue_after == 2.0
    knob = replace(seen, spec=spec(max_workers=3, grow_interval_seconds=600.0))
    assert told(knob).endswith("after 2025-11-29T07:16:40.000Z, because spec.workers.growInterval is 600 s")


def test_the_sentence_says_who_is_on_the_way() -> None:
    assert told(job(up(2), on_its_way(3, 1.0))) == (
        "2 of 4 workers; 1 more can join; they join together with worker 3 on node n3, on the way there, and wait 120 s at most, "
        "because each time the job restarts"
    )


@pytest.mark.parametrize(("cause", "cost"), [("grow", 12.3), ("shrink", 12.3), ("node-lost", None), ("start", None)])
def test_the_cost_is_measured_by_restarts_that_the_job_chose(cause: Any, cost: float | None) -> None:
    """From the request to stop until the first step, by the books, when that step is heard of; later steps change nothing."""
    status = started_status()
    assert status.attempt
    asked_at = clock.rfc3339(NOW - 12.3)
    unstepped = entry(1, cause=cause, seconds=replace(entry(1).seconds, first_step=None))
    status = replace(
        status,
        attempt=replace(status.attempt, cause=cause, failure_at=asked_at),
        history=(unstepped,),
        growth=Growth(grown_at=LONG_AGO),
    )
    (write,) = decide(observed(status=status, sidecar=sidecar(training=training(38))), SETTINGS).actions
    assert isinstance(write, WriteStatus)
    assert write.status.growth == Growth(cost, LONG_AGO)
    later = decide(observed(status=write.status, now=NOW + 60, step_age_seconds=60.0), SETTINGS).actions
    assert all(isinstance(action, WriteStatus) and action.status.growth == write.status.growth for action in later)


def test_only_growth_begins_an_interval() -> None:
    assert growth.begun(JobStatus(), "grow", now=NOW).growth == Growth(None, NOW_TEXT)
    assert growth.begun(JobStatus(), "node-lost", now=NOW) == JobStatus()


@pytest.mark.parametrize(("text", "seconds"), [("0s", 0.0), ("1h30m", 5400.0), (None, None)])
def test_the_knob_is_read(text: str | None, seconds: float | None) -> None:
    workers: dict[str, Any] = {"max": 2} if text is None else {"max": 2, "growInterval": text}
    container = {"name": "trainer", "image": "i", "command": ["python", "t.py"]}
    body = {
        "metadata": {"name": "gpt"},
        "spec": {
            "workers": workers,
            "template": {"spec": {"containers": [container]}},
            "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "c"}}},
        },
    }
    parsed = parse_job(body)
    assert parsed.spec
    assert parsed.spec.grow_interval_seconds == seconds


@dataclass
class Toll:
    """What a row of arrivals cost, against workers that train from the moment when they can."""

    restarts: int = 0
    stood_still: float = 0.0  # seconds of the job
    lost: float = 0.0  # worker-seconds: standing still, and waiting to join
    full_after: float = 0.0  # seconds until everybody trains


def arrive(bound_at: tuple[float, ...], *, knob: float | None, cost: float = 12.0, up_after: float = 20.0) -> Toll:
    """Nodes come at these seconds, each takes a pod that is up `up_after` later; two workers train already."""
    members, toll, status, still_until = 2, Toll(), Growth(), -1.0
    for second in range(3600):
        now, joined = float(second), members - 2
        others = [_as_of(2 + i, now - at, up_after) for i, at in enumerate(bound_at[joined:], joined) if now >= at]
        ready = sum(one.sidecar_running for one in others)
        toll.lost += ready + (members if now < still_until else 0)
        if now < still_until or not others:
            continue
        wish = spec(max_workers=2 + len(bound_at), grow_interval_seconds=knob)
        seen = job(*others, members=members, grown=status, spec=wish, now=NOW + now)
        if leaving.planned_change(seen, SETTINGS) is None:
            continue
        members += ready
        toll.restarts += 1
        toll.stood_still += cost
        still_until = now + cost
        status = Growth(cost, clock.rfc3339(NOW + now))
        if members == 2 + len(bound_at):
            toll.full_after = still_until
            break
    return toll


def _as_of(worker: int, age: float, up_after: float) -> PodView:
    return pod(worker, sidecar_age_seconds=age - up_after) if age >= up_after else on_its_way(worker, age)


ROWS = {
    "ten nodes, 45 s apart": tuple(45.0 * i for i in range(10)),
    "ten nodes at once": (0.0,) * 10,
    "one node": (60.0,),
    "pairs, 5 min apart": (0.0, 3.0, 300.0, 303.0, 600.0, 603.0),
}
MOST_RESTARTS = {"ten nodes, 45 s apart": 3, "ten nodes at once": 1, "one node": 1, "pairs, 5 min apart": 3}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_nodes_costs_few_restarts(row: str) -> None:
    at_once, automatic = arrive(ROWS[row], knob=0.0), arrive(ROWS[row], knob=None)
    print(f"{row}: at once {at_once}, automatic {automatic}")
    assert automatic.restarts <= MOST_RESTARTS[row]
    assert automatic.restarts <= at_once.restarts
    assert 0 < automatic.full_after <= at_once.full_after + growth.RESTARTS_APART * 12.0


def test_one_node_that_comes_back_long_after_the_last_growth_is_taken_in_at_once() -> None:
    toll = arrive(ROWS["one node"], knob=None)
    assert toll.full_after == 60.0 + 20.0 + SETTINGS.grow_settle + 12.0
