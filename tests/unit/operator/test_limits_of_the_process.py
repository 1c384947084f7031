"""Limits of the operator's own parts: how often an actor looks, what a stall means, and how the process ends."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from aiohttp import web
from everstep_operator import main
from everstep_operator.cluster import tasks
from everstep_operator.cluster.backoff import Clock
from everstep_operator.cluster.client import Client
from everstep_operator.cluster.metrics import Metrics
from everstep_operator.core import model
from everstep_operator.handlers import registry
from everstep_operator.handlers.actor import Actor
from everstep_operator.settings import parse_settings
from unit.operator.hand_clock import HandClock
from unit.operator.small_api import refusal, run, talking_to
from unit.operator.small_sidecars import (
    until,
)
from unit.operator.test_actor_passes import cluster_of, job


def test_a_task_that_fails_for_ever_is_begun_ever_more_slowly() -> None:
    async def test() -> None:
        clock, begun = HandClock(), []

        async def work() -> None:
            begun.append(clock.now())
            raise KeyError("a fault of our own")

        task = tasks.keep_running(work, "work", clock)
        await until(lambda: len(begun) >= 8)
        await tasks.end(task)
        assert begun[:8] == [0, 1, 3, 7, 15, 31, 61, 91]

    run(test)


def test_r26_a_stall_of_our_own_is_known_for_a_while() -> None:
    async def test() -> None:
        watch = tasks.LoopWatch()
        running = tasks.start(watch.run(), "loop watch")
        await asyncio.sleep(0.01)
        time.sleep(1.0)  # noqa: ASYNC251 - the stall
        await asyncio.sleep(0.4)
        assert watch.late_seconds() >= 0.5
        watch._lates.append((time.monotonic() - 100.0, 9.0))
        watch._lates.rotate(1)
        await until(lambda: len(watch._lates) == 1)
        assert watch.late_seconds() < 5.0
        await tasks.end(running)

    run(test)


def actor_of(made: Client, clock: Clock, requeue_after: float | None = None) -> Actor:
    cluster = cluster_of(made)
    cluster.clock = clock
    said = model.Decision("Suspended", "S", "s", requeue_after=requeue_after)
    return Actor(cluster, job(), lambda seen, settings: said)


async def works() -> None:
    pass


async def takes(request: web.Request) -> web.StreamResponse:
    return web.json_response({**job(), "status": {}})


def test_a_job_is_looked_at_twice_a_minute_at_least_and_not_in_each_moment_whatever_wakes() -> None:
    async def test() -> None:
        async with talking_to(takes) as made:
            clock = HandClock()
            actor = actor_of(made, clock)
            assert await actor._guarded_pass() == 30.0
            actor.wake()
            await actor._rest(30.0)
            assert clock.slept[0] == 0.05

    run(test)


def test_after_a_pass_that_failed_the_next_one_waits_whatever_wakes() -> None:
    def fails_always(seen: model.Observed, settings: model.Settings) -> model.Decision:
        raise KeyError("a fault of our own")

    async def test() -> None:
        async with talking_to(takes) as made:
            clock = HandClock()
            cluster = cluster_of(made)
            cluster.clock = clock
            actor = Actor(cluster, job(), fails_always)
            pauses = [await actor._guarded_pass() for _ in range(7)]
            assert pauses == [1, 2, 4, 8, 16, 30, 30]
            actor.wake()
            await actor._rest(pauses[-1])
            assert clock.slept[0] == 2.0

    run(test)


def test_a_job_that_vanished_without_an_event_loses_its_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_LIST_SECONDS", 0.05)

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"metadata": {"resourceVersion": "9"}, "items": []})

    async def test() -> None:
        async with talking_to(answer) as made:
            said = model.Decision("Suspended", "S", "s")
            actors = registry.Actors(cluster_of(made), lambda seen, settings: said, lambda namespace: True)
            actors.hear(job(), deleted=False)
            running = tasks.start(actors.run(), "jobs")
            await until(lambda: actors.phases() == [])
            await tasks.end(running)
            await actors.close()

    run(test)


def operator_of(made: Client) -> main.Operator:
    return main.Operator(parse_settings({}, identity="me"), b"k" * 32, made, Metrics(), lambda seen, settings: None)  # type: ignore[arg-type,return-value]


def test_a_watch_that_is_silent_for_minutes_while_the_api_server_answers_is_the_end_of_the_process() -> None:
    async def test() -> None:
        async with talking_to(takes) as made:
            operator = operator_of(made)
            operator._is_acting = True
            await made.request("GET", "/api/v1/nodes")
            assert operator._what_is_dead() == []
            operator._all_nodes._heard_at -= 301.0
            assert "a watch is silent for 301 s" in operator._what_is_dead()
            made._answered_at -= 301.0  # a control plane that is away is no fault of ours
            assert operator._what_is_dead() == []

    run(test)


def test_what_does_not_end_does_not_keep_the_process_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_STOP_SECONDS", 0.1)
    let_go = asyncio.Event()

    async def deaf_to_cancel() -> None:
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()

    async def test() -> None:
        ending = asyncio.ensure_future(main._first_of(deaf_to_cancel(), works()))
        try:
            await asyncio.wait_for(asyncio.shield(ending), 5.0)
        finally:
            let_go.set()
            await ending

    run(test)


def test_the_clusters_uid_is_read_until_it_is_known_ever_more_slowly() -> None:
    answers = iter([refusal(503, "Starting", "not yet") for _ in range(6)])

    async def answer(request: web.Request) -> web.StreamResponse:
        return next(answers, None) or web.json_response({"metadata": {"uid": "the cluster"}})

    async def test() -> None:
        async with talking_to(answer) as made:
            operator, clock = operator_of(made), HandClock()
            operator._cluster.clock = clock
            assert await operator._read_cluster_uid() == "the cluster"
            assert clock.slept == [1, 2, 4, 8, 10, 10]

    run(test)
