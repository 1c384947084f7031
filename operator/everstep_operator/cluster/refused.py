"""Pods that the API server does not admit: why, and when to try again. The rest of the job goes on at its own pace meanwhile."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

_PAUSES_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)


@dataclass(frozen=True)
class _Refusal:
    why: str
    count: int
    again_at: float  # monotonic


class RefusedPods:
    """By worker id."""

    def __init__(self) -> None:
        self._refusals: dict[int, _Refusal] = {}

    def note(self, worker_id: int, why: str) -> None:
        """Refused once more."""
        before = self._refusals.get(worker_id)
        count = before.count + 1 if before else 0
        pause = _PAUSES_SECONDS[min(count, len(_PAUSES_SECONDS) - 1)]
        self._refusals[worker_id] = _Refusal(why, count, time.monotonic() + pause)

    def forget(self, worker_id: int) -> None:
        """It was made."""
        self._refusals.pop(worker_id, None)

    def reasons(self) -> dict[int, str]:
        """Worker id -> why."""
        return {worker_id: refusal.why for worker_id, refusal in self._refusals.items()}

    def seconds_left(self, worker_id: int) -> float:
        """Until it is to be tried again, 0: now. Infinite where nothing was refused."""
        refusal = self._refusals.get(worker_id)
        return math.inf if refusal is None else max(0.0, refusal.again_at - time.monotonic())

    def is_due(self, worker_id: int) -> bool:
        """Whether it may be tried."""
        return self.seconds_left(worker_id) in (0.0, math.inf)
