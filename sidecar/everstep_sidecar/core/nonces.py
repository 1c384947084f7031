"""R22: an authenticated request counts once."""

from __future__ import annotations

from collections import OrderedDict

WINDOW_SECONDS = 600.0
LARGEST = 200_000  # nonces held; the oldest go first


class NonceWindow:
    """The nonces of the last ten minutes. Only those of requests with a good signature get here, so strangers cannot fill it."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, float] = OrderedDict()

    def admit(self, nonce: str, now: float) -> bool:
        """Whether it is new; `now` in seconds of a monotonic clock."""
        while self._seen and (next(iter(self._seen.values())) < now - WINDOW_SECONDS or len(self._seen) >= LARGEST):
            self._seen.popitem(last=False)
        if nonce in self._seen:
            return False
        self._seen[nonce] = now
        return True
