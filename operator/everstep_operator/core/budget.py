"""R32: what a failure costs, and when a job stops by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

from everstep_protocol.plan import Cause

from everstep_operator.core import clock
from everstep_operator.core.model import Budget, Crash, RestartPolicy, Settings

SPENDING: frozenset[Cause] = frozenset({"crash", "hang", "oom", "evicted"})
PLANNED: frozenset[Cause] = frozenset({"start", "resume", "grow", "shrink", "template"})


@dataclass(frozen=True)
class Ended:
    """An attempt that has ended, as far as the budget is concerned."""

    attempt: int
    cause: Cause  # of the next attempt: why this one ended
    committed: bool  # a checkpoint of this attempt was committed


@dataclass(frozen=True)
class Stop:
    """The job fails, and why."""

    reason: str
    message: str


def spend(budget: Budget, ended: Ended, *, now: float, policy: RestartPolicy) -> Budget:
    """R32: the budget after this end. A commit of the attempt begins both counts anew; chosen changes count in neither."""
    spends = ended.cause in SPENDING
    without_progress = 0 if ended.committed else budget.without_progress + spends
    counts = not ended.committed and ended.cause not in PLANNED
    without_commit = 0 if ended.committed else budget.attempts_without_commit + counts
    crashes = (*budget.crashes, Crash(ended.attempt, clock.rfc3339(now))) if spends else budget.crashes
    kept = max(20, policy.max_crashes + 1)
    return Budget(crashes[-kept:], without_progress, without_commit)


def committed(budget: Budget) -> Budget:
    """A commit was seen: progress."""
    return replace(budget, without_progress=0, attempts_without_commit=0)


def committed_unheard(budget: Budget, settings: Settings) -> Budget:
    """Storage has a commit of an attempt that never started as far as we know: progress, so the job does not fail.

    But whatever kept its start from us may keep the next one's, too: restarts go on to back off.
    """
    most = settings.max_attempts_without_commit - 2
    return replace(budget, without_progress=0, attempts_without_commit=min(budget.attempts_without_commit, most))


def stop(budget: Budget, *, now: float, policy: RestartPolicy, settings: Settings) -> Stop | None:
    """R32: crashes in the window *exceed* the limit; too many crash attempts, or attempts of any cause, without a commit."""
    recent = [crash for crash in budget.crashes if now - clock.since_epoch(crash.at) <= policy.window_seconds]
    if len(recent) > policy.max_crashes:
        return Stop(
            "CrashBudgetExceeded",
            f"{len(recent)} crashes within {policy.window_seconds:g} s, restartPolicy.maxCrashes is {policy.max_crashes}",
        )
    if budget.without_progress >= policy.max_without_progress:
        return Stop("NoProgress", f"{budget.without_progress} crashes in a row without a checkpoint in between")
    if budget.attempts_without_commit >= settings.max_attempts_without_commit:
        return Stop("NoProgress", f"{budget.attempts_without_commit} attempts in a row without a checkpoint in between")
    return None


def backoff_seconds(budget: Budget, settings: Settings) -> float:
    """R32: how long the next attempt waits: nothing at first, then 5 s doubling up to 5 min."""
    excess = budget.attempts_without_commit - settings.backoff_after
    if excess < 0:
        return 0.0
    return min(settings.backoff_first * 2.0**excess, settings.backoff_most)
