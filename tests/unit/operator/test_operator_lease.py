"""The operator's own Lease, on an API server that is slow."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from aiohttp import web
from everstep_operator.cluster import tasks
from everstep_operator.cluster.leader import Leader, LeaseLost
from everstep_operator.settings import LeaseSettings
from unit.operator.small_api import hangs, refusal, run, talking_to

ME = LeaseSettings(True, "ns", "everstep", "me", 0.8)


class LeaseServer:
    """One Lease with its resourceVersion; `slow` writes are done, but nobody hears of it."""

    def __init__(self, holder: str = "") -> None:
        self.holder = holder
        self.version = 1
        self.slow = 0

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "PATCH":
            body = await request.json()
            if body["metadata"]["resourceVersion"] != str(self.version):
                return refusal(409, "Conflict", "the object has been modified")
            self.holder = body["spec"]["holderIdentity"]
            self.version += 1
            if self.slow:
                self.slow -= 1
                await asyncio.sleep(2)
        return web.json_response(self._lease())

    def _lease(self) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": str(self.version)}, "spec": {"holderIdentity": self.holder}}


def test_a_standby_goes_on_waiting_when_the_api_server_is_slow() -> None:
    async def test() -> None:
        server = LeaseServer()
        server.slow = 1
        async with talking_to(server.answer) as client:
            leader = Leader(client, ME)
            await leader.acquire()
            assert leader.is_leader

    run(test)


def test_a_renewal_that_was_done_although_nobody_heard_of_it_keeps_the_lease() -> None:
    async def test() -> None:
        server = LeaseServer()
        async with talking_to(server.answer) as client:
            leader = Leader(client, LeaseSettings(True, "ns", "everstep", "me", 4.0))
            await leader.acquire()
            server.version += 1  # as after a write whose answer was lost
            keeping = tasks.start(leader.keep(), "keep")
            before = server.version
            while server.version == before:
                assert not keeping.done()
                await asyncio.sleep(0.02)
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping

    run(test)


def test_a_lease_that_another_took_is_lost() -> None:
    async def test() -> None:
        server = LeaseServer()
        async with talking_to(server.answer) as client:
            leader = Leader(client, ME)
            await leader.acquire()
            server.holder, server.version = "other", server.version + 1
            with pytest.raises(LeaseLost):
                await leader.keep()

    run(test)


REFUSED = {
    "no right": (403, "Forbidden", "leases is forbidden"),
    "busy": (429, "TooManyRequests", "too many requests"),
    "down": (503, "ServiceUnavailable", "etcd is away"),
}


@pytest.mark.parametrize("how", ["slow", *REFUSED])
def test_a_lease_that_nobody_can_have_is_not_lost_until_another_has_it(how: str) -> None:
    """CL3: an operator that ended itself would leave every job alone for nothing."""

    async def test() -> None:
        server = LeaseServer()
        failed = asyncio.Event()
        is_ill = True

        async def answer(request: web.Request) -> web.StreamResponse:
            if not is_ill or request.method == "GET":
                return await server.answer(request)
            counts.append(request.method)
            if len(counts) > 5:
                failed.set()
            if how == "slow":
                return await hangs(request)
            return refusal(*REFUSED[how])

        counts: list[str] = []
        async with talking_to(server.answer) as first:
            leader = Leader(first, ME)
            await leader.acquire()
        async with talking_to(answer) as client:
            leader._client = client
            keeping = tasks.start(leader.keep(), "keep")
            await failed.wait()
            assert not keeping.done()
            is_ill, server.holder, server.version = False, "other", server.version + 1
            with pytest.raises(LeaseLost):
                await keeping

    run(test)


def test_a_lease_that_was_deleted_is_made_anew() -> None:
    async def test() -> None:
        server = LeaseServer()
        made = asyncio.Event()

        async def answer(request: web.Request) -> web.StreamResponse:
            if request.method == "POST":
                server.version = 100
                made.set()
                return web.json_response(server._lease())
            if request.method == "PATCH" and not made.is_set():
                return refusal(404, "NotFound", "gone")
            return await server.answer(request)

        async with talking_to(answer) as client:
            leader = Leader(client, ME)
            leader._version = "1"
            keeping = tasks.start(leader.keep(), "keep")
            await made.wait()
            while server.version == 100:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping

    run(test)
