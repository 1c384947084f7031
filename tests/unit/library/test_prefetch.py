"""Loading ahead: items in order, failures as they are, no thread left behind; and steps, whatever the loop does with them."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from everstep.prefetch import Prefetcher, StepCursor
from hypothesis import given
from hypothesis import strategies as st

LIBRARY = Path(__file__).parents[3] / "trainer_lib"
HANG_SECONDS = 60


class Source:
    """Counts from 0 without end; knows how far it was asked, on which threads, and whether it was closed."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.threads: set[threading.Thread] = set()
        self.given: list[int] = []
        self.room = threading.Semaphore(0)
        self.is_closed = False
        self._fails_at = fails_at

    def items(self) -> Any:
        try:
            for number in itertools.count():
                self.threads.add(threading.current_thread())
                if number == self._fails_at:
                    raise KeyError(number)
                self.given.append(number)
                self.room.release()
                yield number
        finally:
            self.is_closed = True


def wait_ended(source: Source) -> None:
    for thread in source.threads:
        thread.join(HANG_SECONDS)
        assert not thread.is_alive()


def test_items_come_in_order_and_just_so_many_ahead() -> None:
    source = Source()
    ahead = Prefetcher(source.items(), depth=3)
    for number in range(5):
        assert ahead.__next__() == number
        for _ in range(1 if number else 4):
            assert source.room.acquire(timeout=HANG_SECONDS)
        assert source.given == list(range(number + 4))
    ahead.close()
    assert source.threads
    assert threading.current_thread() not in source.threads
    assert not any(thread.daemon for thread in source.threads)
    wait_ended(source)
    assert source.is_closed


def test_a_failure_is_raised_as_it_is_and_in_its_place() -> None:
    ahead = Prefetcher(Source(fails_at=2).items(), depth=4)
    assert [ahead.__next__(), ahead.__next__()] == [0, 1]
    with pytest.raises(KeyError, match="2"):
        ahead.__next__()
    ahead.close()


def test_the_thread_ends_with_the_last_reference() -> None:
    source = Source()
    ahead = Prefetcher(source.items(), depth=2)
    ahead.__next__()
    del ahead
    gc.collect()
    wait_ended(source)


def test_the_thread_ends_before_a_process_that_forgets_it() -> None:
    """And before the interpreter takes its modules apart: what the thread does at the end still works."""
    code = """
import itertools, threading
from everstep.prefetch import Prefetcher

def items():
    for number in itertools.count():
        if number == 2:
            main = threading.main_thread()
            release.wait()
            print("loaded", number, flush=True)
        yield number

release = threading.Event()
ahead = Prefetcher(items(), depth=2)
ahead.__next__()
threading._register_atexit(release.set)  # runs when the interpreter begins to wait for its threads
print("end of the script", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(LIBRARY)},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end of the script\nloaded 2\n", "")


def step_items(first: int, num_each: int) -> Iterator[tuple[int, int]]:
    for step in itertools.count(first):
        for place in range(num_each):
            yield step, place


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=12))
def test_a_step_is_whole_whatever_was_left_of_the_one_before(num_each: int, walk: list[tuple[int, int]]) -> None:
    """Each entry: skip so many steps, then take so many micro batches of the step."""
    cursor = StepCursor(step_items(7, num_each), step=7, num_each=num_each)  # type: ignore[arg-type]
    step = 7
    for skipped, taken in walk:
        step += skipped
        assert cursor.is_before(step)
        assert not cursor.is_before(step - skipped - 1)
        assert cursor.is_next(step) == (skipped == 0)
        assert list(itertools.islice(cursor.take(step), taken)) == [(step, place) for place in range(num_each)][:taken]
        assert not cursor.is_before(step)
        step += 1


def test_two_loops_over_one_cursor_are_refused() -> None:
    cursor = StepCursor(step_items(0, 2), step=0, num_each=2)  # type: ignore[arg-type]
    first = cursor.take(0)
    assert next(first) == (0, 0)
    assert list(cursor.take(1)) == [(1, 0), (1, 1)]
    with pytest.raises(RuntimeError, match=r"micro_batches\(0\) cannot go on"):
        next(first)


def test_a_closed_or_failed_cursor_hands_out_nothing() -> None:
    source = Source(fails_at=3)
    cursor = StepCursor(Prefetcher(source.items(), depth=2), step=0, num_each=2)
    assert list(cursor.take(0)) == [0, 1]
    with pytest.raises(KeyError):
        list(cursor.take(1))
    wait_ended(source)
    assert not cursor.is_before(2)
    with pytest.raises(RuntimeError, match="cannot go on"):
        next(cursor.take(2))
    cursor.close()
