"""What the API server refuses: told in words that stay, tried by and by, and nothing else is kept back."""

from __future__ import annotations

import asyncio

from aiohttp import web
from everstep_operator.cluster import tasks
from everstep_operator.core import model
from everstep_operator.handlers.actor import Actor
from unit.operator.small_api import refusal, run, talking_to
from unit.operator.small_sidecars import FastClock, until
from unit.operator.test_actor_passes import cluster_of
from unit.operator.test_edges import Api, status_of, wants, with_status


def test_st3_a_refused_action_is_told_from_the_third_time_on_in_words_that_stay() -> None:
    quota = 'pods "gpt-w4" is forbidden: exceeded quota: team, requested: pods=1, used: pods={}, limited: pods=9'
    count = iter(range(1000))

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "DELETE":
            return refusal(403, "Forbidden", quota.format(next(count)))
        return web.json_response(with_status(status_of()))

    told: list[model.RefusedAction] = []

    def decide(seen: model.Observed, settings: model.Settings) -> model.Decision:
        told.extend(seen.refused_actions)
        return model.Decision("Running", "Training", "t", (model.DeletePod("gpt-w4", "u4", "1"),))

    async def test() -> None:
        async with talking_to(answer) as client:
            cluster = cluster_of(client)
            cluster.clock = FastClock()
            actor = Actor(cluster, with_status(status_of()), decide)
            task = tasks.start(actor.run(), "actor")
            await until(lambda: len({action.count for action in told}) >= 2)
            await tasks.end(task)

    run(test)
    assert {action.what for action in told} == {"delete pod gpt-w4"}
    assert {action.why for action in told} == {f"the quota is full: {quota.format(0)}"}
    assert min(action.count for action in told) == 3
    assert min(action.age_seconds for action in told) >= 3.0


def test_st17_a_refusal_whose_numbers_change_is_one_event_and_one_write() -> None:
    api, events, writes, count = Api(with_status(status_of())), [], [], iter(range(1000))

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "DELETE":
            return refusal(403, "Forbidden", f"exceeded quota: team, used: pods={next(count)}, limited: pods=9")
        if request.path.endswith("/events"):
            events.append((await request.json())["message"])
        elif request.method == "PATCH":
            writes.append((await request.json())["status"])
        return await api.answer(request)

    told: set[int] = set()

    def decide(seen: model.Observed, settings: model.Settings) -> model.Decision:
        told.update(action.count for action in seen.refused_actions)
        why = "; ".join(f"{action.what}: {action.why}" for action in seen.refused_actions)
        conditions = (model.Condition("CheckpointHealthy", "False" if why else "True", "ApiRefuses", why),)
        delete = model.DeletePod("gpt-w4", "u4", "1")
        return model.Decision("Running", "Training", "t", (delete,), conditions)

    async def test() -> None:
        async with talking_to(answer) as client:
            cluster = cluster_of(client)
            cluster.clock = FastClock()
            actor = Actor(cluster, api.body, decide)
            task = tasks.start(actor.run(), "actor")
            await until(lambda: len(told) >= 2)
            await tasks.end(task)

    run(test)
    assert len(events) == 1
    assert len(writes) == 2, "what is at the start, and the refusal"


def test_st3_a_status_that_is_never_written_is_told_once() -> None:
    events, patches, count = [], [], iter(range(1000))

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/events"):
            events.append((await request.json())["reason"])
        if request.method == "PATCH":
            patches.append(request.path)
            return refusal(409, "Conflict", f"the object has been modified, {next(count)} times")
        return web.json_response(with_status(status_of()))

    async def test() -> None:
        async with talking_to(answer) as client:
            cluster = cluster_of(client)
            cluster.clock = FastClock()
            actor = Actor(cluster, with_status(status_of()), wants(9))
            task = tasks.start(actor.run(), "actor")
            while len(patches) < 6:
                actor.wake()
                await asyncio.sleep(0.001)
            await tasks.end(task)

    run(test)
    assert events == ["StatusNotWritten"]


def test_st3_a_refused_summary_keeps_no_effect_back() -> None:
    deleted = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            return refusal(422, "Invalid", "conditions[0].reason is too long")
        if request.method == "DELETE":
            deleted.append(request.path)
        return web.json_response({})

    def decide(seen: model.Observed, settings: model.Settings) -> model.Decision:
        return model.Decision("Running", "Training", "t", (model.DeletePod("gpt-w4", "u4", "1"),))

    async def test() -> None:
        async with talking_to(answer) as client:
            await Actor(cluster_of(client), with_status(status_of()), decide).look()

    run(test)
    assert deleted == ["/api/v1/namespaces/team/pods/gpt-w4"]


def test_a_call_that_hangs_keeps_nothing_else_back() -> None:
    deleted = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("gpt-w4"):
            await asyncio.sleep(60.0)
        if request.path.endswith("gpt-w5"):
            deleted.set()
        return web.json_response(with_status(status_of()))

    wished = [model.DeletePod("gpt-w4", "u4", "1")]

    def decide(seen: model.Observed, settings: model.Settings) -> model.Decision:
        return model.Decision("Running", "Training", "t", tuple(wished))

    async def test() -> None:
        async with talking_to(answer) as client:
            actor = Actor(cluster_of(client), with_status(status_of()), decide)
            await asyncio.wait_for(actor.look(), 5.0)
            wished.append(model.DeletePod("gpt-w5", "u5", "1"))
            await asyncio.wait_for(actor.look(), 5.0)
            assert deleted.is_set()
            actor.room.close()

    run(test)
