"""R25, C: what the caches do not show is asked for by itself. Only a GET says that a node or a pod is gone; a cache may be behind."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from everstep_operator.cluster.client import ApiError, Client, NotFound, Unavailable
from everstep_operator.cluster.tries import Failed, Tries

_FIRST_SECONDS = 2.0


class Absences:
    """Of one job. `look` is told in each pass what is missing; answers come later and wake the actor."""

    def __init__(self, client: Client, namespace: str, tries: Tries) -> None:
        self._client = client
        self._namespace = namespace
        self._tries = tries
        self.nodes: frozenset[str] = frozenset()  # names of those that are gone
        self.pods: frozenset[str] = frozenset()  # UIDs

    def look(self, nodes: Iterable[str], pods: Iterable[tuple[str, str]]) -> None:
        """Names of nodes and (UID, name) of pods that the caches do not show. What is not among them is not gone (any more)."""
        nodes, pods = set(nodes), set(pods)
        self.nodes &= nodes
        self.pods &= {uid for uid, _ in pods}
        for node in nodes - self.nodes:
            self._tries.start(("see node", node), partial(self._see_node, node))
        for uid, name in pods:
            if uid not in self.pods:
                self._tries.start(("see pod", uid), partial(self._see_pod, uid, name))

    async def _see_node(self, name: str) -> None:
        if await self._read(f"/api/v1/nodes/{name}") is None:
            self.nodes |= {name}
            return
        raise _not_gone(name)

    async def _see_pod(self, uid: str, name: str) -> None:
        found = await self._read(f"/api/v1/namespaces/{self._namespace}/pods/{name}")
        if found != uid:
            self.pods |= {uid}
            return
        raise _not_gone(name)

    async def _read(self, path: str) -> str | None:
        """The UID of what is there, None: nothing. Raises Failed: nobody knows."""
        try:
            return str((await self._client.request("GET", path))["metadata"]["uid"])
        except NotFound:
            return None
        except (ApiError, Unavailable) as error:
            raise Failed(str(error), first=_FIRST_SECONDS) from error


def _not_gone(name: str) -> Failed:
    return Failed(f"{name} is there: the caches will show it", first=_FIRST_SECONDS)
