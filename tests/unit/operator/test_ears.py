"""kopf that ends, for whatever reason, is begun again, and ends nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from everstep_operator.cluster import tasks
from everstep_operator.handlers import ears
from everstep_operator.handlers.ears import Ear
from unit.operator.hand_clock import HandClock
from unit.operator.small_api import run, talking_to
from unit.operator.small_sidecars import until


class Brief:
    """A kopf that ends at once."""

    runs = 0

    def __init__(self, *_: Any) -> None:
        self.ended = asyncio.Event()

    def start(self) -> None:
        Brief.runs += 1
        self.ended.set()

    def stop(self) -> None:
        pass


def test_a_kopf_that_ends_is_begun_again_ever_more_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    def hear(body: object, *, deleted: bool) -> None:
        raise AssertionError("nobody says anything")

    async def test() -> None:
        monkeypatch.setattr(ears, "KopfThread", Brief)
        clock = HandClock()
        async with talking_to(answer) as client:
            ear = Ear(client, "team", hear, identity="me", clock=clock)
            assert ear.deaf
            running = tasks.start(ear.run(), "ear")
            await until(lambda: Brief.runs >= 8)
            assert not ear.deaf
            await tasks.end(running)
        assert clock.slept[:6] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]

    run(test)
