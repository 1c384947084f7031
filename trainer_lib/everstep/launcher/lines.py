"""Lines of one of several processes, told apart by a prefix; what is drawn again and again on one line is shown now and then."""

from __future__ import annotations

from collections.abc import Callable

from everstep.launcher.loop import Loop, Timer

REDRAWN_SECONDS = 1.0  # a progress bar is shown so often, however often it is drawn
UNENDED_SECONDS = 5.0  # a line that nobody ends (a prompt, dots) is shown after so long
_LONGEST_LINE_BYTES = 1 << 20  # a longer one goes out in parts


class PrefixedLines:
    """Passes bytes on as whole lines, each behind the prefix, and otherwise as they came.

    Of what carriage returns overwrite only the last state is shown: at the line's end, and before that every REDRAWN_SECONDS
    as a line of its own.
    """

    def __init__(self, loop: Loop, write: Callable[[bytes], None], prefix: bytes) -> None:
        self._loop = loop
        self._write = write
        self._prefix = prefix
        self._line = b""  # what came since the last line's end, and was not shown yet
        self._is_begun = False  # a part of an overlong line went out
        self._is_ended = False  # what came so far of this line was shown as a line, before its own end came
        self._is_redrawn = False  # a carriage return came in it
        self._show_later: Timer | None = None
        self._show_seconds = 0.0  # that this timer was given

    def take(self, data: bytes) -> None:
        """Whatever the process has printed."""
        *ended, rest = (self._line + data).split(b"\n")
        for line in ended:
            self._end_line(line)
        self._is_redrawn = b"\r" in rest or (self._is_redrawn and not ended)
        self._line = last_drawn(rest)
        if len(self._line) > _LONGEST_LINE_BYTES:
            self._emit(self._line)
            self._line = b""
        self._plan_to_show()

    def close(self) -> None:
        """Nothing more comes: show a last line without an end."""
        self._cancel()
        if self._line or self._is_begun:
            self._emit(self._line + b"\n")
            self._line = b""

    def _end_line(self, line: bytes) -> None:
        self._cancel()
        was_ended, self._is_ended = self._is_ended, False
        if not (was_ended and not line.strip(b"\r")):
            self._emit(last_drawn(line) + b"\n")

    def _plan_to_show(self) -> None:
        """A timer runs from the first byte that was not shown; later ones do not put it off."""
        if not self._line.strip():
            return
        seconds = REDRAWN_SECONDS if self._is_redrawn else UNENDED_SECONDS
        if self._show_later is not None and self._show_seconds <= seconds:
            return
        self._cancel()
        self._show_seconds = seconds
        self._show_later = self._loop.call_later(seconds, self._show)

    def _show(self) -> None:
        self._show_later = None
        if text := self._line.strip(b"\r"):
            self._emit(text + b"\n")
            self._line, self._is_ended = b"", True

    def _cancel(self) -> None:
        if self._show_later is not None:
            self._show_later.cancel()
            self._show_later = None

    def _emit(self, text: bytes) -> None:
        self._write(text if self._is_begun else self._prefix + text)
        self._is_begun = not text.endswith(b"\n")


def without_redraws(data: bytes) -> bytes:
    """The same lines, each without what a carriage return let it overwrite."""
    return b"\n".join(map(last_drawn, data.split(b"\n"))) if b"\r" in data else data


def last_drawn(line: bytes) -> bytes:
    """What of a line without its newline a terminal shows last; carriage returns at its end overwrite nothing yet, and stay."""
    return line[line.rstrip(b"\r").rfind(b"\r") + 1 :]
