"""R1, R3, R4, R9, R12: numbers, plans and what an attempt resumes from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everstep_operator.core import attempts, budget
from everstep_operator.core.decide import decide
from everstep_operator.core.model import (
    Budget,
    CheckpointStatus,
    JobStatus,
    RestartPolicy,
)
from everstep_protocol.codec import dumps
from everstep_protocol.messages import PrepareAnswer
from everstep_protocol.plan import Resume, parse_plan
from everstep_protocol.resume import NEW_BRANCH, Refusal
from unit.core.jobs import (
    NONE,
    NOW,
    SETTINGS,
    answer,
    info,
    observed,
    plan,
    preparing,
    preparing_status,
    resume,
    sidecar,
    spec,
    started_status,
)


def test_r1_the_number_is_above_status_every_fence_and_every_sidecar() -> None:
    assert attempts.next_number(observed(status=JobStatus(), sidecar=None)) == 1
    assert attempts.next_number(observed()) == 2
    assert attempts.next_number(observed(sidecar=sidecar(highest=6))) == 7
    assert attempts.next_number(observed(prepare=answer(highest=9))) == 10


def planned(**changes: Any) -> Any:
    seen = preparing(prepare=answer(), **changes)
    return decide(seen, SETTINGS).actions[0].status  # type: ignore[union-attr]


def test_r3_ranks_follow_ids_and_the_plan_is_sealed() -> None:
    plan = planned(spec=spec(processes_per_worker=2)).attempt.plan
    assert [(member.id, member.ranks) for member in plan.members] == [(0, (0, 2)), (1, (2, 4)), (2, (4, 6))]
    assert plan.world == 6
    assert parse_plan(dumps(plan)) == plan


def test_r4_a_coordinator_that_left_prepare_unanswered_is_not_chosen_and_the_chosen_one_holds_rank_0() -> None:
    plan = planned(prepare_failed=("u0",)).attempt.plan
    assert plan.coordinator.id == 1
    assert [(member.id, member.ranks) for member in plan.members] == [(1, (0, 1)), (0, (1, 2)), (2, (2, 3))]


def test_r4_only_the_answer_becomes_the_resume() -> None:
    status = planned()
    assert (status.attempt.plan.resume, status.lineage, status.last_attempt) == (resume(1, 30), ((1, 30),), 2)


def test_r9_the_lineage_loses_only_attempts_without_a_checkpoint_whole_or_refused() -> None:
    lineage = ((1, 10), (2, 20), (3, 30))
    found = answer(lineage=lineage, checkpoints=(info(1, 10), info(3, 30)))
    assert attempts._pruned(found) == ((1, 10), (3, 30))
    assert attempts._pruned(replace(found, refused=(Refusal("step_20", "short", 2),))) == lineage
    assert attempts._pruned(replace(found, refused=(Refusal("step_9", "stock"),))) == ((1, 10), (3, 30))


def test_r9_a_lineage_is_bounded_to_its_newest_entries() -> None:
    lineage = tuple((number, number) for number in range(1, 81))
    found = answer(lineage=lineage, checkpoints=tuple(info(number, number) for number in range(1, 81)))
    assert attempts._pruned(found) == lineage[-50:]


def test_r12_resume_from_is_obeyed_once_and_not_again_because_another_field_was_edited() -> None:
    seen = preparing(spec=spec(resume_from="none"), generation=1)
    assert attempts.resume_asked(seen) == "none"
    obeyed = planned(spec=spec(resume_from="none"))
    assert (obeyed.honoured_resume_generation, obeyed.honoured_resume_from) == (1, "none")
    assert attempts.resume_asked(replace(seen, status=obeyed, generation=2)) is None
    other = replace(seen, status=obeyed, generation=2, spec=spec(resume_from="step_10"))
    assert attempts.resume_asked(other) == "step_10"


def test_r12_the_same_value_counts_again_once_it_was_taken_out() -> None:
    seen = observed(status=started_status(honoured_resume_from="none", honoured_resume_generation=1), generation=2)
    written = decide(seen, SETTINGS).actions[0].status  # type: ignore[union-attr]
    assert written.honoured_resume_from == ""


def test_r12_an_answer_to_another_question_is_not_used() -> None:
    seen = preparing(prepare=answer(), generation=2, spec=spec(resume_from="none"))
    decision = decide(seen, SETTINGS)
    assert decision.reason == "Renumbered"
    assert decide(replace(seen, spec=spec(keep_last=5)), SETTINGS).reason == "StartingAttempt"


@pytest.mark.parametrize("cause", ["not-delivered", "storage"])
def test_r32_a_commit_of_an_attempt_that_never_started_for_us_keeps_the_back_off_and_fails_no_job(cause: Any) -> None:
    """Polls withheld for ever: each attempt trains unheard, commits, and is given up after 15 s."""
    spent, pauses = Budget((), 0, 0), []
    for _ in range(12):
        spent = budget.spend(spent, budget.Ended(1, cause, False), now=NOW, policy=RestartPolicy())
        assert budget.stop(spent, now=NOW, policy=RestartPolicy(), settings=SETTINGS) is None
        pauses.append(budget.backoff_seconds(spent, SETTINGS))
        waited = {"status": preparing_status(cause, budget=spent), "attempt_age_seconds": pauses[-1]}
        spent = planned(**waited).budget
    assert pauses[:6] == [0.0, 0.0, 5.0, 10.0, 20.0, 40.0]
    assert pauses[-3:] == [300.0] * 3


def test_a_commit_that_was_never_reported_resets_the_counts() -> None:
    status = preparing_status(budget=Budget((), 2, 2))
    assert planned(status=status).budget == Budget()
    never = answer(
        checkpoints=(), resume=replace(resume(1, 30), kind="none", id="", dir="", attempt=0, step=0), lineage=((0, 0),)
    )
    seen = preparing(status=status, prepare=never)
    assert decide(seen, SETTINGS).actions[0].status.budget == Budget((), 2, 2)  # type: ignore[union-attr]


BRANCH_AT_0 = answer(reason="Requested", resume=NONE, lineage=NEW_BRANCH)


def ever_after(found: PrepareAnswer, *, ever: bool = True, **changes: Any) -> bool:
    status = preparing_status(checkpoints=CheckpointStatus(ever=ever))
    seen = preparing(status=status, prepare=found, **changes)
    return bool(decide(seen, SETTINGS).actions[0].status.checkpoints.ever)  # type: ignore[union-attr]


def test_r12_ever_is_asked_of_one_branch() -> None:
    asked = {"spec": spec(resume_from="none")}
    assert not ever_after(BRANCH_AT_0, **asked), "a new branch has had nothing, whatever else is there"
    assert ever_after(BRANCH_AT_0), "only where it was asked for"
    assert ever_after(answer(), ever=False)
    assert not ever_after(answer(resume=NONE, lineage=(), checkpoints=()), ever=False)


def test_r12_an_import_is_something_that_there_was() -> None:
    imported = answer(resume=Resume("import", "", "step_900", 0, 900), lineage=((0, 900),), checkpoints=())
    assert ever_after(imported, ever=False)


def test_r12_the_first_commit_on_a_new_branch_counts_for_ever() -> None:
    lineage = {"lineage": NEW_BRANCH, "checkpoints": CheckpointStatus()}
    status = started_status(**lineage)
    assert status.attempt
    status = replace(status, attempt=replace(status.attempt, plan=plan(lineage=NEW_BRANCH)))
    old_branch = observed(status=status, sidecar=sidecar(checkpoints=(info(0, 900), info(3, 30))))
    assert decide(old_branch, SETTINGS).actions == ()
    saved = replace(old_branch, sidecar=sidecar(checkpoints=(info(3, 30), info(1, 40))))
    (write,) = decide(saved, SETTINGS).actions
    assert write.status.checkpoints.ever  # type: ignore[union-attr]


def test_r17_what_is_bad_is_remembered_for_as_long_as_it_is_there() -> None:
    status = preparing_status(checkpoints=CheckpointStatus(True, None, (), ("c1-20", "c0-5")))
    assert planned(status=status).checkpoints.bad == ("c1-20",)
