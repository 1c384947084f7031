"""R17: this member's share of the checkpoint that is about to be loaded is verified before its hello, and meanwhile it says so (R28)."""

from __future__ import annotations

import logging
import time

from everstep_protocol.messages import Trouble
from everstep_protocol.plan import Member, Plan

from everstep_sidecar.backoff import Backoff
from everstep_sidecar.pod import Pod
from everstep_sidecar.sight import not_shared
from everstep_sidecar.store import failures, verify
from everstep_sidecar.store.steps import Steps
from everstep_sidecar.troubles import Lasting

STALLED_SECONDS = (
    10.0  # R28: for so long nothing gets on, or something is in the way: others may train without this member
)
_log = logging.getLogger(__name__)


class Verification:
    """One member's part in one attempt. Bad is what was read and is different; what is not seen, or cannot be read, is told as trouble."""

    def __init__(self, pod: Pod, plan: Plan, member: Member) -> None:
        self._pod = pod
        self._plan = plan
        self._index = plan.members.index(member)
        self._steps: Steps | None = None
        self._lasting = Lasting()

    @property
    def is_advancing(self) -> bool:
        """R28: whether it is under way and gets on: a member that only needs its time is not left out."""
        trouble = self.trouble
        stalled_seconds = max(self._steps.age_seconds if self._steps else 0.0, trouble.age_seconds if trouble else 0.0)
        return self._steps is not None and stalled_seconds < STALLED_SECONDS

    @property
    def trouble(self) -> Trouble | None:
        """What keeps it from its end at present."""
        return self._lasting.trouble()

    async def run(self) -> tuple[str, ...]:
        """R17: the ids to report as bad. What is not seen or fails is looked for again, for as long as the attempt lasts."""
        began = time.monotonic()
        backoff = Backoff()
        try:
            while (share := await self._look()) is None:
                self._pod.changes.stir()
                await backoff.pause()
        finally:
            self._steps = None
        self._lasting.clear()
        if share.is_bad:
            _log.error("checkpoint %s is bad: %s", self._plan.resume.dir, share)
            return (self._plan.resume.id,)
        self._pod.metrics.stage("verify", time.monotonic() - began)
        return ()

    async def _look(self) -> verify.Share | None:
        """None: not all of it was seen, `trouble` says what."""
        settings = self._pod.settings
        steps = self._steps = Steps()
        try:
            share = await self._pod.calls.call(
                verify.verify_share, self._plan.resume, index=self._index, count=len(self._plan.members), steps=steps
            )
        except OSError as error:
            self._note("StorageError", f"{settings.place}: {failures.explain(error, settings.job_storage)}")
            return None
        if share.is_bad or share.ok:
            return share
        what = f"{settings.job_storage / self._plan.resume.dir / share.missing[0]} is not there"
        self._note("StorageNotShared", not_shared(settings.place, what))
        return None

    def _note(self, reason: str, message: str) -> None:
        if self._lasting.trouble() is None:
            _log.warning("%s is looked for again: %s", self._plan.resume.dir, message)
        self._lasting.note(reason, message)
