"""A trouble that is looked at again and again: it keeps the time at which it began as long as it stays the same one."""

from __future__ import annotations

import time

from everstep_protocol.messages import Trouble


class Lasting:
    """At most one trouble. Its age counts from when its reason first held, however often its sentence changes."""

    def __init__(self) -> None:
        self._reason = ""
        self._message = ""
        self._since = 0.0

    def note(self, reason: str, message: str) -> None:
        """It holds now."""
        if reason != self._reason:
            self._since = time.monotonic()
        self._reason, self._message = reason, message

    def clear(self) -> None:
        """It is over."""
        self._reason = ""

    def trouble(self) -> Trouble | None:
        """As it is told; None: there is none."""
        return Trouble(self._reason, self._message, time.monotonic() - self._since) if self._reason else None


def mark(trouble: Trouble | None) -> object:
    """What makes a change: all but the age."""
    return trouble and (trouble.reason, trouble.message)
