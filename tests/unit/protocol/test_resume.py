"""R12: a table of what lies on storage and what an attempt resumes from."""

from dataclasses import replace

import pytest
from everstep_protocol.complete import Verdict
from everstep_protocol.lineage import Lineage
from everstep_protocol.plan import Resume
from everstep_protocol.resume import NEW_BRANCH, NONE, Choice, Question, choose


def ours(attempt: int, step: int, *, lineage: Lineage = (), **changes: object) -> Verdict:
    base = Verdict(f"step_{step}.a{attempt}", "complete", "", step, f"id-{attempt}-{step}", attempt, lineage, 10, 2)
    return replace(base, **changes)  # type: ignore[arg-type]


def broken(attempt: int, step: int, *, lineage: Lineage = ()) -> Verdict:
    return ours(attempt, step, lineage=lineage, state="refused", reason="__0_0.distcp is missing")


def stock(step: int, **changes: object) -> Verdict:
    return replace(Verdict(f"step_{step}", "complete", "", step, bytes=10), **changes)  # type: ignore[arg-type]


def resume_of(verdict: Verdict) -> Resume:
    kind = "checkpoint" if verdict.id else "import"
    return Resume(kind, verdict.id, verdict.dir, verdict.attempt, verdict.step)  # type: ignore[arg-type]


FIRST = Question(lineage=(), last_attempt=0, owned=False)
LATER = Question(lineage=((3, 400),), last_attempt=6, ever=True)

