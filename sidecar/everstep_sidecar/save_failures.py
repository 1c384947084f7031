"""R16: which parts of the attempt's saves fail at present, each told in its first words until it is well again."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace

from everstep_protocol.messages import Trouble
from everstep_protocol.plan import Plan

from everstep_sidecar.pod import Pod

_OWN = "coordinator"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failing:
    """Failures in a row of one member's part, or of the commit itself."""

    reason: str
    message: str
    since: float  # monotonic seconds


class SaveFailures:
    """At most one a member, and one of the coordinator's own work."""

    def __init__(self, pod: Pod, plan: Plan) -> None:
        self._pod = pod
        self._plan = plan
        self._failing: dict[str, Failing] = {}

    def oldest(self) -> Trouble | None:
        """What has failed for longest; None: nothing fails."""
        oldest = min(self._failing.values(), key=lambda failing: failing.since, default=None)
        if oldest is None:
            return None
        return Trouble(oldest.reason, oldest.message, time.monotonic() - oldest.since)

    def note(self, uid: str, reason: str, message: str, *, is_own: bool = False) -> None:
        """A try has failed. `is_own`: not the pod's part of a save, but what it does as coordinator."""
        who = _OWN if is_own else uid
        known = self._failing.get(who)
        if is_own:
            self._pod.metrics.failed(reason)
        if known is not None and known.reason == reason:
            return
        failing = Failing(reason, message, time.monotonic())
        self._failing[who] = failing if known is None else replace(failing, since=known.since)
        _log.warning("saves fail: %s", message)
        self._pod.changes.bump()

    def forget(self, uid: str) -> None:
        """A member's part is on storage."""
        self._forget(uid)

    def forget_own(self) -> None:
        """A save was committed."""
        self._forget(_OWN)

    def _forget(self, who: str) -> None:
        if self._failing.pop(who, None) is not None:
            self._pod.changes.bump()
