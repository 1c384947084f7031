"""R4: prepare. A task that is asked about: fence and look, and meanwhile tell all pods of the job that the attempt exists."""

from __future__ import annotations

import asyncio
import dataclasses
import logging

from everstep_protocol.messages import Ack, Announce, Peer, PrepareAnswer, PrepareRequest, Sight
from everstep_protocol.plan import Resume

from everstep_sidecar.agent import Agent
from everstep_sidecar.backoff import Backoff
from everstep_sidecar.client import Refused, Unanswered
from everstep_sidecar.pod import Pod
from everstep_sidecar.sight import ask_all
from everstep_sidecar.store import prepare as preparation
from everstep_sidecar.store.steps import Steps

HELD_SECONDS = 5.0  # then it is `busy`, and asked about again
ANNOUNCE_TRIES = 5
ANNOUNCE_SECONDS = 1.0
KEPT = ("ready", "fenced")  # what stays true; the rest is looked at anew when it is asked again
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class Work:
    """One number and intent. `steps`: how far the storage has got with it."""

    request: PrepareRequest
    steps: Steps
    task: asyncio.Task[PrepareAnswer]


class Prepare:
    """Answers PrepareRequests. Each number and intent is a task of its own, so that none waits for another that never ends."""

    def __init__(self, pod: Pod, agent: Agent) -> None:
        self._pod = pod
        self._agent = agent
        self._works: dict[tuple[int, str], Work] = {}

    async def handle(self, sender: str, request: PrepareRequest) -> PrepareAnswer:
        """R4: idempotent; refused where a higher attempt is known. Held a while, then `busy`."""
        if request.attempt < self._pod.highest:
            return _outrun(request, self._pod.highest)
        self._forget_older(request.attempt)
        key = (request.attempt, request.intent_id)
        work = self._works.get(key)
        is_kept = work is not None and work.task.done()
        if work is None or _question(work.request) != _question(request):
            work = self._works[key] = self._begin(request)
        await asyncio.wait({work.task}, timeout=HELD_SECONDS)
        if not work.task.done():
            return _busy(request, self._pod.highest, work.steps.age_seconds)
        answer = work.task.result()
        if answer.outcome not in KEPT and self._works.get(key) is work:
            del self._works[key]
        if is_kept and answer.outcome == "ready":  # those who are expected may see more by now
            return dataclasses.replace(answer, sights=await self._ask_sights(request, answer.raised_by))
        return answer

    def _begin(self, request: PrepareRequest) -> Work:
        steps = Steps()
        return Work(request, steps, self._agent.spawn(self._prepare(request, steps)))

    def _forget_older(self, attempt: int) -> None:
        """Their tasks may hang for ever; nobody may be told of them any more."""
        self._works = {key: work for key, work in self._works.items() if key[0] >= attempt}

    async def _prepare(self, request: PrepareRequest, steps: Steps) -> PrepareAnswer:
        for peer in request.peers:
            if peer.uid != self._pod.uid:
                self._agent.spawn(self._announce(peer, request.attempt))
        try:
            await self._agent.see(request.attempt)
        except OSError as error:
            message = f"{self._pod.settings.place} cannot write to its own disk ({error}): free some room on that node"
            return dataclasses.replace(_blank(request), outcome="wait", reason="ScratchError", message=message)
        fenced: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        sights = self._agent.spawn(self._gather(request, fenced))
        try:
            answer = await self._look(request, steps, fenced)
            seen = await sights if fenced.done() else ()
        finally:
            sights.cancel()
        self._agent.heard(answer.highest)
        _log.info("prepared attempt %d: %s (%s) %s", request.attempt, answer.outcome, answer.reason, answer.message)
        return dataclasses.replace(answer, sights=seen)

    async def _look(self, request: PrepareRequest, steps: Steps, fenced: asyncio.Future[str]) -> PrepareAnswer:
        settings, loop = self._pod.settings, asyncio.get_running_loop()
        return await self._pod.calls.call(
            preparation.prepare,
            request,
            owner=settings.owner,
            pod_uid=settings.pod_uid,
            mount=settings.storage,
            on_fenced=lambda raised_by: loop.call_soon_threadsafe(_settle, fenced, raised_by),
            steps=steps,
        )

    async def _gather(self, request: PrepareRequest, fenced: asyncio.Future[str]) -> tuple[Sight, ...]:
        """While it lists: nobody can see a fence that does not stand yet."""
        return await self._ask_sights(request, await fenced)

    async def _ask_sights(self, request: PrepareRequest, raised_by: str) -> tuple[Sight, ...]:
        return await ask_all(self._pod.client, self._agent.sights, self._pod.uid, request, raised_by)

    async def _announce(self, peer: Peer, attempt: int) -> None:
        """R4: peers stop older trainers now; who does not hear it is told by its plan, or by the next ping (R23)."""
        backoff = Backoff(ANNOUNCE_SECONDS / 2)
        for _ in range(ANNOUNCE_TRIES):
            if self._pod.highest > attempt:
                return
            try:
                await self._pod.client.post(peer, "/v1/announce", Announce(attempt), Ack, seconds=ANNOUNCE_SECONDS)
            except (Unanswered, Refused):
                await backoff.pause()
            else:
                return
        _log.info("pod %s at %s did not hear that attempt %d exists", peer.uid, peer.ip, attempt)


def _settle(fenced: asyncio.Future[str], raised_by: str) -> None:
    """Once: nobody waits for it any more where the task was ended meanwhile."""
    if not fenced.done():
        fenced.set_result(raised_by)


def _question(request: PrepareRequest) -> PrepareRequest:
    """What the answer depends on: who may hear of it and who is expected changes while the question stays."""
    return dataclasses.replace(request, peers=(), expected=())


def _outrun(request: PrepareRequest, highest: int) -> PrepareAnswer:
    message = f"this pod knows attempt {highest}; take a higher number"
    blank = _blank(request)
    return dataclasses.replace(blank, outcome="fenced", reason="HigherAttempt", message=message, highest=highest)


def _busy(request: PrepareRequest, highest: int, age_seconds: float) -> PrepareAnswer:
    message = "the storage is being looked at; the same question again gives the answer"
    return dataclasses.replace(
        _blank(request), reason="Preparing", message=message, highest=highest, progress_age_seconds=age_seconds
    )


def _blank(request: PrepareRequest) -> PrepareAnswer:
    return PrepareAnswer(request.attempt, request.intent_id, "busy", "", "", 0, Resume("none"), request.lineage)
