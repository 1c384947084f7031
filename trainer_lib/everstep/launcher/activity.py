"""R7: whether trainers that report no steps still do anything: the CPU time that they use, and what they print."""

from __future__ import annotations

import time
from collections.abc import Callable

from everstep_protocol import local

from everstep.launcher import processes
from everstep.launcher.loop import Loop, Timer

SAMPLE_SECONDS = 5.0

# Twice what waiting was seen to cost: in init_process_group (gloo, torch 2.6 and 2.14) rank 0 uses 1.0 to 1.6 % of a core, for it
# looks into its store every 10 ms, whether for one peer or for twelve; other ranks there, and all in an all_reduce, at most 0.6 %.
IDLE_CORE = 0.03  # a process that uses less of a core than this waits


class ActivityWatch:
    """Samples every few seconds what the processes of an attempt used, and tells for how long none has done anything.

    A sample reads /proc once and neither blocks nor raises. Where /proc cannot be read, nobody is called idle.
    """

    def __init__(
        self, loop: Loop, tell: Callable[[local.Activity], None], *, sample_seconds: float = SAMPLE_SECONDS
    ) -> None:
        self._loop = loop
        self._tell = tell
        self._sample_seconds = sample_seconds
        self._timer: Timer | None = None
        self._attempt = 0
        self._count_printed: Callable[[], int] = int
        self._seconds: processes.CpuSeconds | None = None
        self._num_printed = 0
        self._sampled_at = 0.0
        self._alive_at = 0.0

    def begin(self, attempt: int, count_printed: Callable[[], int]) -> None:
        """The processes of this attempt have started. `count_printed`: bytes that they printed so far."""
        self.end()
        self._attempt = attempt
        self._count_printed = count_printed
        self._num_printed = count_printed()
        self._seconds = processes.read_cpu_seconds()
        self._sampled_at = self._alive_at = time.monotonic()
        self._wait()

    def end(self) -> None:
        """Nothing of the attempt is left."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self._timer = self._loop.call_later(self._sample_seconds, self._sample)

    def _sample(self) -> None:
        seconds, num_printed, now = processes.read_cpu_seconds(), self._count_printed(), time.monotonic()
        if num_printed != self._num_printed or is_busy(self._seconds, seconds, now - self._sampled_at):
            self._alive_at = now
        self._seconds, self._num_printed, self._sampled_at = seconds, num_printed, now
        self._tell(local.Activity(self._attempt, now - self._alive_at))
        self._wait()


def is_busy(before: processes.CpuSeconds | None, after: processes.CpuSeconds | None, elapsed_seconds: float) -> bool:
    """Whether any single process used IDLE_CORE or more of a core between two samples; True where one of them could not be had."""
    if before is None or after is None:
        return True
    return any(seconds - before.get(process, 0.0) >= IDLE_CORE * elapsed_seconds for process, seconds in after.items())