TABLE: dict[str, tuple[Question, tuple[Verdict, ...], Resume, Lineage, str]] = {
    "nothing there, first attempt": (FIRST, (), NONE, (), "FirstStart"),
    "nothing there, tried before without a commit": (
        replace(FIRST, last_attempt=1, owned=True),
        (),
        NONE,
        (),
        "FirstStart",
    ),
    "only unfinished ones": (
        FIRST,
        (stock(200, state="incomplete", reason="has no .metadata"),),
        NONE,
        (),
        "FirstStart",
    ),
    "newest of the last attempt": (
        LATER,
        (ours(3, 400), ours(6, 500), ours(6, 600)),
        resume_of(ours(6, 600)),
        ((3, 400), (6, 600)),
        "Newest",
    ),
    "attempt before step": (
        LATER,
        (ours(3, 400), ours(3, 900), ours(6, 500)),
        resume_of(ours(6, 500)),
        ((3, 400), (6, 500)),
        "Newest",
    ),
    "the last attempt saved nothing": (
        LATER,
        (ours(3, 300), ours(3, 400)),
        resume_of(ours(3, 400)),
        ((3, 400),),
        "Newest",
    ),
    "abandoned branch is passed over": (
        LATER,
        (ours(3, 400), ours(4, 700), ours(5, 800)),
        resume_of(ours(3, 400)),
        ((3, 400),),
        "Newest",
    ),
    "newest damaged": (
        LATER,
        (ours(3, 400), ours(6, 500), broken(6, 600)),
        resume_of(ours(6, 500)),
        ((3, 400), (6, 500)),
        "Older",
    ),
    "newest damaged beyond its manifest": (
        LATER,
        (ours(3, 400), stock(600, state="refused", reason="manifest.json is damaged")),
        resume_of(ours(3, 400)),
        ((3, 400),),
        "Older",
    ),
    "newest of this lineage gone, older one cut": (
        LATER,
        (ours(3, 300),),
        resume_of(ours(3, 300)),
        ((3, 300),),
        "Newest",
    ),
    "condemned is never a resume": (
        replace(LATER, condemned=frozenset({"id-6-600"})),
        (ours(3, 400), ours(6, 600)),
        resume_of(ours(3, 400)),
        ((3, 400),),
        "Older",
    ),
    "bad is never a resume": (
        replace(LATER, bad=frozenset({"id-6-600"})),
        (ours(3, 400), ours(6, 600)),
        resume_of(ours(3, 400)),
        ((3, 400),),
        "Older",
    ),
    "nothing left on the lineage": (
        LATER,
        (ours(5, 300, lineage=((2, 100),)), ours(2, 100)),
        resume_of(ours(5, 300)),
        ((2, 100), (5, 300)),
        "OffLineage",
    ),
    "off the lineage, newest of that branch damaged": (
        LATER,
        (ours(2, 100), ours(4, 900), broken(5, 300, lineage=((2, 100),))),
        resume_of(ours(2, 100)),
        ((2, 100),),
        "OffLineage",
    ),
    "job made anew": (
        Question((), 0, adopted=True),
        (ours(3, 400), ours(6, 600, lineage=((3, 400),))),
        resume_of(ours(6, 600)),
        ((3, 400), (6, 600)),
        "OffLineage",
    ),
    "job made anew over a finished run, told where": (
        Question((), 0, adopted=True, finished=True, resume_from="step_600.a6"),
        (ours(6, 600, lineage=((3, 400),)),),
        resume_of(ours(6, 600)),
        ((3, 400), (6, 600)),
        "Requested",
    ),
    "stock at the first attempt": (FIRST, (stock(100), stock(900)), resume_of(stock(900)), ((0, 900),), "Imported"),
    "stock at the first attempt, newest damaged": (
        FIRST,
        (stock(100), stock(900, state="refused", reason="cut")),
        resume_of(stock(100)),
        ((0, 100),),
        "Imported",
    ),
    "imported before, nothing saved since": (
        Question(((0, 900),), 1, ever=True),
        (stock(100), stock(900)),
        resume_of(stock(900)),
        ((0, 900),),
        "Newest",
    ),
    "stock by name": (
        replace(LATER, resume_from="step_100"),
        (stock(100), ours(6, 600)),
        resume_of(stock(100)),
        ((0, 100),),
        "Requested",
    ),
    "older one by name": (
        replace(LATER, resume_from="step_300.a3"),
        (ours(3, 300, lineage=((1, 50),)), ours(6, 600)),
        resume_of(ours(3, 300)),
        ((1, 50), (3, 300)),
        "Requested",
    ),
    "a new branch at 0": (replace(LATER, resume_from="none"), (ours(6, 600),), NONE, NEW_BRANCH, "Requested"),
    "a new branch at 0 that saved nothing yet": (
        Question(NEW_BRANCH, 7),
        (ours(3, 400), ours(6, 600)),
        NONE,
        NEW_BRANCH,
        "Requested",
    ),
    "a new branch at 0 that saved": (
        Question(NEW_BRANCH, 7, ever=True),
        (ours(6, 600), ours(7, 10)),
        resume_of(ours(7, 10)),
        ((0, -1), (7, 10)),
        "Newest",
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_r12_resumes(case: str) -> None:
    question, verdicts, resume, lineage, reason = TABLE[case]
    choice = choose(question, verdicts)
    assert (choice.outcome, choice.resume, choice.lineage, choice.reason) == ("resume", resume, lineage, reason), choice


STOPS: dict[str, tuple[Question, tuple[Verdict, ...], str]] = {
    "all damaged": (LATER, (broken(3, 400), broken(6, 600)), "NoUsableCheckpoint"),
    "deleted by hand": (LATER, (), "NoUsableCheckpoint"),
    "status says ever": (Question((), 1, ever=True), (), "NoUsableCheckpoint"),
    "lineage says ever": (Question(((0, 900),), 1), (), "NoUsableCheckpoint"),
    "one refused, first attempt": (FIRST, (stock(100, state="refused", reason="cut"),), "NoUsableCheckpoint"),
    "stock in a path that has an owner": (Question((), 2), (stock(100),), "NoUsableCheckpoint"),
    "only condemned": (replace(LATER, condemned=frozenset({"id-3-400"})), (ours(3, 400),), "NoUsableCheckpoint"),
    "off the lineage, the last to commit is another branch": (
        Question(((2, 100),), 6, ever=True),
        (ours(4, 300), broken(5, 300, lineage=((2, 100),))),
        "NoUsableCheckpoint",
    ),
    "asked for one that is not there": (replace(LATER, resume_from="best"), (ours(6, 600),), "NoUsableCheckpoint"),
    "asked for a damaged one": (replace(LATER, resume_from="step_600.a6"), (broken(6, 600),), "NoUsableCheckpoint"),
    "finished run of a former job": (
        Question((), 0, adopted=True, finished=True),
        (ours(6, 600),),
        "FinishedRunInStorage",
    ),
    "new branch whose only save cannot be attributed": (
        Question(NEW_BRANCH, 7, ever=True),
        (ours(6, 600), stock(10, state="refused", reason="manifest.json is damaged")),
        "NoUsableCheckpoint",
    ),
    "new branch whose only save was deleted by hand": (
        Question(NEW_BRANCH, 7, ever=True),
        (ours(6, 600),),
        "NoUsableCheckpoint",
    ),
    "new branch, resumed once, whose saves were deleted by hand: the branch before it is no way back": (
        Question(((7, 10),), 8, ever=True),
        (ours(6, 600),),
        "NoUsableCheckpoint",
    ),
    "an import that was deleted by hand": (Question(((0, 900),), 1, ever=True), (), "NoUsableCheckpoint"),
    "new branch whose only save is damaged": (
        Question(NEW_BRANCH, 7, ever=True),
        (broken(7, 10),),
        "NoUsableCheckpoint",
    ),
}


@pytest.mark.parametrize("case", STOPS)
def test_r12_stops_and_says_which_directories(case: str) -> None:
    question, verdicts, reason = STOPS[case]
    choice = choose(question, verdicts)
    assert (choice.outcome, choice.resume, choice.reason) == ("stop", NONE, reason)
    assert "resumeFrom" in choice.message
    assert {refusal.dir for refusal in choice.refused} == {verdict.dir for verdict in verdicts}
    assert all(refusal.reason for refusal in choice.refused)
    attempts = {verdict.dir: verdict.attempt for verdict in verdicts}
    assert all(refusal.attempt == attempts[refusal.dir] for refusal in choice.refused)


def test_b01_b04_what_was_passed_over_is_told() -> None:
    unfinished = stock(700, state="incomplete", reason="has no .metadata")
    choice = choose(LATER, (ours(3, 400), ours(4, 700), broken(6, 600), unfinished))
    assert choice.resume == resume_of(ours(3, 400))
    assert {refusal.dir: refusal.reason for refusal in choice.refused} == {
        "step_700.a4": "is off the lineage: a later attempt did not build on it",
        "step_600.a6": "__0_0.distcp is missing",
        "step_700": "has no .metadata",
    }


def test_the_whole_choice_of_a_plain_resume() -> None:
    assert choose(LATER, (ours(3, 400),)) == Choice(
        "resume",
        Resume("checkpoint", "id-3-400", "step_400.a3", 3, 400),
        ((3, 400),),
        "Newest",
        "resumes from step_400.a3",
    )
