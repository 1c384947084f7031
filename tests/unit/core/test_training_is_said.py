"""`Ready=True Training` is said when something trains, not when go was given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everstep_operator.core import phases
from everstep_operator.core.decide import decide
from everstep_operator.core.model import AttemptStatus, Decision, JobStatus, Observed
from unit.core.jobs import NOW_TEXT, SETTINGS, entry, observed, sidecar, started_status, training

SINCE = f"the trainers were told to start at {NOW_TEXT}, and no first step is reported yet"


def gone(status: str = "Started", **changes: Any) -> JobStatus:
    """Attempt 1 got its go, and nothing more was heard of it."""
    base = started_status()
    assert base.attempt
    attempt = replace(base.attempt, state=status, go_at=NOW_TEXT, **changes)
    unstepped = entry(1, seconds=replace(entry(1).seconds, first_step=None))
    return replace(base, attempt=attempt, step=0, history=(unstepped,))


def after_go(status: JobStatus | None = None, *, go: float = 5.0, **said: Any) -> Observed:
    trainers = training(**{"step": -1, "age_seconds": go, **said})
    return observed(
        status=status or gone(),
        sidecar=sidecar(training=trainers),
        training_age_seconds=trainers.age_seconds,
        go_age_seconds=go,
    )


def written(decision: Decision) -> AttemptStatus:
    (write,) = decision.actions
    attempt = write.status.attempt  # type: ignore[union-attr]
    assert attempt
    return attempt  # type: ignore[no-any-return]


def ready(decision: Decision) -> tuple[str, str]:
    return next((c.status, c.reason) for c in decision.conditions if c.type == "Ready")


def test_go_alone_is_no_training() -> None:
    decision = decide(after_go(), SETTINGS)
    assert (decision.phase, *ready(decision)) == ("Starting", "False", "StartingTrainers")
    assert decision.message.endswith(SINCE)
    assert decision.actions == ()


def test_after_a_loss_it_is_recovering_until_the_first_step() -> None:
    assert decide(after_go(gone(cause="node-lost")), SETTINGS).phase == "Recovering"


def test_the_first_step_is_training_and_stays_so_whoever_answers_then() -> None:
    decision = decide(after_go(step=1, age_seconds=0.1), SETTINGS)
    assert (decision.phase, *ready(decision)) == ("Running", "True", "Training")
    assert written(decision).training_at == NOW_TEXT
    silent = observed(status=gone(training_at=NOW_TEXT), sidecar=None)
    assert ready(decide(silent, SETTINGS)) == ("True", "Training")


def test_a_job_of_an_older_version_that_has_made_steps_trains() -> None:
    assert phases.is_training(started_status())
    assert decide(observed(), SETTINGS).actions == ()


@pytest.mark.parametrize(
    ("go", "idle", "trains"),
    [(19.0, 0.0, False), (21.0, 0.5, True), (60.0, 45.0, False), (300.0, 45.0, True)],
    ids=["busy at once", "busy after a while", "busy at the start alone", "quiet after a long time"],
)
def test_a_script_without_the_library_trains_when_it_lives_a_while_after_go(
    go: float, idle: float, trains: bool
) -> None:
    decision = decide(after_go(go=go, library=False, age_seconds=idle), SETTINGS)
    assert ready(decision) == (("True", "Training") if trains else ("False", "StartingTrainers"))
    assert bool(decision.actions) is trains


def test_a_script_that_makes_its_checkpointer_late_is_starting_again_until_its_first_step() -> None:
    late = after_go(gone(training_at=NOW_TEXT), go=40.0)
    assert ready(decide(late, SETTINGS)) == ("False", "StartingTrainers")


def test_that_no_first_step_comes_is_no_phase_running() -> None:
    decision = decide(after_go(go=300.0), SETTINGS)
    assert (decision.phase, decision.reason) == ("Starting", "NotProgressing")
