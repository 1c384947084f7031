"""Asks the user's interpreter about its torch, while the plan is still on its way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from everstep.launcher import libuv, processes
from everstep.launcher.loop import Loop, Timer
from everstep.launcher.processes import Launch, Process

_LIMIT_SECONDS = 30.0  # a cold disk; after that the user's own choice, or torch's, must do


class LibuvProbe:
    """`has_libuv`: None while it is not known. `on_done` comes once, whatever came of it."""

    def __init__(self, loop: Loop, on_done: Callable[[], None]) -> None:
        self._loop = loop
        self._on_done = on_done
        self._process: Process | None = None
        self._limit: Timer | None = None
        self.has_libuv: bool | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self, interpreter: tuple[str, ...], environment: Mapping[str, str]) -> None:
        """Ask; where that cannot be done, nothing is known."""
        code = Path(libuv.__file__).read_text()
        try:
            self._process = processes.spawn(Launch(-1, (*interpreter, "-c", code), environment))
        except OSError:
            return
        pid = self._process.pid
        self._limit = self._loop.call_later(
            _LIMIT_SECONDS, lambda: processes.send_signal(pid, signal.SIGKILL, group=True)
        )

    def reaped(self, pid: int) -> bool:
        """Whether this child was the probe."""
        if self._process is None or self._process.pid != pid:
            return False
        stdout, stderr = self._process.output
        answer = os.read(stdout, 100).strip()
        self.has_libuv = {b"yes": True, b"no": False}.get(answer)
        os.close(stdout)
        os.close(stderr)
        self._process = None
        if self._limit is not None:
            self._limit.cancel()
        self._on_done()
        return True
