"""What a trainer tells its pod each step, and what its pod tells it, through shared memory (R19, R25). Outside a cluster: nothing."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from everstep_protocol import codec, names, records
from everstep_protocol.shared_memory import PHASES, Control, Page, Progress

_REMEMBERED_STEPS = 31
_LONGEST_MESSAGE = 2000


class StepClock:
    """A step's usual time: the median of the last ones, so that saves, stalls and the first steps do not count."""

    def __init__(self) -> None:
        self._durations: deque[int] = deque(maxlen=_REMEMBERED_STEPS)
        self._last_ns = 0
        self.usual_ns = 0

    def start(self) -> None:
        """A step begins now; what came before (loading) is no part of it."""
        self._last_ns = time.monotonic_ns()

    def tick(self) -> int:
        """A step has ended; gives the time, CLOCK_MONOTONIC in nanoseconds."""
        now = time.monotonic_ns()
        self._durations.append(now - self._last_ns)
        self._last_ns = now
        self.usual_ns = int(statistics.median_low(self._durations))
        return now


class Reporter:
    """Writes this trainer's Progress page and reads the pod's Control page."""

    def __init__(self, memory: Path, *, local_rank: int, attempt: int) -> None:
        self._progress = Page(memory / f"{names.PROGRESS_PREFIX}{local_rank}", Progress)
        self._control = Page(memory / names.CONTROL_NAME, Control)
        self._unsaved = memory / f"{names.UNSAVED_PREFIX}{local_rank}"
        self._unsaved_since_ns = 0
        self._attempt = attempt
        self._record = Progress(attempt, -1, time.monotonic_ns(), 0, 0, 0, 0)

    def open(self) -> None:
        """Map both pages and say `starting`."""
        self._progress.open(create=True)
        self._control.open(create=True)
        self.enter("starting")

    def enter(self, phase: str) -> None:
        """Publish another phase."""
        self._publish(phase=PHASES.index(phase))

    def finish_step(self, step: int, at_ns: int, usual_ns: int, samples_consumed: int) -> None:
        """Publish a finished step; before `stop_step` is asked."""
        self._publish(step=step, step_at_ns=at_ns, usual_ns=usual_ns, samples_consumed=samples_consumed)

    def count(self, *, skipped: int, failed: int) -> None:
        """Publish how many saves of this attempt were skipped, and how many failed."""
        self._publish(num_skipped_saves=skipped, num_failed_saves=failed)

    def tell_unsaved(self, step: int, reason: str, message: str) -> None:
        """Say why the newest save failed; until `forget_unsaved`."""
        self._unsaved_since_ns = self._unsaved_since_ns or time.monotonic_ns()
        told = records.Unsaved(self._attempt, step, reason, message[:_LONGEST_MESSAGE], self._unsaved_since_ns)
        half = self._unsaved.with_name(f"{self._unsaved.name}.tmp")
        with suppress(OSError):  # a full volume is often the reason itself: the counts tell as well
            half.write_text(codec.dumps(told))
            half.chmod(0o644)
            half.rename(self._unsaved)

    def forget_unsaved(self) -> None:
        """The newest save is good."""
        if self._unsaved_since_ns:
            self._unsaved_since_ns = 0
            self._unsaved.unlink(missing_ok=True)

    def stop_step(self) -> tuple[int, bool]:
        """R19: (step at which all ranks are to stop, -1: none; whether it is confirmed)."""
        control = self._control.read()
        if control is None or control.attempt != self._attempt:
            return -1, False
        return control.stop_step, bool(control.confirmed)

    def _publish(self, **changes: int) -> None:
        self._record = dataclasses.replace(self._record, **changes)
        self._progress.write(self._record)
