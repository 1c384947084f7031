"""R11, R17: whether this pod sees the storage of an attempt, said within seconds whatever hangs; and what other pods say of theirs."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time

from everstep_protocol.messages import Peer, PrepareRequest, Sight, SightRequest, Trouble

from everstep_sidecar.backoff import Backoff
from everstep_sidecar.client import Client, Refused, Unanswered
from everstep_sidecar.pod import Pod
from everstep_sidecar.store import failures
from everstep_sidecar.store.sight import unseen
from everstep_sidecar.tasks import Tasks
from everstep_sidecar.troubles import Lasting, mark

ANSWER_SECONDS = 1.5  # of the two seconds that an asker waits
ASK_SECONDS = 2.0
_log = logging.getLogger(__name__)


class Sights:
    """This pod's view. One look at a time: a storage that hangs holds one thread, however often it is asked about."""

    def __init__(self, pod: Pod, tasks: Tasks) -> None:
        self._pod = pod
        self._tasks = tasks
        self._at_work: asyncio.Task[tuple[str, str] | None] | None = None
        self._lasting = Lasting()

    async def handle(self, sender: str, request: SightRequest) -> Sight:
        """R11: the answer to whoever plans with this pod."""
        trouble = await self._look(request)
        return Sight(self._pod.uid, trouble, self._pod.link.connected, self._pod.highest)

    async def look(self, attempt: int) -> Trouble | None:
        """What keeps this pod from seeing the storage of that attempt, None: nothing. Looks again for a while before it says so."""
        return await self._look(SightRequest(attempt, ""))

    async def _look(self, request: SightRequest) -> Trouble | None:
        until = time.monotonic() + ANSWER_SECONDS
        backoff = Backoff()
        while (found := await self._look_once(request, until)) is not None:
            self._lasting.note(*found)
            pause = backoff.take()
            if time.monotonic() + pause >= until:
                return self._lasting.trouble()
            await asyncio.sleep(pause)
        self._lasting.clear()
        return None

    async def _look_once(self, request: SightRequest, until: float) -> tuple[str, str] | None:
        while self._at_work is not None and not self._at_work.done():
            if not await _done_by(self._at_work, until):
                return self._hangs()
        work = self._at_work = self._tasks.spawn(self._judge(request))
        return work.result() if await _done_by(work, until) else self._hangs()

    async def _judge(self, request: SightRequest) -> tuple[str, str] | None:
        """Reason and message of what is wrong."""
        settings = self._pod.settings
        try:
            found = await self._pod.storage(unseen, settings.owner, **dataclasses.asdict(request))
        except OSError as error:
            return "StorageError", f"{settings.place}: {failures.explain(error, settings.job_storage)}"
        return None if found is None else ("StorageNotShared", not_shared(settings.place, found))

    def _hangs(self) -> tuple[str, str]:
        settings = self._pod.settings
        message = (
            f"{settings.place}: the storage does not answer ({settings.job_storage} cannot be looked at): "
            "look at the volume, at its server, and at the network between that node and it"
        )
        return "StorageHangs", message


class Arrival:
    """R11, R17: a member's own look before its hello. `trouble`: what its mount does not show yet."""

    def __init__(self, sights: Sights, attempt: int) -> None:
        self._sights = sights
        self._attempt = attempt
        self.trouble: Trouble | None = None

    async def run(self) -> None:
        """Until this mount shows the storage that was fenced for the attempt."""
        backoff = Backoff()
        while (trouble := await self._sights.look(self._attempt)) is not None:
            if mark(trouble) != mark(self.trouble):
                _log.warning("no hello yet: %s", trouble.message)
            self.trouble = trouble
            await backoff.pause()
        self.trouble = None


def not_shared(place: str, what: str) -> str:
    """The sentence of StorageNotShared."""
    return (
        f"{place} does not see this job's storage ({what}): every worker must mount the same volume, with access mode "
        "ReadWriteMany, and the node must have it mounted"
    )


async def ask_all(
    client: Client, own: Sights, own_uid: str, request: PrepareRequest, raised_by: str
) -> tuple[Sight, ...]:
    """R11: what those expected say within two seconds of the fence that this pod raised for it; who does not answer is not in it."""
    question = SightRequest(request.attempt, request.intent_id, raised_by)
    addresses = {peer.uid: peer for peer in request.peers}

    async def ask(uid: str) -> Sight | None:
        if uid == own_uid:
            return await own.handle(uid, question)
        return await _ask(client, addresses[uid], question) if uid in addresses else None

    answers = await asyncio.gather(*(ask(uid) for uid in request.expected))
    return tuple(answer for answer in answers if answer is not None)


async def _ask(client: Client, peer: Peer, question: SightRequest) -> Sight | None:
    try:
        return await client.post(peer, "/v1/sight", question, Sight, seconds=ASK_SECONDS)
    except (Unanswered, Refused):
        return None


async def _done_by(task: asyncio.Task[tuple[str, str] | None], until: float) -> bool:
    await asyncio.wait({task}, timeout=max(0.0, until - time.monotonic()))
    return task.done()
