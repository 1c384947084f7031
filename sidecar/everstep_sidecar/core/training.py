"""T of R25: one view of this pod's trainers, from what each of them wrote in shared memory by its own clock."""

from __future__ import annotations

from dataclasses import replace

from everstep_protocol.messages import Training
from everstep_protocol.shared_memory import PHASES, Progress

_NANO = 1e-9


def among(own: Training, idle_seconds: float | None) -> Training:
    """R7: a script that reports no steps lives as long as any of its pods does; `idle_seconds`: of all members, None: not known."""
    if not own.watched or idle_seconds is None:
        return own
    return replace(own, age_seconds=min(own.age_seconds, idle_seconds))


def summarize(
    pages: tuple[Progress, ...], *, started_at_ns: int | None, now_ns: int, idle_seconds: float | None = None
) -> Training:
    """The newest finished step and its age; `pages` are those of the current attempt only. None started: phase `none`.

    `idle_seconds`: since the processes last used CPU time or printed something, None: not known. It counts where no step is reported.
    """
    if started_at_ns is None:
        return Training(False, -1, 0.0, 0.0, "none")
    since_start = max(0.0, (now_ns - started_at_ns) * _NANO)
    if not pages:
        idle = since_start if idle_seconds is None else min(idle_seconds, since_start)
        return Training(False, -1, idle, 0.0, "starting", watched=idle_seconds is not None)
    newest = max(pages, key=lambda page: (page.step, page.step_at_ns))
    age = max(0.0, (now_ns - newest.step_at_ns) * _NANO) if newest.step >= 0 else since_start
    usual = max(page.usual_ns for page in pages) * _NANO
    phase = PHASES[min(page.phase for page in pages)]
    return Training(True, newest.step, age, usual, "starting" if phase == "none" else phase)  # type: ignore[arg-type]
