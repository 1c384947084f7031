"""One actor against an API server that says no: it stays, it is quiet, it backs off."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from aiohttp import web
from everstep_operator.cluster.apply import begin
from everstep_operator.cluster.book import NodeBook, PodBook, Wakes
from everstep_operator.cluster.check import NotChecked, problems_of
from everstep_operator.cluster.client import Client
from everstep_operator.cluster.leases import Beats
from everstep_operator.cluster.metrics import Metrics
from everstep_operator.cluster.room import Cluster, JobRoom
from everstep_operator.cluster.sidecars import SidecarClient
from everstep_operator.cluster.tasks import LoopWatch
from everstep_operator.core.model import (
    AttemptStatus,
    Condition,
    CreatePod,
    Decision,
    JobStatus,
    Observed,
    Settings,
    WriteStatus,
)
from everstep_operator.handlers.actor import Actor
from everstep_operator.settings import parse_settings
from unit.core.jobs import plan
from unit.operator.small_api import refusal, run, talking_to

TERMINATING = (
    'pods "gpt-w0" is forbidden: unable to create new content in namespace team because it is being terminated'
)


def cluster_of(client: Client) -> Cluster:
    wakes = Wakes()
    nodes = NodeBook(Beats(lambda node: None, lambda node: None), lambda node: None)
    sidecars = SidecarClient(b"k" * 32, 7471)
    return Cluster(
        parse_settings({}, identity="me"), client, sidecars, PodBook(wakes), nodes, wakes, LoopWatch(), Metrics(), "uid"
    )


def job(**spec: Any) -> dict[str, Any]:
    container = {"name": "trainer", "image": "i:1", "command": ["python3", "t.py"]}
    return {
        "metadata": {"name": "gpt", "namespace": "team", "uid": "job", "generation": 1, "resourceVersion": "5"},
        "spec": {
            "workers": {"max": 1},
            "template": {"spec": {"containers": [container]}},
            "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "c"}}},
            "suspend": True,
            **spec,
        },
    }


def writes(seen: Observed, settings: Settings) -> Decision:
    return Decision("Suspended", "Suspended", "s", (WriteStatus(JobStatus(next_worker_id=7)),))


def test_an_api_server_that_goes_away_after_a_404_does_not_end_the_actor() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return refusal(503, "ServiceUnavailable", "starting")
        return refusal(404, "NotFound", "no such job")

    async def test() -> None:
        async with talking_to(answer) as client:
            assert await Actor(cluster_of(client), job(), writes)._guarded_pass() == 1.0

    run(test)


def test_a_namespace_that_is_terminated_is_quiet_and_slow(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            return web.json_response({**job(), "status": {}})
        asked.append(request.path)
        return refusal(403, "Forbidden", TERMINATING)

    def creates(seen: Observed, settings: Settings) -> Decision:
        return Decision("Starting", "S", "s", (CreatePod(0),))

    async def test() -> None:
        async with talking_to(answer) as client:
            actor = Actor(cluster_of(client), job(), creates)
            for _ in range(3):
                pause = await actor._guarded_pass()
                assert 28.0 < pause <= 30.0
            assert len(asked) == 1
            cluster = cluster_of(client)
            room = JobRoom(cluster, job(suspend=False), lambda: None)
            for _ in range(3):
                with pytest.raises(NotChecked):  # no mistake of the spec
                    await problems_of(cluster, room, room.parsed(), JobStatus())

    with caplog.at_level(logging.INFO):
        run(test)
    told = [record for record in caplog.records if "nothing is made any more" in record.message]
    assert len(told) == 1
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_refused_status_write_logs_no_whole_object(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return refusal(422, "Invalid", f"TrainingJob gpt is invalid: {'{object}' * 10_000}: must be short")

    async def test() -> None:
        async with talking_to(answer) as client:
            await Actor(cluster_of(client), job(), writes)._guarded_pass()

    with caplog.at_level(logging.WARNING):
        run(test)
    (record,) = [record for record in caplog.records if "is not written" in record.message]
    assert len(record.message) < 700
    assert "TrainingJob gpt is invalid" in record.message
    assert record.message.endswith("must be short")


def test_a_pod_that_is_not_admitted_says_why_where_people_look() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/pods"):
            return refusal(403, "Forbidden", "exceeded quota: team")
        return web.json_response({})

    async def test() -> None:
        async with talking_to(answer) as client:
            cluster = cluster_of(client)
            room = JobRoom(cluster, job(), lambda: None)
            await asyncio.wait(begin(cluster, room, (CreatePod(3),)))
            assert room.refused.pods() == {3: "the quota is full: exceeded quota: team"}

    run(test)


def test_a_webhook_that_is_away_does_not_leave_a_running_job_without_help() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return refusal(500, "InternalError", "failed calling webhook")

    async def test() -> None:
        async with talking_to(answer) as client:
            cluster = cluster_of(client)
            room = JobRoom(cluster, job(suspend=False), lambda: None)
            running = JobStatus(attempt=AttemptStatus(1, "Started", "i", "start", 0, plan=plan(1, (0,))))
            assert await problems_of(cluster, room, room.parsed(), running) == ()

    run(test)


def test_a_pod_that_is_not_admitted_slows_nothing_else_down() -> None:
    posts = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/pods"):
            posts.append(request.path)
            return refusal(403, "Forbidden", "exceeded quota: team")
        return web.json_response({**job(), "status": {}})

    def creates(seen: Observed, settings: Settings) -> Decision:
        return Decision("Running", "Training", "t", (CreatePod(3),), requeue_after=0.5)

    async def test() -> None:
        async with talking_to(answer) as client:
            actor = Actor(cluster_of(client), job(), creates)
            pauses = [await actor._guarded_pass() for _ in range(3)]
            assert pauses == [0.5] * 3
            assert len(posts) == 1, "it is tried again after a while, not at every look"
            assert 0 < actor.room.tries.seconds_to_next() <= 1.0

    run(test)


def test_a_condition_that_flickers_is_one_event_an_attempt() -> None:
    events, version = [], 5

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal version
        body = await request.json()
        if request.path.endswith("/events"):
            events.append(body["reason"])
        version += 1
        meta = {**job()["metadata"], "resourceVersion": str(version)}
        return web.json_response({**job(), "metadata": meta, "status": body.get("status")})

    waits = Condition("Degraded", "True", "NotEnoughWorkers", "waiting for worker 3")
    starts = Condition("Degraded", "False", "NothingRuns", "no attempt runs")
    turns = iter([waits, starts, waits, starts, waits])

    def flickers(seen: Observed, settings: Settings) -> Decision:
        return Decision("Waiting", "NotEnoughWorkers", "w", conditions=(next(turns),))

    async def test() -> None:
        async with talking_to(answer) as client:
            actor = Actor(cluster_of(client), job(), flickers)
            for _ in range(5):
                await actor.look()

    run(test)
    assert events == ["NotEnoughWorkers"]


def test_what_is_decided_does_not_wait_behind_sentences_that_change() -> None:
    written, version = [], 5

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal version
        status = (await request.json())["status"]
        written.append("decision" if "attempt" in status else "sentence")
        version += 1
        meta = {**job()["metadata"], "resourceVersion": str(version)}
        return web.json_response({**job(), "metadata": meta, "status": status})

    texts = iter("abcdef")
    planned = JobStatus(attempt=AttemptStatus(1, "Planned", "i", "start", 0, plan=plan(1, (0,))))

    def talks(seen: Observed, settings: Settings) -> Decision:
        text = next(texts, None)
        waits = Condition("Ready", "False", "Preparing", text or "planned")
        return Decision("Starting", "Preparing", "m", () if text else (WriteStatus(planned),), conditions=(waits,))

    async def test() -> None:
        async with talking_to(answer) as client:
            actor = Actor(cluster_of(client), job(), talks)
            pauses = [await actor.look() for _ in range(7)]
            assert 0 < pauses[5] <= 1.0, "what was not said is said soon"

    run(test)
    assert written == ["sentence", "sentence", "sentence", "decision"]


def test_a_status_that_cannot_be_read_is_told_and_left_alone() -> None:
    events = []

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.path.endswith("/events"), "nothing else is written"
        events.append((await request.json())["reason"])
        return web.json_response({})

    async def test() -> None:
        async with talking_to(answer) as client:
            body = {**job(), "status": {"attempt": {"number": "seven"}}}
            actor = Actor(cluster_of(client), body, writes)
            assert [await actor._guarded_pass() for _ in range(2)] == [1.0, 2.0]

    run(test)
    assert events == ["StatusUnreadable"]
