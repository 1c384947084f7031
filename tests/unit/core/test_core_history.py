"""The ledger of attempts: what each was for, and what it cost. For people: no rule reads it."""

from __future__ import annotations

from dataclasses import replace

from everstep_operator.core import history
from everstep_operator.core.model import AttemptStatus, HistoryEntry, JobStatus, StageSeconds
from unit.core.jobs import NOW, NOW_TEXT, plan, resume, started_status


def preparing(number: int) -> AttemptStatus:
    return AttemptStatus(number, "Preparing", f"i{number}", "crash", 1, failure_at=NOW_TEXT, message="it crashed")


def begin(status: JobStatus, number: int, now: float) -> JobStatus:
    return history.begin(status, preparing(number), now=now, length=20)


def line(status: JobStatus, number: int) -> HistoryEntry:
    (found,) = [entry for entry in status.history if entry.number == number]
    return found


def test_a_new_attempt_ends_the_line_of_the_one_before() -> None:
    status = begin(started_status(), 2, NOW + 5)
    assert line(status, 1).ended_at == "2025-11-29T07:06:45.000Z"
    assert line(status, 2) == HistoryEntry(
        number=2,
        cause="crash",
        world_size=0,
        resumed_step=-1,
        steps_lost=None,
        seconds=StageSeconds(detected=5.0),
        nodes=(),
        message="it crashed",
        started_at="2025-11-29T07:06:45.000Z",
    )
    ended = line(history.closed(status, now=NOW + 6), 2)
    assert ended.ended_at == "2025-11-29T07:06:46.000Z"


def test_a_number_that_was_only_prepared_leaves_no_line() -> None:
    status = begin(begin(started_status(), 2, NOW), 3, NOW)
    assert [entry.number for entry in status.history] == [1, 3]


def test_what_an_attempt_cost_is_steps_and_seconds_since_the_failure() -> None:
    status = begin(started_status(step=37), 2, NOW + 1)
    status = history.planned(status, plan(2, (0, 1), resume=resume(1, 30)), now=NOW + 2)
    status = history.first_step(status, now=NOW + 4)
    assert status == history.first_step(status, now=NOW + 9), "the first stays the first"
    told = line(status, 2)
    assert (told.world_size, told.resumed_step, told.steps_lost, told.nodes) == (2, 30, 7, ("n0", "n1"))
    assert told.num_workers == 2
    assert told.seconds == StageSeconds(detected=1.0, planned=2.0, first_step=4.0)
    nothing = begin(replace(started_status(), step=-1), 2, NOW)
    assert line(history.planned(nothing, plan(2, resume=resume(1, 30)), now=NOW), 2).steps_lost == 0


def test_the_nodes_of_many_workers_are_counted_and_not_named() -> None:
    """Twenty lines with a thousand names each would not fit into an object."""
    most = history.MOST_NODES
    for count, named in ((most, most), (most + 1, 0), (1000, 0)):
        status = history.planned(begin(started_status(), 2, NOW), plan(2, tuple(range(count))), now=NOW)
        told = line(status, 2)
        assert (told.num_workers, len(told.nodes)) == (count, named)
