"""The cache against a real API server: disappearances, lost history, restarts, silence (B38)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kube
import pytest
from conftest import Space, opened, until
from everstep_operator.cluster import tasks
from everstep_operator.cluster.client import Client, Unavailable
from everstep_operator.cluster.leader import Leader, LeaseLost
from everstep_operator.cluster.reflect import Reflector
from everstep_operator.settings import LeaseSettings


@dataclass(frozen=True)
class Kept:
    uid: str
    name: str
    value: str


def trim(raw: dict[str, Any], before: Kept | None, now: float) -> Kept:
    return Kept(raw["metadata"]["uid"], raw["metadata"]["name"], (raw.get("data") or {}).get("v", ""))


class Watched:
    """Reflects the config maps of a namespace; `heard` is each change by name."""

    def __init__(self, client: Client, namespace: str, inactivity_seconds: float = 90.0) -> None:
        self.heard: list[tuple[str, str, str]] = []
        path = f"/api/v1/namespaces/{namespace}/configmaps"
        self.reflector = Reflector(
            client, path, trim, self._take, label_selector="mine=yes", inactivity_seconds=inactivity_seconds
        )

    def names(self) -> set[str]:
        return {kept.name for kept in self.reflector.items.values()}

    def _take(self, before: Kept | None, after: Kept | None) -> None:
        name = (after or before or Kept("", "", "")).name
        self.heard.append((name, before.value if before else "-", after.value if after else "-"))


@asynccontextmanager
async def watching(server: kube.ApiServer, namespace: str, **options: float) -> AsyncIterator[Watched]:
    async with opened(server) as client:
        watched = Watched(client, namespace, **options)
        task = tasks.start(watched.reflector.run(), "reflector")
        try:
            await asyncio.wait_for(watched.reflector.synced.wait(), 30)
            yield watched
        finally:
            await tasks.end(task)


def put(space: Space, name: str, value: str) -> None:
    body = {"metadata": {"name": name, "labels": {"mine": "yes"}}, "data": {"v": value}}
    if space.server.call("POST", f"/api/v1/namespaces/{space.name}/configmaps", body)[0] == 409:
        assert space.server.call("PUT", f"/api/v1/namespaces/{space.name}/configmaps/{name}", body)[0] == 200


def remove(space: Space, name: str) -> None:
    assert space.server.call("DELETE", f"/api/v1/namespaces/{space.name}/configmaps/{name}")[0] == 200


async def off_loop(action: Callable[..., None], *args: Any) -> None:
    await asyncio.to_thread(action, *args)


def test_each_change_is_told_once(space: Space) -> None:
    async def test() -> None:
        put(space, "a", "1")
        async with watching(space.server, space.name) as watched:
            assert watched.heard == [("a", "-", "1")]
            await off_loop(put, space, "b", "1")
            await off_loop(put, space, "a", "2")
            await off_loop(remove, space, "b")
            await until(lambda: len(watched.heard) == 4)
            assert watched.heard[1:] == [("b", "-", "1"), ("a", "1", "2"), ("b", "1", "-")]

    asyncio.run(test())


@pytest.fixture
def own_server(tmp_path: Path) -> Any:
    """For faults: others must not feel them."""
    server = kube.ApiServer(tmp_path, *kube.find_programs())
    try:
        server.start()
        yield Space(server, "default")
    finally:
        server.stop()


def test_b38_what_vanished_unseen_is_told_and_restarts_and_silence_are_survived(own_server: Space) -> None:
    """One server for all faults, one after the other: each start costs seconds."""
    server = own_server.server

    async def test() -> None:
        for name in ("stays", "goes", "goes-too"):
            put(own_server, name, "1")
        async with opened(server) as client:
            watched = Watched(client, "default", inactivity_seconds=3.0)
            reflector = watched.reflector
            task = tasks.start(reflector.run(), "reflector")
            await until(lambda: watched.names() == {"stays", "goes", "goes-too"})
            # While we do not look, an object vanishes, and history with it: the answer is 410, and a list must tell.
            await tasks.end(task)
            remove(own_server, "goes")
            server.compact()
            server.restart()
            task = tasks.start(reflector.run(), "reflector")
            await until(lambda: watched.names() == {"stays", "goes-too"})
            assert ("goes", "1", "-") in watched.heard
            # It dies under the watch and comes back.
            await off_loop(server.restart)
            await off_loop(put, own_server, "new", "1")
            await until(lambda: watched.names() == {"stays", "goes-too", "new"})
            # It stops answering without closing anything.
            await off_loop(server.pause)
            await until(lambda: reflector.silent_seconds() > 3.5)
            await off_loop(server.resume)
            await off_loop(remove, own_server, "goes-too")
            await until(lambda: watched.names() == {"stays", "new"})
            assert [change for change in watched.heard if change[0] == "stays"] == [("stays", "-", "1")]
            await tasks.end(task)

    asyncio.run(test())


def test_nobody_there_is_unavailable() -> None:
    async def test() -> None:
        server = kube.ApiServer(Path(), Path(), Path())
        async with opened(server) as client:
            with pytest.raises(Unavailable):
                await client.request("GET", "/api/v1/nodes")

    asyncio.run(test())


def test_one_replica_acts_and_another_takes_over(space: Space) -> None:
    async def test() -> None:
        async with opened(space.server) as client:
            first, second = (
                Leader(client, LeaseSettings(True, space.name, "everstep", who, 1.0)) for who in ("x", "y")
            )
            await first.acquire()
            waiting = asyncio.create_task(second.acquire())
            keeping = asyncio.create_task(first.keep())
            await asyncio.sleep(1.5)
            assert (first.is_leader, second.is_leader) == (True, False), "a lease that is renewed is not taken"
            keeping.cancel()  # as killed
            await asyncio.wait_for(waiting, 30)
            with pytest.raises(LeaseLost):
                await asyncio.wait_for(first.keep(), 30)
            await second.release()
            third = Leader(client, LeaseSettings(True, space.name, "everstep", "z", 60.0))
            await asyncio.wait_for(third.acquire(), 30)

    asyncio.run(test())
