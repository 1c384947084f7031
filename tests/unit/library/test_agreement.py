"""What ranks must agree on before a save is written (TR1, TR2): pure, over reports."""

from __future__ import annotations

import dataclasses

import pytest
from everstep.state import agreement
from everstep.state.agreement import Note, Report

SAME = Note("progress", "float", {"": "abc"}, everywhere=True, shown="0.5")
SHARDED = Note("model", "torch.float32 [8]", {}, everywhere=False)
STRUCTURE = Note("everstep", "list", {"": "abc"}, everywhere=True, shown="[...]", structure_of="progress.inner")
HYBRID = Note("model", "torch.float32 [8]", {"(0,)": "left"}, everywhere=False)


def report(**notes: Note) -> Report:
    return Report({key.replace("__", "."): note for key, note in notes.items()}, {}, {})


def changed(note: Note, **values: object) -> Note:
    return dataclasses.replace(note, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "reports",
    [
        [report(progress__best=SAME)] * 3,
        [report(model__w=SHARDED), report(model__w=SHARDED)],
        [report(model__w=changed(SHARDED)), report(model__other=SHARDED)],
        [report(model__w=HYBRID), report(model__w=changed(HYBRID, parts={"(4,)": "right"})), report(model__w=HYBRID)],
        [report(), report()],
    ],
    ids=["equal", "each its own part", "each its own keys", "replicas of two parts", "nothing"],
)
def test_ranks_that_agree(reports: list[Report]) -> None:
    assert agreement.problems(reports) == []


CASES = {
    "another value": (
        [report(progress__best=SAME), report(progress__best=changed(SAME, parts={"": "xyz"}, shown="0.7"))],
        "progress.best: it is 0.5 on rank 0 and 0.7 on rank 1",
    ),
    "another content": (
        [report(progress__ema=changed(SAME, shown="")), report(progress__ema=changed(SAME, parts={"": "x"}, shown=""))],
        "progress.ema: its contents on rank 0 and on rank 1 differ",
    ),
    "the third of three": (
        [report(progress__best=SAME)] * 2 + [report(progress__best=changed(SAME, parts={"": "x"}, shown="1"))],
        "progress.best: it is 0.5 on rank 0 and 1 on rank 2",
    ),
    "another type": (
        [report(progress__best=SAME), report(progress__best=changed(SAME, kind="int"))],
        "progress.best: float on rank 0, int on rank 1",
    ),
    "another shape of a sharded one": (
        [report(model__w=SHARDED), report(model__w=changed(SHARDED, kind="torch.float32 [9]"))],
        "model.w: torch.float32 [8] on rank 0, torch.float32 [9] on rank 1",
    ),
    "a replica of one part": (
        [report(model__w=HYBRID), report(model__w=changed(HYBRID, parts={"(0,)": "other"}))],
        "model.w: its contents on rank 0 and on rank 1 differ",
    ),
    "a key that rank 1 lacks": (
        [report(progress__best=SAME), report()],
        "progress.best: rank 0 has it, rank 1 has not",
    ),
    "another structure": (
        [report(a=STRUCTURE), report(a=changed(STRUCTURE, parts={"": "x"}))],
        "progress.inner: its keys, containers or tensors are of other types on rank 0 than on rank 1",
    ),
    "a structure that is none on rank 0": (
        [report(), report(a=STRUCTURE)],
        "progress.inner: its keys, containers or tensors are of other types on rank 1 than on rank 0",
    ),
    "a key that rank 0 lacks": (
        [report(), report(progress__best=SAME)],
        "progress.best: rank 1 has it, rank 0 has not",
    ),
    "a key that one rank needs everywhere": (
        [report(progress__best=changed(SAME, everywhere=False)), report(progress__best=SAME), report()],
        "progress.best: rank 0 has it, rank 2 has not",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_ranks_that_do_not_agree_are_told_the_key_and_what_to_do(name: str) -> None:
    reports, told = CASES[name]
    (problem,) = agreement.problems(reports)
    assert problem.startswith(told)
    entry = told.partition(".")[0]
    assert problem.endswith(
        f"Checkpointer(per_rank=['{entry}']) keeps each rank's own, from_rank_0=['{entry}'] rank 0's"
    )


def test_every_key_is_named_at_once() -> None:
    one = report(progress__best=SAME, progress__last=SAME, model__w=SHARDED)
    other = report(progress__best=changed(SAME, kind="int"), progress__last=changed(SAME, kind="int"), model__w=SHARDED)
    assert [problem.partition(":")[0] for problem in agreement.problems([one, other])] == [
        "progress.best",
        "progress.last",
    ]


def test_keys_are_counted_over_all_ranks() -> None:
    first = Report({"model.a": SHARDED, "progress.best": SAME}, {"optimizer.param_groups.0.params": ("a",)}, {})
    second = Report({"model.b": SHARDED, "progress.best": SAME}, {"optimizer.param_groups.0.params": ("b",)}, {})
    assert agreement.count_keys([first, second]) == {"model": 2, "progress": 1, "optimizer": 1}


def test_lists_are_joined_without_what_several_ranks_have() -> None:
    reports = [Report({}, {"g": names}, {}) for names in (("a", "b"), ("b", "c"), ())]
    assert agreement.merge_lists(reports) == {"g": ["a", "b", "c"]}


def test_streams_are_numbered_by_what_is_equal() -> None:
    reports = [
        Report({}, {}, {"torch": torch, "python": python}) for torch, python in (("x", "1"), ("x", "2"), ("y", "1"))
    ]
    assert agreement.classify_streams(reports) == {"torch": [0, 0, 1], "python": [0, 1, 0]}
