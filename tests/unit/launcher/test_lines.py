"""Lines of several processes: what is never ended by a newline is shown in time, what is drawn often is shown seldom."""

from __future__ import annotations

import heapq

import pytest
from everstep.launcher.lines import REDRAWN_SECONDS, UNENDED_SECONDS, PrefixedLines, last_drawn, without_redraws
from everstep.launcher.loop import Action, Loop, Timer


class HandClock(Loop):
    """Timers by a clock that the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._set: list[Timer] = []

    def call_later(self, seconds: float, action: Action) -> Timer:
        timer = Timer(self._now + seconds, len(self._set), action)
        heapq.heappush(self._set, timer)
        return timer

    def pass_time(self, seconds: float) -> None:
        end = self._now + seconds
        while self._set and self._set[0].at <= end:
            timer = heapq.heappop(self._set)
            self._now = timer.at
            if not timer.cancelled:
                timer.action()
        self._now = end


class Shown:
    """A stream of rank 1 and what the log has of it."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.log = b""
        self.lines = PrefixedLines(self.clock, self._write, b"[rank 1] ")

    def _write(self, data: bytes) -> None:
        self.log += data

    def take(self, data: bytes, seconds: float = 0.0) -> None:
        self.lines.take(data)
        self.clock.pass_time(seconds)


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.mark.parametrize("bar", ["\r{}%", "{}%\r"], ids=["drawn-anew", "returns-at-once"])
def test_a_bar_that_is_drawn_often_is_shown_once_a_second(shown: Shown, bar: str) -> None:
    for number in range(100):
        shown.take(bar.format(number).encode(), seconds=0.0625)
    lines = shown.log.decode().split("\n")[:-1]
    assert len(lines) == 6
    assert lines[:2] == ["[rank 1] 15%", "[rank 1] 31%"]


def test_the_end_of_a_bar_is_shown_at_once_and_only_once(shown: Shown) -> None:
    shown.take(b"\r 90%\r 99%\r100%\n")
    assert shown.log == b"[rank 1] 100%\n"
    shown.take(b"\rsecond 100%", seconds=REDRAWN_SECONDS)
    shown.take(b"\nnext\n", seconds=100)
    assert shown.log == b"[rank 1] 100%\n[rank 1] second 100%\n[rank 1] next\n"


def test_a_bar_that_stands_still_is_shown_once(shown: Shown) -> None:
    shown.take(b"\r 5%", seconds=100)
    assert shown.log == b"[rank 1]  5%\n"


def test_a_bar_that_takes_itself_away_leaves_no_empty_lines(shown: Shown) -> None:
    shown.take(b"\r      \r", seconds=100)
    assert shown.log == b""


def test_a_line_without_an_end_is_shown_after_a_while(shown: Shown) -> None:
    shown.take(b"Continue? ", seconds=UNENDED_SECONDS - 1)
    assert shown.log == b""
    shown.clock.pass_time(1)
    assert shown.log == b"[rank 1] Continue? \n"
    shown.take(b"yes\n")
    assert shown.log == b"[rank 1] Continue? \n[rank 1] yes\n"


def test_dots_that_never_pause_are_shown_too(shown: Shown) -> None:
    for _ in range(100):
        shown.take(b".", seconds=UNENDED_SECONDS / 10)
    assert shown.log == 10 * (b"[rank 1] " + 10 * b"." + b"\n")


def test_a_line_that_comes_in_parts_stays_one(shown: Shown) -> None:
    shown.take(b"first ", seconds=1)
    shown.take(b"second\r", seconds=0.5)
    shown.take(b"\nthird\n\n", seconds=100)
    assert shown.log == b"[rank 1] first second\r\n[rank 1] third\n[rank 1] \n"


def test_an_overlong_line_goes_out_in_parts_behind_one_prefix(shown: Shown) -> None:
    for _ in range(3):
        shown.take(b"L" * 600_000)
    shown.lines.close()
    assert shown.log == b"[rank 1] " + b"L" * 1_800_000 + b"\n"


def test_the_end_of_the_stream_shows_the_rest(shown: Shown) -> None:
    shown.take(b"\r1%\r2%")
    shown.lines.close()
    shown.clock.pass_time(100)
    assert shown.log == b"[rank 1] 2%\n"


@pytest.mark.parametrize(
    ("data", "left"),
    [
        (b"plain\nlines\n", b"plain\nlines\n"),
        (b"\r1%\r2%\nTraceback\nValueError\r\n", b"2%\nTraceback\nValueError\r\n"),
        (b"1%\r2%\r", b"2%\r"),
        (b"\r\r", b"\r\r"),
        (b"", b""),
    ],
)
def test_what_was_overwritten_is_left_out(data: bytes, left: bytes) -> None:
    assert without_redraws(data) == left
    assert without_redraws(left) == left
    assert b"\n".join(last_drawn(line) for line in data.split(b"\n")) == left
