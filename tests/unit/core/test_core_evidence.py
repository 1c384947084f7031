"""R2, R24-R26, R31, R32: what a decision may not forget, each by itself; the tables hold the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from everstep_operator.core import endings, running, suspicion
from everstep_operator.core.decide import decide
from everstep_operator.core.model import Doubt, Observed, PublishPlan, WorkerStatus, WriteStatus
from unit.core.jobs import SETTINGS, SILENT, nodes, observed, over, pod, rows, sidecar, started_status, training

SILENT_N3 = nodes(n3={"lease_age_seconds": 20.0})


def lost(seen: Observed) -> list[int]:
    return [loss.id for loss in suspicion.losses(seen, SETTINGS)]


def stuck(**changes: Any) -> Observed:
    """Worker 3 does not answer, and no step was finished for a while."""
    answer = sidecar(training=training(age_seconds=4.0))
    return observed(**{"sidecar": answer, "training_age_seconds": 4.0, "networks": {"u3": SILENT}, **changes})


def test_r26_a_late_sidecar_is_no_witness_though_the_kubelet_is_silent_too() -> None:
    assert lost(stuck(nodes=SILENT_N3)) == [3]
    assert lost(stuck(nodes=SILENT_N3, doubt=Doubt(True, True, 0.0, 5.0))) == []


def test_r25_short_steps_may_stop_for_three_seconds() -> None:
    for age, expected in ((2.5, []), (3.5, [3])):
        answer = sidecar(training=training(age_seconds=age, usual_seconds=0.2))
        assert lost(stuck(sidecar=answer, training_age_seconds=age, sidecar_age_seconds=0.0)) == expected


def test_r31_a_member_that_finished_is_never_lost() -> None:
    finished = started_status(workers=(*rows(0, 1, 2), WorkerStatus(3, "Finished", "n3")))
    gone = {"pods": tuple(pod(i) for i in range(3)), "gone_pods": frozenset({"u3"})}
    assert lost(observed(**gone)) == [3]
    assert lost(observed(status=finished, **gone)) == []


def test_r32_a_crash_is_one_though_another_members_node_is_lost_with_it() -> None:
    gone = {"nodes": nodes(3), "gone_nodes": frozenset({"n3"})}
    crash = endings.find(observed(sidecar=sidecar(over=over("crash", uid="u1")), **gone), SETTINGS)
    assert crash is not None
    assert (crash.cause, crash.lost) == ("crash", frozenset())
    own = endings.find(observed(sidecar=sidecar(over=over("crash", uid="u3")), **gone), SETTINGS)
    assert own is not None
    assert (own.cause, own.lost) == ("node-lost", frozenset({3}))


def test_steps_are_written_now_and_then() -> None:
    """With each step a write, a thousand jobs would be a thousand writes a second."""
    newer = observed(sidecar=sidecar(training=training(step=41)), step_age_seconds=SETTINGS.step_write - 0.1)
    assert decide(newer, SETTINGS).actions == ()
    (write,) = decide(replace(newer, step_age_seconds=SETTINGS.step_write), SETTINGS).actions
    assert isinstance(write, WriteStatus)
    assert write.status.step == 41


def test_r2_no_plan_is_published_over_a_newer_one() -> None:
    """By an operator whose view of the status is old."""
    newer = observed(pods=(*(pod(i) for i in range(3)), pod(3, plan_attempt=2)))
    assert not [action for action in decide(newer, SETTINGS).actions if isinstance(action, PublishPlan)]
    older = observed(pods=(*(pod(i) for i in range(3)), pod(3, plan_attempt=0)))
    (published,) = [action for action in decide(older, SETTINGS).actions if isinstance(action, PublishPlan)]
    assert (published.uid, published.seen_attempt, published.plan.attempt) == ("u3", 0, 1)


def test_that_nobody_answers_any_more_is_told_with_what_may_be_the_matter() -> None:
    hint = "does a NetworkPolicy forbid it to reach the pods?"
    assert hint not in decide(observed(sidecar_age_seconds=running.SILENT_SECONDS - 1), SETTINGS).message
    assert hint in decide(observed(sidecar_age_seconds=running.SILENT_SECONDS), SETTINGS).message
