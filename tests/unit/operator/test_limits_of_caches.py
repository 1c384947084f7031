"""Limits of what the operator believes: a watch that is silent is begun again, and what was seen once is looked at again."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from aiohttp import web
from everstep_operator.cluster import book, reflect, tasks
from everstep_operator.cluster.backoff import Clock
from everstep_operator.cluster.leases import Beats
from everstep_operator.cluster.records import trim_node
from everstep_operator.cluster.reflect import Reflector
from unit.operator.hand_clock import HandClock
from unit.operator.small_api import hangs, refusal, run, talking_to
from unit.operator.small_sidecars import (
    FastClock,
    until,
)


class Watched:
    """An API server with one kind of object; `watch` answers watches."""

    def __init__(self, watch: Any, items: Sequence[Any] = ()) -> None:
        self._watch = watch
        self._items = list(items)
        self.lists = 0
        self.watches: list[web.Request] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            self.watches.append(request)
            return await self._watch(request)  # type: ignore[no-any-return]
        self.lists += 1
        return web.json_response({"metadata": {"resourceVersion": "5"}, "items": self._items})


async def ends(request: web.Request) -> web.StreamResponse:
    return web.Response()


@contextlib.asynccontextmanager
async def reflecting(api: Watched, clock: Clock, **options: Any) -> AsyncIterator[Reflector[Any]]:
    async with talking_to(api) as made:
        reflector = Reflector(made, "/api/v1/nodes", trim_node, lambda before, after: None, clock=clock, **options)
        task = tasks.start(reflector.run(), "reflector")
        try:
            yield reflector
        finally:
            await tasks.end(task)


def test_b38_a_watch_that_is_silent_is_begun_again_and_the_server_is_told_when_to_end_it() -> None:
    async def test() -> None:
        api = Watched(hangs)
        async with reflecting(api, FastClock(), inactivity_seconds=0.1):
            await until(lambda: len(api.watches) >= 3)
        assert {int(request.query["timeoutSeconds"]) for request in api.watches} == {300}

    run(test)


def test_a_watch_that_ends_at_once_is_begun_ever_more_slowly() -> None:
    async def test() -> None:
        api, clock = Watched(ends), HandClock()
        async with reflecting(api, clock):
            await until(lambda: len(clock.slept) >= 6)
        assert all(
            0.75 * least <= slept <= 1.25 * least
            for slept, least in zip(clock.slept, (0.2, 0.4, 0.8, 1.6, 2, 2), strict=False)
        )

    run(test)


def test_cl3_a_busy_api_server_is_asked_when_it_said_and_nothing_is_listed_anew() -> None:
    async def busy(request: web.Request) -> web.StreamResponse:
        answer = refusal(429, "TooManyRequests", "too many requests")
        answer.headers["Retry-After"] = "7"
        return answer

    async def test() -> None:
        api, clock = Watched(busy), HandClock()
        async with reflecting(api, clock):
            await until(lambda: len(clock.slept) >= 4)
        assert all(7.0 <= slept <= 10.0 for slept in clock.slept)
        assert api.lists == 1

    run(test)


def test_a_watch_that_lived_for_a_while_is_begun_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflect, "_WHOLE_SECONDS", 0.0)

    async def test() -> None:
        api, clock = Watched(ends), HandClock()
        async with reflecting(api, clock):
            await until(lambda: len(api.watches) >= 4)
        assert clock.slept == []

    run(test)


def test_r25_a_lease_without_a_duration_has_the_usual_one() -> None:
    beats = Beats(lambda node: None, lambda node: None)
    lease = {"metadata": {"name": "n1"}, "spec": {"renewTime": "a"}}
    assert [beats.take([lease], float(now)) for now in range(0, 24, 4)] == [[], [], [], [], [], ["n1"]]


def test_nodes_are_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "_VIEWS_SECONDS", 0.0)
    beats = Beats(lambda node: None, lambda node: None)
    nodes = book.NodeBook(beats, lambda node: None)
    nodes.take(None, trim_node({"metadata": {"uid": "x", "name": "n1"}}, None, time.monotonic()))
    before = nodes.views()["n1"].lease_duration_seconds
    beats.take([{"metadata": {"name": "n1"}, "spec": {"renewTime": "a", "leaseDurationSeconds": 7}}], time.monotonic())
    assert (before, nodes.views()["n1"].lease_duration_seconds) == (40.0, 7.0)


def test_an_object_that_cannot_be_read_keeps_no_other_from_being_seen(caplog: pytest.LogCaptureFixture) -> None:
    """Listed or watched: what it was before counts, and the log names it."""

    def node(name: str, **status: Any) -> dict[str, Any]:
        return {"metadata": {"name": name, "uid": name, "resourceVersion": "6"}, "status": status}

    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    events = [("ADDED", node("odd", conditions="soon")), ("MODIFIED", node("n1", conditions=7)), ("ADDED", node("n3"))]

    async def watch(request: web.Request) -> web.StreamResponse:
        lines = "".join(json.dumps({"type": kind, "object": found}) + "\n" for kind, found in events)
        return web.Response(text=lines)

    async def test() -> None:
        api = Watched(watch, [node("n1", **ready), node("n2", conditions=[7])])
        async with reflecting(api, FastClock()) as reflector:
            await until(lambda: "n3" in reflector.items)
            assert set(reflector.items) == {"n1", "n3"}
            assert reflector.items["n1"].ready

    run(test)
    assert {name for name in ("n1", "n2", "odd") if f"object {name} cannot be read" in caplog.text} == {
        "n1",
        "n2",
        "odd",
    }
