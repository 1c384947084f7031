"""Which actors there are. Every job has one; a job that vanished without an event loses its own at the next LIST."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from everstep_operator.cluster import tasks
from everstep_operator.cluster.client import ApiError, Unavailable
from everstep_operator.cluster.room import Cluster, jobs_path
from everstep_operator.handlers.actor import Actor, Decide

Raw = dict[str, Any]

_log = logging.getLogger(__name__)

_LIST_SECONDS = 60.0


class Actors:
    """By UID, so that a job made anew under the same name is another."""

    def __init__(self, cluster: Cluster, decide: Decide, synced: Callable[[str], bool]) -> None:
        self._cluster = cluster
        self._decide = decide
        self._synced = synced
        self._actors: dict[str, tuple[Actor, asyncio.Task[None]]] = {}
        self._waiting: dict[str, Raw] = {}  # heard before all caches were filled

    def phases(self) -> Iterable[str]:
        """Phase of each job, for metrics."""
        return [actor.phase for actor, _ in self._actors.values()]

    def hear(self, body: Raw, *, deleted: bool) -> None:
        """A job was seen, or was seen to go."""
        uid = body["metadata"]["uid"]
        if deleted:
            self._waiting.pop(uid, None)
            self._end(uid)
        elif uid in self._actors:
            self._actors[uid][0].hear(body)
        elif self._synced(body["metadata"]["namespace"]):
            self._start(uid, body)
        else:
            self._waiting[uid] = body

    def open(self) -> None:
        """Caches were filled: nobody decides before that."""
        ready = {uid: body for uid, body in self._waiting.items() if self._synced(body["metadata"]["namespace"])}
        for uid, body in ready.items():
            del self._waiting[uid]
            self._start(uid, body)

    async def run(self) -> None:
        """Every minute a LIST that repairs what events did not tell."""
        while True:
            await asyncio.sleep(_LIST_SECONDS)
            await self._compare()

    async def close(self) -> None:
        """End all."""
        await tasks.end(*(task for _, task in self._actors.values()))
        self._actors.clear()

    async def _compare(self) -> None:
        before = set(self._actors)
        there: set[str] = set()
        for namespace in self._cluster.settings.namespaces or ("",):
            try:
                there |= await self._list(namespace)
            except (ApiError, Unavailable) as error:
                _log.warning("jobs%s are not listed: %s", f" in {namespace}" if namespace else "", error)
                there |= {uid for uid in before if not namespace or self._actors[uid][0].room.namespace == namespace}
        for uid in before - there:
            self._end(uid)

    async def _list(self, namespace: str) -> set[str]:
        """UIDs of the jobs in a namespace, or in all."""
        there: set[str] = set()
        async for page in self._cluster.client.list_pages(jobs_path(namespace)):
            for body in page.get("items") or []:
                there.add(body["metadata"]["uid"])
                self.hear(body, deleted=False)
        return there

    def _start(self, uid: str, body: Raw) -> None:
        actor = Actor(self._cluster, body, self._decide)
        name = f"job {body['metadata']['namespace']}/{body['metadata']['name']}"
        task = tasks.keep_running(actor.run, name, self._cluster.clock)
        self._actors[uid] = (actor, task)
        task.add_done_callback(lambda ended: self._forget(uid, ended))

    def _end(self, uid: str) -> None:
        if uid in self._actors:
            self._actors[uid][1].cancel()

    def _forget(self, uid: str, ended: asyncio.Task[None]) -> None:
        if uid in self._actors and self._actors[uid][1] is ended:
            del self._actors[uid]
