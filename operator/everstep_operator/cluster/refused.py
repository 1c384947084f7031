"""API actions that do not succeed: which, why, how often in a row. They are tried again by and by (`tries`) and slow nothing else down."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from everstep_operator.cluster.backoff import Clock
from everstep_operator.cluster.stable import stable_text
from everstep_operator.cluster.tries import Key
from everstep_operator.core.model import RefusedAction

CREATE_POD = "create pod"  # first part of the key of a CreatePod; the worker id comes next

_TOLD_COUNT = 3
_TOLD_SECONDS = 3.0  # preconditions that fail are tried again at once: three of those are no news


@dataclass(frozen=True)
class _Refusal:
    what: str
    why: str
    count: int
    since: float


class Refusals:
    """By the key of the action."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refusals: dict[Key, _Refusal] = {}

    def __len__(self) -> int:
        return len(self._refusals)

    def note(self, key: Key, what: str, why: str) -> str:
        """Refused once more. Returns why, in the words of the first time if only numbers have changed."""
        known = self._refusals.get(key)
        if known is None:
            known = _Refusal(what, why, 0, self._clock.now())
        self._refusals[key] = replace(known, why=stable_text(known.why, why), count=known.count + 1)
        return self._refusals[key].why

    def forget(self, key: Key) -> None:
        """It was done."""
        self._refusals.pop(key, None)

    def keep(self, wished: Collection[Key]) -> None:
        """Forget what is not wished any more."""
        self._refusals = {key: refusal for key, refusal in self._refusals.items() if key in wished}

    def pods(self) -> dict[int, str]:
        """Worker id -> why its pod is not made."""
        return {
            key[1]: refusal.why
            for key, refusal in self._refusals.items()
            if key[0] == CREATE_POD and isinstance(key[1], int)
        }

    def told(self) -> tuple[RefusedAction, ...]:
        """Those that a person has to know of, the oldest first."""
        now = self._clock.now()
        found = [
            RefusedAction(refusal.what, refusal.why, refusal.count, now - refusal.since)
            for refusal in self._refusals.values()
            if refusal.count >= _TOLD_COUNT and now - refusal.since >= _TOLD_SECONDS
        ]
        return tuple(sorted(found, key=lambda action: -action.age_seconds))
