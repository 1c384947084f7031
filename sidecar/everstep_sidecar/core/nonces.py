"""R22: an authenticated request counts once, whenever it is said again."""

from __future__ import annotations

import secrets
from typing import Literal

LARGEST = 50_000  # nonces held, some 150 bytes each


class NonceWindow:
    """All nonces that were heard under the present boot id: none is ever forgotten while the id counts.

    When they are too many, a new id begins with none; senders are told it as after a restart. Only nonces of requests with a good
    signature for this pod get here, so strangers cannot fill it.
    """

    def __init__(self, largest: int = LARGEST) -> None:
        self._largest = largest
        self._seen: set[str] = set()
        self.boot = secrets.token_hex(16)

    def admit(self, boot: str, nonce: str) -> Literal["new", "seen", "other boot"]:
        """What to think of a request. `new`: it counts, this once."""
        if boot != self.boot:
            return "other boot"
        if nonce in self._seen:
            return "seen"
        self._seen.add(nonce)
        if len(self._seen) >= self._largest:
            self._seen.clear()
            self.boot = secrets.token_hex(16)
        return "new"
