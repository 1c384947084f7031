"""Who was called how often, and what the operator's edges make of what fails: each call has its own pause, growing up to 30 s."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from everstep_operator.core.model import RefusedAction

PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
TOLD_AFTER = 3  # refusals
FORGOTTEN_AFTER = 60.0  # seconds without being wished for

Target = tuple[str, str]  # kind of call, whom it is about


@dataclass
class Failing:
    """One call that fails again and again."""

    count: int
    since: float
    again_at: float
    wished_at: float


@dataclass
class Calls:
    """Counted by kind, target and second; `failing` holds what is tried again later."""

    made: dict[Target, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    failed: dict[Target, list[float]] = field(default_factory=lambda: defaultdict(list))
    failing: dict[tuple[object, ...], Failing] = field(default_factory=dict)

    def is_due(self, key: tuple[object, ...], now: float) -> bool:
        """Whether the pause after the last failure is over."""
        known = self.failing.get(key)
        if known is None:
            return True
        known.wished_at = now
        return now >= known.again_at

    def made_at(self, kind: str, target: str, now: float) -> None:
        """One call, whatever comes of it."""
        self.made[kind, target][int(now)] += 1

    def fails(self, key: tuple[object, ...], kind: str, target: str, now: float) -> None:
        """It failed: not again before its pause is over."""
        self.failed[kind, target].append(now)
        known = self.failing.get(key) or Failing(0, now, now, now)
        known.again_at = now + PAUSES[min(known.count, len(PAUSES) - 1)]
        known.count += 1
        self.failing[key] = known

    def succeeds(self, key: tuple[object, ...]) -> None:
        """It did not fail."""
        self.failing.pop(key, None)

    def next_try(self, now: float) -> float:
        """When a refused action that is still wished for may be tried again."""
        self._forget(now)
        return min((f.again_at for f in self.failing.values() if f.wished_at == now and f.again_at > now), default=1e9)

    def refused(self, now: float) -> tuple[RefusedAction, ...]:
        """What the API server refuses again and again."""
        self._forget(now)
        return tuple(
            RefusedAction(f"{key[1]} {key[2]}", 'admission webhook "policy.example" denied the request', f.count, now - f.since)
            for key, f in self.failing.items()
            if key[0] == "api" and f.count >= TOLD_AFTER
        )  # fmt: skip

    def _forget(self, now: float) -> None:
        old = [key for key, f in self.failing.items() if now - f.wished_at > FORGOTTEN_AFTER]
        for key in old:
            del self.failing[key]

    def busiest(self) -> tuple[int, Target, int]:
        """(calls, of what, in which second), the most of all."""
        return max(
            ((n, key, at) for key, seconds in self.made.items() for at, n in seconds.items()), default=(0, ("", ""), 0)
        )

    def failures_since(self, moment: float) -> dict[Target, int]:
        """How often each call failed from then on."""
        counts = {key: sum(at >= moment for at in times) for key, times in self.failed.items()}
        return {key: count for key, count in counts.items() if count}

    def pods_refused(self) -> dict[int, str]:
        """Worker id -> why its pod is not made."""
        names = [key[2] for key in self.failing if key[:2] == ("api", "create pod")]
        return {int(str(name).rpartition("-w")[2]): "the API server refuses it: policy.example" for name in names}
