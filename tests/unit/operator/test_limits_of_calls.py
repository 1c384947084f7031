"""Limits of what the operator asks the API server: what hangs is given up, what fails is tried ever more slowly."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import kopf
import pytest
from aiohttp import web
from everstep_operator.cluster import check, client, connection, report
from everstep_operator.cluster.apply import begin
from everstep_operator.cluster.client import Busy, Client, Unavailable
from everstep_operator.cluster.connection import Credentials
from everstep_operator.cluster.refused import Refusals
from everstep_operator.cluster.room import Checked, JobRoom
from everstep_operator.cluster.tries import Failed, Tries
from everstep_operator.core import model
from everstep_operator.handlers.actor import Actor
from loopback import free_port
from unit.operator.hand_clock import HandClock
from unit.operator.small_api import hangs, refusal, run, talking_to
from unit.operator.test_actor_passes import cluster_of, job

DELETE = model.DeletePod("gpt-w4", "u4", "1")


async def fails() -> None:
    raise Failed("no")


async def works() -> None:
    pass


async def pauses_of(tries: Tries, clock: HandClock, work: Any, count: int) -> list[float]:
    """How long each try waits after the one before."""
    pauses = []
    for _ in range(count):
        task = tries.start(("call",), work)
        assert task is not None
        await asyncio.wait([task])
        pauses.append(tries.seconds_left(("call",)))
        clock.time += pauses[-1]
    return pauses


def test_what_fails_is_tried_after_a_second_then_ever_later_but_never_later_than_half_a_minute() -> None:
    async def test() -> None:
        clock = HandClock()
        assert await pauses_of(Tries(clock, lambda: None), clock, fails, 8) == [1, 2, 4, 8, 16, 30, 30, 30]

    run(test)


def test_what_works_is_not_done_again_within_a_second_however_often_it_is_wished() -> None:
    async def test() -> None:
        clock = HandClock()
        tries = Tries(clock, lambda: None)
        assert await pauses_of(tries, clock, works, 2) == [1, 1]
        task = tries.start(("call",), works)
        assert task is not None
        await asyncio.wait([task])
        assert tries.start(("call",), works) is None

    run(test)


def test_what_nobody_wishes_any_more_is_forgotten_after_a_minute() -> None:
    async def test() -> None:
        clock = HandClock()
        tries = Tries(clock, lambda: None)
        await pauses_of(tries, clock, fails, 4)
        wished_at = 7.0  # when the fourth began
        for at, left in ((59.0, 1), (61.0, 0)):
            clock.time = wished_at + at
            tries.begin_pass()
            tries.end_pass()
            assert len(tries) == left

    run(test)


@contextlib.asynccontextmanager
async def nobody() -> AsyncIterator[Client]:
    """A client of an API server that is not there."""
    made = Client(Credentials(kopf.ConnectionInfo(server=f"http://127.0.0.1:{free_port()}")))
    await made.open()
    yield made
    await made.close()


async def next_try(made: Client, clock: HandClock) -> tuple[JobRoom, list[float]]:
    """Seconds after which a deletion is tried again, try after try."""
    cluster = cluster_of(made)
    cluster.clock = clock
    room, pauses = JobRoom(cluster, job(), lambda: None), []
    for _ in range(5):
        room.tries.begin_pass()
        await asyncio.wait(begin(cluster, room, (DELETE,)))
        pauses.append(room.tries.seconds_to_next())
        clock.time += pauses[-1]
    return room, pauses


def test_an_api_server_that_does_not_answer_is_asked_again_within_five_seconds() -> None:
    async def test() -> None:
        async with nobody() as made:
            _, pauses = await next_try(made, HandClock())
            assert pauses == [1, 2, 4, 5, 5]

    run(test)


def test_r2_what_was_decided_from_something_old_is_looked_at_again_soon() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return refusal(409, "Conflict", "the object has been modified")

    async def test() -> None:
        async with talking_to(answer) as made:
            _, pauses = await next_try(made, HandClock())
            assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6])

    run(test)


def test_preconditions_that_do_not_hold_a_few_times_are_no_refusal() -> None:
    clock = HandClock()
    refusals = Refusals(clock)
    for _ in range(5):
        refusals.note(("delete pod", "u4"), "delete pod gpt-w4", "pod gpt-w4 changed")
    assert refusals.told() == ()
    clock.time += 3.0
    assert [action.count for action in refusals.told()] == [5]


def test_a_status_that_nobody_answers_is_written_again_within_five_seconds() -> None:
    async def test() -> None:
        async with nobody() as made:
            cluster, clock = cluster_of(made), HandClock()
            cluster.clock = clock
            actor, pauses = Actor(cluster, job(), lambda seen, settings: model.Decision("Pending", "P", "p")), []
            for _ in range(8):
                await actor.look()
                pauses.append(report.seconds_to_write(actor.room, is_decision=False))
                clock.time += pauses[-1]
            assert pauses[-2:] == pytest.approx([5, 5])

    run(test)


def test_a_request_that_hangs_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_LIMIT_SECONDS", 0.1)

    async def test() -> None:
        async with talking_to(hangs) as made:
            with pytest.raises(Unavailable):
                await asyncio.wait_for(made.request("GET", "/api/v1/nodes"), 5.0)

    run(test)


def test_an_event_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_EVENT_SECONDS", 0.1)

    async def test() -> None:
        async with talking_to(hangs) as made:
            room = JobRoom(cluster_of(made), job(), lambda: None)
            await asyncio.wait_for(report.post_event(made, room, model.Notice("Normal", "R", "m")), 5.0)

    run(test)


def test_a_service_accounts_token_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_REREAD_SECONDS", 0.0)
    token = tmp_path / "token"
    token.write_text("old")
    credentials = Credentials(kopf.ConnectionInfo(server="http://api"), token)
    assert credentials.headers()["Authorization"] == "Bearer old"
    token.write_text("new\n")
    assert credentials.headers()["Authorization"] == "Bearer new"


@pytest.mark.parametrize(("age", "problems"), [(1.0, ("a claim is wrong",)), (31.0, ())])
def test_what_is_wrong_with_a_spec_is_asked_again_after_a_while(age: float, problems: tuple[str, ...]) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"spec": {"accessModes": ["ReadWriteMany"]}})

    async def test() -> None:
        async with talking_to(answer) as made:
            room = JobRoom(cluster_of(made), job(suspend=False), lambda: None)
            room.checked = Checked(room.generation, ("a claim is wrong",), time.monotonic() - age)
            assert await check.problems_of(cluster_of(made), room, room.parsed(), model.JobStatus()) == problems

    run(test)


def test_cl3_nothing_is_asked_of_a_busy_api_server_before_it_said_but_in_the_lane_of_the_lease() -> None:
    async def test() -> None:
        asked: list[str] = []

        async def busy(request: web.Request) -> web.StreamResponse:
            asked.append(request.path)
            answer = refusal(429, "TooManyRequests", "too many requests")
            answer.headers["Retry-After"] = "3600"  # bounded by ours
            return answer

        async with talking_to(busy) as client:
            with pytest.raises(Busy) as first:
                await client.request("GET", "/first")
            assert first.value.retry_seconds == 30.0
            waits = asyncio.create_task(client.request("GET", "/second"))
            lane = client.beside()
            await lane.open()
            with pytest.raises(Busy):
                await lane.request("GET", "/lease")
            await lane.close()
            assert asked == ["/first", "/lease"]
            waits.cancel()

    run(test)
