"""How tasks end, and what stays bounded however long the operator lives."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from aiohttp import web
from everstep_operator.cluster import tasks
from everstep_operator.cluster.metrics import Metrics
from everstep_operator.cluster.observe import observe
from everstep_operator.cluster.room import JobRoom
from everstep_operator.handlers.actor import Actor
from everstep_operator.handlers.registry import Actors
from everstep_operator.main import Operator
from everstep_operator.settings import parse_settings
from everstep_protocol.messages import Peer
from unit.operator.small_api import run, talking_to
from unit.operator.small_sidecars import FastClock, until
from unit.operator.test_actor_passes import cluster_of, job
from unit.operator.test_edges import Api, status_of, wants, with_status

VITAL = ["loop watch", "reflector", "node leases", "jobs", "caches", "ear"]


@pytest.mark.parametrize("part", VITAL)
def test_st14_a_part_of_the_process_that_fails_ends_the_process(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: Any) -> None:
        raise KeyError("a fault of our own")

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            await asyncio.sleep(60.0)
        return web.json_response({"metadata": {"uid": "u", "resourceVersion": "1"}, "items": []})

    async def test() -> None:
        async with talking_to(answer) as client:
            env = {"EVERSTEP_LEASE_ENABLED": "false", "EVERSTEP_METRICS_PORT": "0", "EVERSTEP_HEALTH_HOST": "127.0.0.1"}
            operator = Operator(parse_settings(env, identity="me"), b"k" * 32, client, Metrics(), wants(1))
            stop = asyncio.Event()
            broken: dict[str, tuple[object, str]] = {
                "loop watch": (operator._loop, "run"),
                "reflector": (operator._all_nodes, "run"),
                "node leases": (operator._leases, "run"),
                "jobs": (operator.actors, "run"),
                "caches": (operator, "_read_cluster_uid"),
                "ear": (operator._ears[""], "run"),
            }
            monkeypatch.setattr(*broken[part], fails)
            if part != "ear":
                monkeypatch.setattr(operator._ears[""], "run", lambda: asyncio.sleep(60.0))
            with pytest.raises(tasks.Died, match=f"{part} ended: KeyError"):
                await operator.run(stop)

    run(test)


def test_st14_an_actor_that_fails_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with talking_to(Api(job()).answer) as client:
            cluster, looks, failures = cluster_of(client), [], []
            cluster.clock = FastClock()
            rest = Actor._rest

            async def fails_twice(self: Actor, pause: float) -> None:
                looks.append(pause)
                if len(failures) < 2:
                    failures.append(pause)
                    raise KeyError("a fault of our own")
                await rest(self, pause)

            monkeypatch.setattr(Actor, "_rest", fails_twice)
            actors = Actors(cluster, wants(9), lambda namespace: True)
            actors.hear(job(), deleted=False)
            await until(lambda: len(looks) >= 3)
            await actors.close()

    run(test)


def test_st15_nothing_grows_with_attempts_pods_nodes_and_texts() -> None:
    clock = FastClock()
    clock.SPEED = 20_000.0

    async def test() -> None:
        async with talking_to(Api(job()).answer) as client:
            cluster = cluster_of(client)
            cluster.clock = clock
            room = JobRoom(cluster, with_status(status_of()), lambda: None)
            room.follower.follow = lambda target: None  # type: ignore[method-assign]

            async def fails() -> None:
                room.refused.note(key, "delete pod", "no")
                raise KeyError("no")

            for number in range(2, 2002):
                status = dataclasses.replace(status_of("Preparing", number), workers=())
                uid, key = f"u{number}", ("delete pod", f"u{number}")
                room.tries.begin_pass()
                body = with_status(status, version=number)
                room.errands._failed.append(((number, "i"), uid))
                room.errands._announced.add((number, uid))
                room.names_taken.add(number)
                room.is_first_warning(f"pod gpt-w{number} is not made")
                cluster.sidecars.heard(f"n{number}")
                cluster.sidecars._swept_at = -1e9
                cluster.sidecars._heard = {node: at - 40.0 for node, at in cluster.sidecars._heard.items()}
                room.prober.keep([Peer(uid, "127.0.0.1")], "wished")
                task = room.tries.start(key, fails)
                assert task is not None
                await asyncio.wait([task])
                await observe(cluster, room, body)
                room.tries.end_pass()
                room.refused.keep(room.tries.wished)
            sizes = {
                "tries": len(room.tries),
                "refused": len(room.refused),
                "prober": len(room.prober),
                "failed": len(room.errands._failed),
                "announced": len(room.errands._announced),
                "names": len(room.names_taken),
                "warned": len(room._warned),
                "heard": len(cluster.sidecars._heard),
            }
            room.close()
            assert max(sizes.values()) <= 100, sizes

    run(test)


def test_st15_jobs_that_came_and_went_before_the_caches_were_filled_leave_nothing() -> None:
    async def test() -> None:
        async with talking_to(Api(job()).answer) as client:
            actors = Actors(cluster_of(client), wants(1), lambda namespace: False)
            for number in range(1000):
                body = {**job(), "metadata": {**job()["metadata"], "uid": str(number)}}
                actors.hear(body, deleted=False)
                actors.hear(body, deleted=True)
            assert actors._waiting == {}

    run(test)
