"""R32: what a failure costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from everstep_operator.core import attempts, budget, clock
from everstep_operator.core.attempts import Ending
from everstep_operator.core.budget import Ended
from everstep_operator.core.model import (
    Budget,
    Crash,
    RestartPolicy,
)
from unit.core.jobs import (
    NOW,
    NOW_TEXT,
    SETTINGS,
    observed,
)

POLICY = RestartPolicy()


SPENT: dict[str, tuple[Budget, Ended, Budget]] = {
    "a crash without a commit": (Budget((), 1, 1), Ended(1, "crash", False), Budget((Crash(1, NOW_TEXT),), 2, 2)),
    "a crash after a commit": (Budget((), 1, 1), Ended(1, "crash", True), Budget((Crash(1, NOW_TEXT),), 0, 0)),
    "a hang is a crash": (Budget(), Ended(1, "hang", False), Budget((Crash(1, NOW_TEXT),), 1, 1)),
    "a node lost is free, but no progress": (Budget((), 1, 1), Ended(1, "node-lost", False), Budget((), 1, 2)),
    "preemption too": (Budget(), Ended(1, "preemption", False), Budget((), 0, 1)),
    "growing is nobody's failure": (Budget((), 1, 1), Ended(1, "grow", False), Budget((), 1, 1)),
}


@pytest.mark.parametrize(("before", "ended", "after"), SPENT.values(), ids=SPENT)
def test_r32_spend(before: Budget, ended: Ended, after: Budget) -> None:
    assert budget.spend(before, ended, now=NOW, policy=POLICY) == after


def crashes(*ages: float) -> Budget:
    return Budget(tuple(Crash(i, clock.rfc3339(NOW - age)) for i, age in enumerate(ages)))


STOPS: dict[str, tuple[Budget, RestartPolicy, str]] = {
    "as many crashes as allowed": (crashes(1, 2, 3, 4, 5), POLICY, ""),
    "one more": (crashes(1, 2, 3, 4, 5, 6), POLICY, "CrashBudgetExceeded"),
    "those before the window do not count": (crashes(1, 2, 3, 4, 5, 3601), POLICY, ""),
    "no crash allowed": (crashes(1), RestartPolicy(max_crashes=0), "CrashBudgetExceeded"),
    "two without progress": (Budget((), 2, 2), POLICY, ""),
    "three without progress": (Budget((), 3, 3), POLICY, "NoProgress"),
    "nine of any cause": (Budget((), 0, 9), POLICY, ""),
    "ten of any cause": (Budget((), 0, 10), POLICY, "NoProgress"),
}


@pytest.mark.parametrize(("spent", "policy", "reason"), STOPS.values(), ids=STOPS)
def test_r32_stop(spent: Budget, policy: RestartPolicy, reason: str) -> None:
    found = budget.stop(spent, now=NOW, policy=policy, settings=SETTINGS)
    assert (found.reason if found else "") == reason


def test_r32_backoff_doubles_from_the_third_attempt_without_a_commit_up_to_five_minutes() -> None:
    waits = [budget.backoff_seconds(Budget((), 0, count), SETTINGS) for count in range(12)]
    assert waits == [0, 0, 0, 5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_b42_the_ledger_and_the_crashes_do_not_grow_without_end() -> None:
    spent, seen = Budget(), observed()
    status = seen.status
    for number in range(500):
        spent = budget.spend(spent, Ended(number, "crash", True), now=NOW, policy=POLICY)
        status = attempts.begin(replace(seen, status=status), SETTINGS, status, Ending("crash", "x" * 5000))
        status = replace(status, attempt=replace(status.attempt, state="Planned"))  # type: ignore[type-var]
    assert (len(spent.crashes), len(status.history)) == (20, 20)
    assert all(len(entry.message) <= 300 for entry in status.history)
