"""R12: each refusal's reason is told, in Events that the API server admits; what is refused in every recovery is no news."""

from __future__ import annotations

from everstep_operator.core import refusals
from everstep_operator.core.decide import decide
from everstep_operator.core.model import Notice
from everstep_protocol.resume import Refusal
from unit.core.jobs import SETTINGS, answer, info, preparing

BROKEN = Refusal("step_40", "__1_0.distcp is missing")


def test_r12_broken_directories_are_told_though_the_newest_good_one_was_taken() -> None:
    decision = decide(preparing(prepare=answer(message="resumes from step_30", refused=(BROKEN,))), SETTINGS)
    assert decision.notices[1:] == (
        Notice(
            "Warning",
            "CheckpointRefused",
            "attempt 2 resumes from step_30; refused: step_40: __1_0.distcp is missing; repair or delete what is broken",
        ),
    )


def test_r12_every_refusal_is_told_in_events_that_are_short_enough() -> None:
    many = tuple(Refusal(f"step_{i}", f"reason {i} " + "x" * 180) for i in range(40, 70))
    found = refusals.notices(answer(message="resumes from step_30", refused=many))
    assert len(found) > 1
    assert all(len(notice.message.encode()) <= 1024 for notice in found)
    text = " ".join(notice.message for notice in found)
    assert all(f"step_{i}: reason {i} " in text for i in range(40, 70))


def test_r13_checkpoints_that_are_to_be_deleted_are_no_news_in_every_recovery() -> None:
    doomed = Refusal("step_20", "is to be deleted")
    assert refusals.notices(answer(refused=(doomed,))) == ()
    (notice,) = refusals.notices(
        answer(reason="Older", message="resumes from step_20", refused=(Refusal("step_30", "bad"),))
    )
    assert "step_30: bad" in notice.message


def test_r12_a_fall_back_is_told_even_without_a_directory_to_name() -> None:
    (notice,) = refusals.notices(
        answer(reason="OffLineage", message="resumes from step_30", checkpoints=(info(1, 30),))
    )
    assert "refused: none" in notice.message
