"""What trainers print, passed on: byte-exact from one process, with `[rank N] ` in front of each line from several (`lines`)."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable

from everstep.launcher.lines import PrefixedLines, without_redraws
from everstep.launcher.loop import Loop

TAIL_BYTES = 2048
_CHUNK_BYTES = 65536
_HIGH_WATER_BYTES = 262144  # more than this waiting for a slow reader of ours: trainers wait, too
_DRAIN_CHUNKS = 32  # more than a pipe holds; bounded, for a grandchild may write for ever


class Sink:
    """One of our own output streams. Never blocks: a container log that is stuck must not keep a Stop from being obeyed."""

    def __init__(self, loop: Loop, handle: int) -> None:
        self._loop = loop
        self._handle = _open_terminal(handle) if os.isatty(handle) else handle
        self._waiting = bytearray()
        self._on_drained: list[Callable[[], None]] = []
        self._broken = False

    @property
    def full(self) -> bool:
        return len(self._waiting) > _HIGH_WATER_BYTES

    def write(self, data: bytes) -> None:
        """Pass on, now or as soon as the reader takes it."""
        if not self._broken:
            self._waiting += data
            self._pump()

    def when_drained(self, action: Callable[[], None]) -> None:
        """Do `action` once, when there is room again."""
        self._on_drained.append(action)

    def flush(self, seconds: float) -> None:
        """Write what waits, for at most so long. For the very end: it blocks."""
        deadline = time.monotonic() + seconds
        while self._waiting and _is_writable(self._handle, max(0.0, deadline - time.monotonic())):
            self._write_some()

    def _pump(self) -> None:
        while self._waiting and _is_writable(self._handle, 0):
            self._write_some()
        self._loop.on_writable(self._handle, self._pump if self._waiting else None)
        if not self.full:
            actions, self._on_drained = self._on_drained, []
            for action in actions:
                action()

    def _write_some(self) -> None:
        try:
            # A pipe that polls as writable takes select.PIPE_BUF bytes without blocking; O_NONBLOCK would be seen by others who share it.
            del self._waiting[: os.write(self._handle, self._waiting[: select.PIPE_BUF])]
        except BlockingIOError:
            return
        except OSError:  # the reader is gone: training goes on without one
            self._broken = True
            self._waiting.clear()


class Console:
    """Standard output and standard error of the launcher."""

    def __init__(self, loop: Loop) -> None:
        self.stdout = Sink(loop, sys.__stdout__.fileno() if sys.__stdout__ else 1)
        self.stderr = Sink(loop, sys.__stderr__.fileno() if sys.__stderr__ else 2)

    def say(self, text: str) -> None:
        """A line of our own."""
        self.stderr.write(f"everstep: {text}\n".encode(errors="replace"))

    def flush(self, seconds: float) -> None:
        """Before the end."""
        self.stdout.flush(seconds)
        self.stderr.flush(seconds)


class Stream:
    """One pipe from one process to one of our streams, and the last bytes that went through it."""

    def __init__(self, loop: Loop, handle: int, sink: Sink, prefix: bytes) -> None:
        self._loop = loop
        self._handle = handle
        self._sink = sink
        self._lines = PrefixedLines(loop, sink.write, prefix) if prefix else None  # None: pass bytes as they are
        self.tail = b""
        self.num_bytes = 0  # that came so far

    def open(self) -> None:
        """Begin to read."""
        os.set_blocking(self._handle, False)
        self._loop.on_readable(self._handle, self._read)

    def drain(self) -> None:
        """Read all that is there now, however full our own stream is: the last lines name the cause."""
        for _ in range(_DRAIN_CHUNKS):
            if not self._read_once():
                return

    def close(self) -> None:
        """Read the rest, end a last line without an end, close."""
        self.drain()
        if self._handle < 0:
            return
        if self._lines is not None:
            self._lines.close()
        self._loop.on_readable(self._handle, None)
        os.close(self._handle)
        self._handle = -1

    def _read(self) -> None:
        if self._read_once() and self._sink.full and self._handle >= 0:
            self._loop.on_readable(self._handle, None)
            self._sink.when_drained(self._resume)

    def _resume(self) -> None:
        if self._handle >= 0:
            self._loop.on_readable(self._handle, self._read)

    def _read_once(self) -> bool:
        if self._handle < 0:
            return False
        try:
            data = os.read(self._handle, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.on_readable(self._handle, None)
            return False
        self.num_bytes += len(data)
        self.tail = without_redraws(self.tail + data)[-TAIL_BYTES:]
        if self._lines is not None:
            self._lines.take(data)
        else:
            self._sink.write(data)
        return True


class Output:
    """Both streams of one process."""

    def __init__(self, loop: Loop, console: Console, handles: tuple[int, int], prefix: bytes) -> None:
        self._stdout = Stream(loop, handles[0], console.stdout, prefix)
        self._stderr = Stream(loop, handles[1], console.stderr, prefix)

    @property
    def num_bytes(self) -> int:
        """How much this process has printed."""
        return self._stdout.num_bytes + self._stderr.num_bytes

    def open(self) -> None:
        """Begin to pass on."""
        self._stdout.open()
        self._stderr.open()

    def close(self) -> None:
        """Pass on the rest. Nobody who could write may be left, or what he writes is lost."""
        self._stdout.close()
        self._stderr.close()

    def last_lines(self) -> str:
        """The last of standard error, and of standard output what there is room for; at most TAIL_BYTES as UTF-8."""
        self._stdout.drain()
        self._stderr.drain()
        errors = clip(self._stderr.tail.decode(errors="replace"))
        room = TAIL_BYTES - len(errors.encode())
        return clip(self._stdout.tail.decode(errors="replace"), room) + errors


def clip(text: str, limit_bytes: int = TAIL_BYTES) -> str:
    """The end of a text that fits into so many bytes of UTF-8, from the beginning of a line where there is one."""
    raw = text.encode(errors="replace")
    if len(raw) <= limit_bytes:
        return raw.decode()
    cut = raw[len(raw) - limit_bytes :].decode(errors="ignore") if limit_bytes > 0 else ""
    _, newline, rest = cut.partition("\n")
    return rest if newline and rest else cut


def _open_terminal(handle: int) -> int:
    """The same terminal under a handle that never blocks: one that polls as writable may take less than is written to it."""
    try:
        return os.open(f"/proc/self/fd/{handle}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:  # the terminal is another user's
        return handle


def _is_writable(handle: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLOUT)
    return bool(poll.poll(seconds * 1000))
