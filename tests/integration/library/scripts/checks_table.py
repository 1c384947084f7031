"""Things that a script may put into its state, what may happen to them between start and save, and the world of the resume.

Every cell of this table is equal, or refused by name and in time, at the start, at the save or at the resume. Nothing third.
The things are in `things_*.py`, the rules of what must come of them in `things.py`, and how they are played in `rounds.py`.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import cluster_kit as kit
import everstep
from judging import Failures
from ranks import run_ranks
from rounds import play_equal, play_kept, play_refused_resumes, play_saves, play_starts
from streams import play_streams
from table import all_things, chosen, settled
from things import AT_RESUME, EQUAL, WORLDS, cells_of, rank

SAVED_BY = (1, 2)


def check_table_has_a_word_on_every_happening_to_every_thing(folder: Path) -> None:
    assert len(cells_of(all_things())) > 1000


def check_table_what_is_refused_at_the_start(folder: Path) -> None:
    failures = Failures([])
    things = settled(all_things(), folder)
    for num_ranks in SAVED_BY:
        play_starts(things, num_ranks, folder, failures)
    failures.check()


def check_table_what_is_refused_at_the_save(folder: Path) -> None:
    failures = Failures([])
    things = settled(all_things(), folder)
    for num_ranks in SAVED_BY:
        play_saves(things, num_ranks, folder, failures)
    failures.check()


def check_table_what_is_equal(folder: Path) -> None:
    failures = Failures([])
    things = settled(all_things(), folder)
    for saved_by in SAVED_BY:
        kept = play_kept(chosen(things, EQUAL, saved_by), saved_by, folder, failures, EQUAL)
        for worlds in (pair for pair in WORLDS if pair[0] == saved_by):
            play_equal(kept, worlds, folder, failures)
    failures.check()


def check_table_what_is_refused_at_the_resume(folder: Path) -> None:
    failures = Failures([])
    for saved_by in SAVED_BY:
        kept = play_kept(chosen(all_things(), AT_RESUME, saved_by), saved_by, folder, failures, AT_RESUME)
        for worlds in (pair for pair in WORLDS if pair[0] == saved_by):
            play_refused_resumes(kept, worlds, folder, failures)
    failures.check()


def check_table_random_streams(folder: Path) -> None:
    wrong = play_streams(folder)
    assert not wrong, "\n".join(wrong)


def check_table_a_refused_save_is_counted_on_all_ranks(folder: Path) -> None:
    pods = kit.make_pods(folder / "pods", 2, steps=1)

    def run() -> int:
        kit.enter_pod(pods[rank()])
        box: dict[str, Any] = {"value": 1}
        for step in everstep.Checkpointer({"box": box}).steps(until=2):
            box["value"] = (threading.Lock() if rank() == 1 else 2) if step == 0 else 3
        record = kit.progress_page(pods[rank()]).read()
        assert record is not None
        return record.num_failed_saves

    assert run_ranks(2, run) == [1, 1]
    assert [kit.snapshots(pod) for pod in pods] == [[2], [2]]
