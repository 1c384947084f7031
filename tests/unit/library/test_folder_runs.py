"""Runs of a folder: numbers, lineage and retention, as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from everstep import folder_runs
from everstep.folder_runs import Run
from everstep_protocol.lineage import Lineage
from everstep_protocol.resume import IN_FOLDER, NONE, Choice, Question, choose
from everstep_protocol.verdict import Verdict


def made(run: int, step: int, *, lineage: Lineage = (), **changes: object) -> Verdict:
    base = Verdict(f"step_{step}", "complete", "", step, f"id-{run}-{step}", run, lineage, 10, 1)
    return replace(base, **changes)  # type: ignore[arg-type]


def broken(run: int, step: int, *, lineage: Lineage = ()) -> Verdict:
    return made(run, step, lineage=lineage, state="refused", reason="__0_0.distcp is missing")


def stock(step: int, **changes: object) -> Verdict:
    return replace(Verdict(f"step_{step}", "complete", "", step), **changes)  # type: ignore[arg-type]


UNFINISHED = stock(900, state="incomplete", reason="never finished")
FALLEN_BACK = (made(1, 100), made(1, 200), made(1, 300), made(2, 250, lineage=((1, 200),)))

QUESTIONS: dict[str, tuple[tuple[Verdict, ...], Question]] = {
    "nothing there": ((), Question((), 0, owned=False, remedies=IN_FOLDER)),
    "no run recorded": ((stock(100),), Question((), 0, owned=False, remedies=IN_FOLDER)),
    "never finished": (
        (replace(UNFINISHED, attempt=3, lineage=((1, 5),)),),
        Question((), 0, owned=False, remedies=IN_FOLDER),
    ),
    "newest run, not newest step": (FALLEN_BACK, Question(((1, 200),), 2, ever=True, remedies=IN_FOLDER)),
    "a damaged one whose record is whole": (
        (made(1, 200), broken(2, 250, lineage=((1, 200),))),
        Question(((1, 200),), 2, ever=True, remedies=IN_FOLDER),
    ),
}


@pytest.mark.parametrize("case", QUESTIONS)
def test_r12_what_the_directories_ask(case: str) -> None:
    verdicts, question = QUESTIONS[case]
    assert folder_runs.question(verdicts) == question


CHOICES: dict[str, tuple[tuple[Verdict, ...], str, str, Run | None]] = {
    "nothing there": ((), "", "FirstStart", Run(1, (), "")),
    "only unfinished ones": ((UNFINISHED,), "", "FirstStart", Run(1, (), "")),
    "stock ones": ((stock(100), stock(200)), "step_200", "Imported", Run(1, ((0, 200),), "step_200")),
    "newest": ((made(1, 100), made(1, 200)), "step_200", "Newest", Run(2, ((1, 200),), "step_200")),
    "newest damaged": ((made(1, 100), broken(1, 200)), "step_100", "Older", Run(2, ((1, 100),), "step_100")),
    "the damaged one is whole again, after another run went on from the one before": (
        FALLEN_BACK,
        "step_250",
        "Newest",
        Run(3, ((1, 200), (2, 250)), "step_250"),
    ),
    "and then that run's only one is damaged": (
        (made(1, 200), made(1, 300), broken(2, 250, lineage=((1, 200),))),
        "step_200",
        "Older",
        Run(3, ((1, 200),), "step_200"),
    ),
    "a number in a name counts": (
        (made(1, 100), stock(90, dir="step_90.a7", state="refused", reason="damaged")),
        "step_100",
        "Newest",
        Run(8, ((1, 100),), "step_100"),
    ),
    "a number of one that was never finished counts": (
        (made(1, 100), replace(UNFINISHED, attempt=5)),
        "step_100",
        "Newest",
        Run(6, ((1, 100),), "step_100"),
    ),
    "runs that left nothing leave the lineage": (
        (made(4, 400, lineage=((1, 100), (2, 200), (3, 300))), made(2, 150)),
        "step_400",
        "Newest",
        Run(5, ((2, 200), (4, 400)), "step_400"),
    ),
    "only damaged ones": ((broken(1, 100),), "", "NoUsableCheckpoint", None),
    "one whose record is damaged": ((stock(9, state="refused", reason="damaged"),), "", "NoUsableCheckpoint", None),
    "stock beside damaged ones of a run": ((stock(9), broken(1, 100)), "", "NoUsableCheckpoint", None),
}


@pytest.mark.parametrize("case", CHOICES)
def test_r9_r12_a_run_begins(case: str) -> None:
    verdicts, directory, reason, run = CHOICES[case]
    choice = choose(folder_runs.question(verdicts), verdicts)
    assert (choice.resume.dir, choice.reason) == (directory, reason), choice
    assert (choice.outcome == "stop") == (run is None)
    assert run is None or folder_runs.begin(choice, verdicts) == run


def test_remedies_are_those_of_a_folder() -> None:
    verdicts = (stock(9), broken(1, 100), *(broken(1, step) for step in range(200, 220)))
    choice = choose(folder_runs.question(verdicts), verdicts)
    assert "resumeFrom" not in choice.message
    assert "remove these to begin at step 0, or choose another directory=" in choice.message
    assert all(f"{verdict.dir}: " in choice.message for verdict in verdicts)
    assert choice.refused[0].reason == (
        "was not written by Everstep: copy it to a folder of its own and give that as directory= to begin from it"
    )
    (off,) = choose(folder_runs.question(FALLEN_BACK), FALLEN_BACK).refused
    assert (off.dir, off.reason) == ("step_300", "is off the lineage: a later run did not build on it")
    imported = (stock(9),)
    assert choose(folder_runs.question(imported), imported).message == (
        "resumes from step_9, which was there before the first run that is recorded here"
    )


RETURNS: dict[str, tuple[Run, tuple[Verdict, ...], Run]] = {
    "nobody else wrote": (
        Run(3, ((1, 100),), "step_140", 140),
        (made(1, 100), made(3, 140)),
        Run(3, ((1, 100),), "step_140", 140),
    ),
    "another run wrote": (
        Run(3, ((1, 100),), "step_140", 140),
        (made(1, 100), made(3, 140), made(4, 150)),
        Run(5, ((1, 100), (3, 140)), "step_140"),
    ),
    "another run took the same number, as this one had saved nothing": (
        Run(3, ((1, 100),), "step_100"),
        (made(1, 100), made(3, 150)),
        Run(4, ((1, 100),), "step_100"),
    ),
}


@pytest.mark.parametrize("case", RETURNS)
def test_r9_a_run_comes_back_to_its_folder(case: str) -> None:
    run, verdicts, expected = RETURNS[case]
    assert folder_runs.go_on(run, verdicts) == expected


EXPIRED: dict[str, tuple[tuple[Verdict, ...], int, str, list[str]]] = {
    "few": ((made(1, 100), made(1, 200)), 2, "", []),
    "oldest first": ((made(1, 300), made(1, 100), made(1, 200)), 1, "", ["step_100", "step_200"]),
    "run before step": (FALLEN_BACK, 1, "step_250", ["step_100", "step_200", "step_300"]),
    "the one it resumed from stays": (FALLEN_BACK, 1, "step_100", ["step_200", "step_300"]),
    "only complete ones count and go": (
        (stock(50), made(1, 100), broken(1, 200), broken(2, 300), UNFINISHED),
        1,
        "",
        ["step_50"],
    ),
    "the only complete one stays": ((broken(1, 50), made(1, 100), broken(1, 200)), 1, "", []),
}


@pytest.mark.parametrize("case", EXPIRED)
def test_r13_what_may_go(case: str) -> None:
    verdicts, keep_last, base, names = EXPIRED[case]
    assert folder_runs.expired(verdicts, keep_last=keep_last, base=base) == names


def test_a_commit_is_what_the_run_stands_on() -> None:
    run = folder_runs.commit(Run(2, ((1, 5),), "step_5"), "step_9.a2", 9)
    assert run == Run(2, ((1, 5),), "step_9.a2", 9)
    assert folder_runs.begin(Choice("resume", NONE, (), "FirstStart", ""), ()) == Run(1, (), "")
