"""R17: this member's share of the checkpoint that is about to be loaded is verified before its hello, and meanwhile it says so (R28)."""

from __future__ import annotations

import logging
import time

from everstep_protocol.plan import Member, Plan

from everstep_sidecar.client import pause
from everstep_sidecar.pod import Pod
from everstep_sidecar.store import verify

MISSING_SECONDS = 60.0  # R17: a file that is not seen is looked for this long before its checkpoint counts as bad
STALLED_SECONDS = 10.0  # R28: no byte for so long: the storage hangs here, and others may train without this member
_log = logging.getLogger(__name__)


class Verification:
    """One member's part in one attempt."""

    def __init__(self, pod: Pod, plan: Plan, member: Member) -> None:
        self._pod = pod
        self._plan = plan
        self._index = plan.members.index(member)
        self._advanced_at: float | None = None

    @property
    def is_advancing(self) -> bool:
        """R28: whether it is under way and gets on: a member that only needs its time is not left out."""
        return self._advanced_at is not None and time.monotonic() - self._advanced_at < STALLED_SECONDS

    async def run(self) -> tuple[str, ...]:
        """R17: the ids to report as bad; what is not seen is looked for again, up to a minute."""
        began = time.monotonic()
        tries = 0
        self._advance()
        while True:
            share = await self._look()
            if share is not None and share.ok:
                self._advanced_at = None
                self._pod.metrics.stage("verify", time.monotonic() - began)
                return ()
            if share is not None and (share.is_bad or time.monotonic() > began + MISSING_SECONDS):
                self._advanced_at = None
                _log.error("checkpoint %s is bad: %s", self._plan.resume.dir, share)
                return (self._plan.resume.id,)
            await pause(tries, first=0.1, largest=2.0)
            tries += 1

    async def _look(self) -> verify.Share | None:
        try:
            share = await self._pod.storage(
                verify.verify_share,
                self._plan.resume,
                index=self._index,
                count=len(self._plan.members),
                on_block=self._advance,
            )
        except OSError as error:
            _log.warning("the storage failed while %s was verified: %s", self._plan.resume.dir, error)
            return None
        self._advance()
        return share

    def _advance(self) -> None:
        self._advanced_at = time.monotonic()
