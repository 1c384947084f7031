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
from unit.operator.small_api import refusal, run, talking_to

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


def test_a_lease_that_cannot_be_renewed_in_time_is_lost() -> None:
    async def test() -> None:
        server = LeaseServer()
        async with talking_to(server.answer) as client:
            leader = Leader(client, ME)
            await leader.acquire()
            server.slow = 100
            with pytest.raises(LeaseLost, match="not renewed for"):
                await leader.keep()

    run(test)
