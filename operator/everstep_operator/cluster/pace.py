"""How often quiet jobs are looked after: as often as a person may wish while they are few, more seldom the more there are.

Nothing that is noticed waits for this: whatever happens in an attempt answers the poll at once, a dead host ends it after 2 to 3 s, and who
is suspected is asked and probed at another pace.
"""

from __future__ import annotations

from collections.abc import Callable

_POLL_SECONDS = 4.0
_POLLS_PER_SECOND = 40.0  # of all quiet jobs together
_LONGEST_POLL_SECONDS = 25.0  # a coordinator is told to be silent after a minute
_LOOKS_PER_SECOND = 20.0  # passes of all quiet jobs together
_WRITES_PER_SECOND = 5.0  # of status.step, of all jobs together; with each new checkpoint it is written anyway
_LONGEST_LOOK_SECONDS = 30.0


class Pace:
    """`count_jobs`: how many there are now."""

    def __init__(self, count_jobs: Callable[[], int] = lambda: 1) -> None:
        self._count_jobs = count_jobs

    def poll_seconds(self, *, is_quiet: bool) -> float:
        """How long a coordinator may hold a poll for as long as nothing happens."""
        if not is_quiet:
            return _POLL_SECONDS
        return min(_LONGEST_POLL_SECONDS, max(_POLL_SECONDS, self._count_jobs() / _POLLS_PER_SECOND))

    def look_seconds(self) -> float:
        """How long a job may go without a pass while nothing happens; 0: as short as its timers say."""
        return min(_LONGEST_LOOK_SECONDS, self._count_jobs() / _LOOKS_PER_SECOND)

    def write_seconds(self) -> float:
        """How long after a write of `status.step` the next may come; 0: as soon as the timer says."""
        return self._count_jobs() / _WRITES_PER_SECOND
