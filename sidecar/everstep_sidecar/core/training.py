"""T of R25: one view of this pod's trainers, from what each of them wrote in shared memory by its own clock."""

from __future__ import annotations

import math
from dataclasses import replace

from everstep_protocol.messages import Training
from everstep_protocol.shared_memory import PHASES, Progress

_NANO = 1e-9


def idle_seconds(own: Training) -> float | None:
    """R7: since the last sign of life of this pod's trainers; None: they report steps, or there are none."""
    return None if own.library or own.phase == "none" else own.age_seconds


def among(own: Training, idle: float | None) -> Training:
    """R7: a script that reports no steps lives as long as any of its pods does; `idle`: of all members, None: not known."""
    if idle is None or idle_seconds(own) is None:
        return own
    return replace(own, age_seconds=min(own.age_seconds, idle))


def summarize(
    pages: tuple[Progress, ...], *, started_at_ns: int | None, now_ns: int, silent_seconds: float = math.inf
) -> Training:
    """The newest finished step and its age; `pages` are those of the current attempt only. None started: phase `none`.

    `silent_seconds`: since the launcher last told a sign of life. It counts where no step is reported.
    """
    if started_at_ns is None:
        return Training(False, -1, 0.0, 0.0, "none")
    since_start = max(0.0, (now_ns - started_at_ns) * _NANO)
    if not pages:
        return Training(False, -1, min(silent_seconds, since_start), 0.0, "starting")
    newest = max(pages, key=lambda page: (page.step, page.step_at_ns))
    age = max(0.0, (now_ns - newest.step_at_ns) * _NANO) if newest.step >= 0 else since_start
    usual = max(page.usual_ns for page in pages) * _NANO
    phase = PHASES[min(page.phase for page in pages)]
    return Training(True, newest.step, age, usual, "starting" if phase == "none" else phase)  # type: ignore[arg-type]
