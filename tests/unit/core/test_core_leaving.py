"""R19: changes that are known beforehand, and what is left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everstep_operator.core import clock, leaving, pods
from everstep_operator.core.attempts import Ending
from everstep_operator.core.decide import decide
from everstep_operator.core.model import Announce, AskLeave, Doubt, WriteStatus
from unit.core.jobs import (
    NOW,
    NOW_TEXT,
    SETTINGS,
    good_sight,
    info,
    node,
    nodes,
    observed,
    pod,
    preparing,
    preparing_status,
    rows,
    sidecar,
    spec,
    started_status,
    training,
)


def test_r19_a_pod_that_was_only_warned_counts_from_when_we_asked() -> None:
    seen = observed(pods=(pod(0), pod(1), pod(2), pod(3, disruption="PreemptionByScheduler")), leave_age_seconds=10.0)
    assert leaving.deadline(seen, SETTINGS, leaving.leaving_members(seen)) == 15.0
    late = replace(seen, leave_age_seconds=25.0)
    assert leaving.graceful(late, SETTINGS) == Ending(
        "preemption", "worker 3 on node n3 was preempted by the scheduler", 0.0
    )


def test_r19_no_time_is_left_for_a_save_with_a_short_grace() -> None:
    seen = observed(pods=(pod(0), pod(1), pod(2), pod(3, deletion_age_seconds=0.1, deletion_grace_seconds=5.0)))
    assert decide(seen, SETTINGS).reason == "Preparing"


@pytest.mark.parametrize(
    ("joiner", "grows"),
    [
        ({}, True),
        ({"sidecar_age_seconds": 2.9}, False),
        ({"node": "n3"}, False),
        ({"phase": "Pending"}, False),
    ],
    ids=["settled", "not settled yet", "on a suspect node", "still starting"],
)
def test_grow_only_for_a_worker_that_settled(joiner: dict[str, Any], grows: bool) -> None:
    status = started_status((0, 1, 2), workers=(*rows(0, 1, 2), *rows(4, state="Wanted")), next_worker_id=5)
    seen = observed(
        status=status, pods=(pod(0), pod(1), pod(2), pod(4, **joiner)),
        nodes={**nodes(n3={"ready_age_seconds": 5.0}), "n4": node("n4")}, sidecar=sidecar(members=(0, 1, 2)), sights=good_sight(4),
    )  # fmt: skip
    assert bool(decide(seen, SETTINGS).actions) is grows


def test_a_grow_that_was_given_up_is_asked_for_again_much_later() -> None:
    status = started_status((0, 1, 2), workers=(*rows(0, 1, 2), *rows(4, state="Wanted")), next_worker_id=5)
    seen = observed(
        status=status,
        pods=(pod(0), pod(1), pod(2), pod(4)),
        nodes=nodes(5),
        sidecar=sidecar(members=(0, 1, 2)),
        sights=good_sight(4),
    )
    asked = [bool(decide(replace(seen, leave_age_seconds=age), SETTINGS).actions) for age in (None, 1.0, 239.0, 240.0)]
    assert asked == [True, False, False, True]


def test_times_are_rfc_3339_and_come_back() -> None:
    assert clock.rfc3339(NOW) == NOW_TEXT
    assert clock.since_epoch(NOW_TEXT) == NOW
    assert clock.seconds_between("", NOW) is None


def test_r19_a_member_that_leaves_before_go_is_left_out_at_once() -> None:
    status = started_status()
    planned = replace(status, attempt=replace(status.attempt, state="Planned"))  # type: ignore[type-var]
    going = pod(3, deletion_age_seconds=1.0, deletion_grace_seconds=30.0)
    seen = observed(status=planned, pods=(pod(0), pod(1), pod(2), going), sidecar=None, attempt_age_seconds=1.0)
    assert decide(seen, SETTINGS).reason == "Preparing"


def test_a_terminating_pod_is_told_over_http_its_annotation_would_not_arrive() -> None:
    going = pod(3, plan_attempt=0, deletion_age_seconds=1.0, deletion_grace_seconds=30.0)
    seen = observed(pods=(pod(0), pod(1), pod(2), going), leave_age_seconds=0.1)
    plan = pods.current_plan(seen)
    assert decide(seen, SETTINGS).actions == (Announce("u3", "10.0.0.3", 1, plan),)


@pytest.mark.parametrize("doubt", [Doubt(True, True, 5.0, 0.0), Doubt(True, False, 0.0, 0.0)], ids=["late", "no API"])
def test_r26_no_timer_counts_while_we_doubt_ourselves(doubt: Doubt) -> None:
    hang = observed(sidecar=sidecar(training=training(age_seconds=700.0)), training_age_seconds=700.0)
    assert decide(hang, SETTINGS).reason == "Preparing"
    assert decide(replace(hang, doubt=doubt), SETTINGS).reason == "Training"


def test_a_coordinator_that_knows_less_than_status_does_not_set_the_newest_back() -> None:
    assert decide(observed(sidecar=sidecar(checkpoints=(info(1, 20),))), SETTINGS).actions == ()


def test_r19_what_was_asked_for_another_purpose_is_asked_again() -> None:
    warned = (pod(0), pod(1), pod(2), pod(3, disruption="PreemptionByScheduler"))
    seen = observed(pods=warned, leave_age_seconds=100.0, leave_purpose="change")
    decision = decide(seen, SETTINGS)
    assert AskLeave("u0", "10.0.0.0", 1, 25.0, "departure") in decision.actions, "its grace begins now, not 100 s ago"
    asked = decide(replace(seen, leave_age_seconds=1.0, leave_purpose="departure"), SETTINGS)
    assert not [action for action in asked.actions if isinstance(action, AskLeave)]


def test_r30_a_grow_that_was_given_up_does_not_take_a_suspension_s_save_away() -> None:
    seen = observed(spec=spec(suspend=True), leave_age_seconds=130.0, leave_purpose="change")
    decision = decide(seen, SETTINGS)
    assert (decision.reason, decision.actions) == (
        "Suspending",
        (AskLeave("u0", "10.0.0.0", 1, 120.0, "suspend"),),
    )
    late = replace(seen, leave_age_seconds=120.0, leave_purpose="suspend")
    assert decide(late, SETTINGS).reason == "Suspended"


def test_r31_a_job_that_is_finished_is_not_overdue() -> None:
    late = observed(spec=spec(active_deadline_seconds=10.0), now=NOW + 11.0)
    assert decide(late, SETTINGS).reason == "DeadlineExceeded"
    assert decide(replace(late, sidecar=sidecar(finished=True)), SETTINGS).phase == "Succeeded"


def test_a_saved_step_is_a_finished_step() -> None:
    saved = sidecar(checkpoints=(info(1, 40),), training=training(38))
    (write,) = decide(observed(sidecar=saved), SETTINGS).actions
    assert isinstance(write, WriteStatus)
    assert write.status.step == 40


def test_b36_a_pod_that_is_not_admitted_is_waited_for_by_its_reason() -> None:
    status = preparing_status(workers=rows(4, 5, 6, 7, state="Wanted"), next_worker_id=8)
    seen = preparing(status=status, pods=(), pods_refused={4: "the quota is full: exceeded quota: team"})
    assert "worker 4: its pod is not made: the quota is full: exceeded quota: team" in decide(seen, SETTINGS).message
