"""One thread's event loop: file descriptors, timers, signals."""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

Action = Callable[[], None]


@dataclass(order=True)
class Timer:
    """Something to do later. A cancelled one is never done."""

    at: float  # by the monotonic clock
    sequence: int
    action: Action = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Waits for what was asked for and does it, until `stop`."""

    def __init__(self) -> None:
        # poll, not epoll: it admits regular files, and standard output may be one
        self._selector = selectors.PollSelector()
        self._timers: list[Timer] = []
        self._sequence = itertools.count()
        self._result: int | None = None

    def on_readable(self, handle: int, action: Action | None) -> None:
        """Do `action` whenever `handle` can be read; None: no longer."""
        self._watch(handle, selectors.EVENT_READ, action)

    def on_writable(self, handle: int, action: Action | None) -> None:
        """Do `action` whenever `handle` can be written; None: no longer."""
        self._watch(handle, selectors.EVENT_WRITE, action)

    def call_later(self, seconds: float, action: Action) -> Timer:
        """Do `action` once, `seconds` from now."""
        timer = Timer(time.monotonic() + seconds, next(self._sequence), action)
        heapq.heappush(self._timers, timer)
        return timer

    def on_signals(self, signals: Iterable[signal.Signals], action: Callable[[int], None]) -> None:
        """Do `action` with the number of each of these signals that arrives. Call once."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in signals:
            signal.signal(number, _leave_it_to_the_wakeup)

        def read() -> None:
            for number in os.read(reader, 4096):
                action(number)

        self.on_readable(reader, read)

    def run(self) -> int:
        """Returns the code given to `stop`."""
        while self._result is None:
            for key, events in self._selector.select(self._next_timeout()):
                for event, action in list(key.data.items()):
                    if events & event:
                        action()
            self._run_timers()
        return self._result

    def stop(self, code: int) -> None:
        """End `run` after this turn."""
        self._result = code

    def _watch(self, handle: int, event: int, action: Action | None) -> None:
        key = self._selector.get_map().get(handle)
        actions: dict[int, Action] = dict(key.data) if key else {}
        actions.pop(event, None)
        if action is not None:
            actions[event] = action
        if key is not None:
            self._selector.unregister(handle)
        if actions:
            self._selector.register(handle, sum(actions), actions)

    def _next_timeout(self) -> float | None:
        while self._timers and self._timers[0].cancelled:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0].at - time.monotonic()) if self._timers else None

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0].at <= now:
            timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                timer.action()


def _leave_it_to_the_wakeup(number: int, frame: object) -> None:
    """A handler there must be, or the wakeup pipe is not written."""
