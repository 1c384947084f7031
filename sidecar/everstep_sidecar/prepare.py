"""R4: prepare. Fence and look in a thread, and meanwhile tell all pods of the job that the attempt exists."""

from __future__ import annotations

import asyncio
import logging

from everstep_protocol.messages import Ack, Announce, Peer, PrepareAnswer, PrepareRequest
from everstep_protocol.plan import Resume

from everstep_sidecar.agent import Agent
from everstep_sidecar.client import Refused, Unanswered
from everstep_sidecar.pod import Pod
from everstep_sidecar.store import prepare as preparation

ANNOUNCE_TRIES = 5
ANNOUNCE_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Prepare:
    """Answers PrepareRequests. The same number and intent asked again while one is at work joins it."""

    def __init__(self, pod: Pod, agent: Agent) -> None:
        self._pod = pod
        self._agent = agent
        self._at_work: dict[tuple[int, str], asyncio.Task[PrepareAnswer]] = {}

    async def handle(self, sender: str, request: PrepareRequest) -> PrepareAnswer:
        """R4: idempotent; refused where a higher attempt is known."""
        key = (request.attempt, request.intent_id)
        if key not in self._at_work:
            task = asyncio.create_task(self._prepare(request))
            self._at_work[key] = task
            task.add_done_callback(lambda _: self._at_work.pop(key, None))
        return await asyncio.shield(self._at_work[key])

    async def _prepare(self, request: PrepareRequest) -> PrepareAnswer:
        if request.attempt < self._pod.highest:
            return _outrun(request, self._pod.highest)
        for peer in request.peers:
            if peer.uid != self._pod.uid:
                self._agent.spawn(self._announce(peer, request.attempt))
        await self._agent.see(request.attempt)
        settings = self._pod.settings
        answer = await self._pod.storage(
            preparation.prepare, request, owner=settings.owner, pod_uid=settings.pod_uid, mount=settings.storage
        )
        self._agent.heard(answer.highest)
        _log.info("prepared attempt %d: %s (%s) %s", request.attempt, answer.outcome, answer.reason, answer.message)
        return answer

    async def _announce(self, peer: Peer, attempt: int) -> None:
        """R4: peers stop older trainers now; who does not hear it is told by its plan, or by the next ping (R23)."""
        for _ in range(ANNOUNCE_TRIES):
            if self._pod.highest > attempt:
                return
            try:
                await self._pod.client.post(peer, "/v1/announce", Announce(attempt), Ack, seconds=ANNOUNCE_SECONDS)
            except (Unanswered, Refused):
                await asyncio.sleep(ANNOUNCE_SECONDS / 2)
            else:
                return
        _log.info("pod %s at %s did not hear that attempt %d exists", peer.uid, peer.ip, attempt)


def _outrun(request: PrepareRequest, highest: int) -> PrepareAnswer:
    message = f"this pod knows attempt {highest}; take a higher number"
    return PrepareAnswer(
        request.attempt,
        request.intent_id,
        "fenced",
        "HigherAttempt",
        message,
        highest,
        Resume("none"),
        request.lineage,
    )
