"""Asks the user's interpreter about its torch, while the plan is still on its way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from everstep.launcher import libuv, processes
from everstep.launcher.interpreter import find_torchrun_interpreter
from everstep.launcher.loop import Loop, Timer
from everstep.launcher.processes import Launch, Process

_LIMIT_SECONDS = 30.0  # a cold disk; after that the user's own choice, or torch's, must do


class LibuvProbe:
    """`has_libuv`: None while it is not known. `on_done` comes once, whatever came of it."""

    def __init__(self, loop: Loop, on_done: Callable[[], None], *, limit_seconds: float = _LIMIT_SECONDS) -> None:
        self._loop = loop
        self._on_done = on_done
        self._limit_seconds = limit_seconds
        self._process: Process | None = None
        self._limit: Timer | None = None
        self.has_libuv: bool | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self, interpreter: tuple[str, ...], environment: Mapping[str, str]) -> None:
        """Ask, unless the user has decided; where that cannot be done, nothing is known."""
        if "USE_LIBUV" in environment:
            return
        code = Path(libuv.__file__).read_text()
        try:
            words = interpreter or find_torchrun_interpreter("torchrun", environment.get("PATH", ""))
            self._process = processes.spawn(Launch(-1, (*words, "-c", code), environment))
        except (ValueError, OSError):  # no python at all in the image: then there is no torch, either
            return
        self._limit = self._loop.call_later(self._limit_seconds, self._give_up)

    def reaped(self, pid: int) -> bool:
        """Whether this child was the probe."""
        if self._process is None or self._process.pid != pid:
            return False
        self.has_libuv = {b"yes": True, b"no": False}.get(_read_at_hand(self._process.output[0]))
        if self._limit is not None:
            self._limit.cancel()
        self._let_go(self._process)
        return True

    def _give_up(self) -> None:
        """Not even a kill is waited for: on a disk that hangs it would never come to its end."""
        if self._process is not None:
            processes.send_signal(self._process.pid, signal.SIGKILL, group=True)
            self._let_go(self._process)

    def _let_go(self, process: Process) -> None:
        self._process = None
        for handle in process.output:
            os.close(handle)
        self._on_done()


def _read_at_hand(handle: int) -> bytes:
    """What is there now: whoever the ended process has left behind may hold the other end open for ever."""
    os.set_blocking(handle, False)
    try:
        return os.read(handle, 100).strip()
    except BlockingIOError:
        return b""
