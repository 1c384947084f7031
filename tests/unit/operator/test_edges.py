"""What the edges see and write: versions, what a GET says, ages, doubts, refusals; how tasks end; what stays bounded."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from everstep_operator.api import status as status_json
from everstep_operator.cluster import tasks
from everstep_operator.cluster.client import Client
from everstep_operator.cluster.follow import Seen
from everstep_operator.cluster.observe import observe
from everstep_operator.cluster.probes import Prober
from everstep_operator.cluster.records import trim_node, trim_pod
from everstep_operator.cluster.room import Cluster, JobRoom
from everstep_operator.core import model
from everstep_operator.handlers.actor import Actor, Decide
from everstep_protocol.messages import Peer
from unit.core.jobs import plan, sidecar, training
from unit.operator.small_api import refusal, run, talking_to
from unit.operator.small_sidecars import FastClock, until
from unit.operator.test_actor_passes import cluster_of, job
from unit.operator.test_records import pod

Raw = dict[str, Any]
PATCH = "application/merge-patch+json"


def status_of(state: Any = "Started", number: int = 1, members: tuple[int, ...] = (0, 1)) -> model.JobStatus:
    made = plan(number, members) if state != "Preparing" else None
    attempt = model.AttemptStatus(number, state, "i", "start", 1, plan=made)
    rows = tuple(model.WorkerStatus(member, "Joined") for member in members)
    return model.JobStatus(attempt=attempt, next_worker_id=len(members), workers=rows)


def with_status(status: model.JobStatus, version: int = 5, **spec: Any) -> Raw:
    body = job(suspend=False, **spec)
    body["metadata"]["resourceVersion"] = str(version)
    return {**body, "status": status_json.to_patch(status)}


class Api:
    """One object, compare-and-swap, and what is asked."""

    def __init__(self, body: Raw) -> None:
        self.body = body
        self.sent: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.gone: tuple[str, ...] = ()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path))
        if any(request.path.endswith(name) for name in self.gone):
            return refusal(404, "NotFound", "not found")
        if "trainingjobs" not in request.path:
            return web.json_response({"metadata": {"uid": "u0"}})
        if request.method == "PATCH":
            sent = await request.json()
            self.sent.append(sent["metadata"]["resourceVersion"])
            if self.sent[-1] != self.body["metadata"]["resourceVersion"]:
                return refusal(409, "Conflict", "the object has been modified")
            self.write(sent["status"])
        return web.json_response(self.body)

    def write(self, status: Raw, version: int | None = None) -> None:
        meta = self.body["metadata"]
        version = version or int(meta["resourceVersion"]) + 1
        merged = {**self.body.get("status", {}), **status}
        self.body = {**self.body, "metadata": {**meta, "resourceVersion": str(version)}, "status": merged}


def wants(next_worker_id: int) -> Decide:
    def decide(seen: model.Observed, settings: model.Settings) -> model.Decision:
        wanted = dataclasses.replace(seen.status, next_worker_id=next_worker_id)
        return model.Decision("Running", "Training", "t", (model.WriteStatus(wanted),))

    return decide


def test_r1_the_version_that_is_compared_is_the_one_of_the_status_that_was_decided_on() -> None:
    api = Api(with_status(status_of()))

    async def test() -> None:
        async with talking_to(api.answer) as client:
            cluster = cluster_of(client)
            actor: Actor

            def decide(seen: model.Observed, settings: model.Settings) -> model.Decision:
                api.write({"nextWorkerID": 40})  # another operator; our watch brings it before we write
                actor.hear(api.body)
                assert seen.version == "5"
                return wants(4)(seen, settings)

            actor = Actor(cluster, api.body, decide)
            await actor.look()
            assert api.sent == ["5"]
            assert api.body["status"]["nextWorkerID"] == 40

    run(test)


def test_r1_after_a_409_the_object_is_read_again_whatever_its_number() -> None:
    """After a restore of etcd versions go backwards: the newer number is not the newer object."""
    api = Api(with_status(status_of(), version=100))

    async def test() -> None:
        async with talking_to(api.answer) as client:
            actor = Actor(cluster_of(client), api.body, wants(9))
            api.write({"nextWorkerID": 7}, version=50)
            assert await actor.look() > 0
            assert actor.room.resource_version == "50"
            task = tasks.start(actor.run(), "actor")
            await until(lambda: api.body["status"]["nextWorkerID"] == 9)
            await tasks.end(task)
            assert api.sent[:2] == ["100", "50"]

    run(test)


def test_r1_an_older_object_of_a_slow_watch_is_ignored() -> None:
    async def test() -> None:
        async with talking_to(Api(job()).answer) as client:
            room = JobRoom(cluster_of(client), with_status(status_of(number=2), version=9), lambda: None)
            assert not room.take(with_status(status_of(number=1), version=8))
            assert room.resource_version == "9"
            assert room.take(with_status(status_of(number=3), version=10))
            room.believe(with_status(status_of(number=1), version=3))
            assert room.take(with_status(status_of(number=2), version=4))

    run(test)


async def observed(
    client: Client, status: model.JobStatus, prepare: Callable[[Cluster, JobRoom], None]
) -> model.Observed:
    cluster = cluster_of(client)
    body = with_status(status)
    room = JobRoom(cluster, body, lambda: None)
    room.follower.follow = lambda target: None  # type: ignore[method-assign]
    prepare(cluster, room)
    try:
        return await observe(cluster, room, body)
    finally:
        room.close()


def test_r28_the_age_of_an_attempt_begins_anew_in_each_state() -> None:
    async def test() -> None:
        async with talking_to(Api(job()).answer) as client:
            room = JobRoom(cluster_of(client), job(), lambda: None)
            room.attempt_age_seconds(status_of("Preparing").attempt)
            await asyncio.sleep(0.05)
            assert room.attempt_age_seconds(status_of("Preparing").attempt) >= 0.05
            assert room.attempt_age_seconds(status_of("Planned").attempt) < 0.05

    run(test)


def test_r25_an_old_answer_is_no_silence_of_the_training() -> None:
    def prepare(cluster: Cluster, room: JobRoom) -> None:
        room.follower.seen = Seen(sidecar(training=training(age_seconds=0.5)), time.monotonic() - 60.0)

    async def test() -> None:
        async with talking_to(Api(job()).answer) as client:
            seen = await observed(client, status_of(), prepare)
            assert seen.training_age_seconds == 0.5
            assert seen.sidecar_age_seconds >= 60.0

    run(test)


@pytest.mark.parametrize("age", [1.0, 30.0])
def test_r26_an_api_server_that_is_silent_is_doubted(age: float) -> None:
    def prepare(cluster: Cluster, room: JobRoom) -> None:
        cluster.client._answered_at = time.monotonic() - age

    async def test() -> None:
        async with talking_to(Api(job()).answer) as client:
            assert (await observed(client, status_of(), prepare)).doubt.saw_api is (age < 5.0)

    run(test)


@pytest.mark.parametrize("suspect", ["u0", "u1"])
def test_r26_a_node_that_is_suspected_is_no_other_node(suspect: str) -> None:
    def prepare(cluster: Cluster, room: JobRoom) -> None:
        cluster.sidecars.heard("n0")
        room.prober.note(suspect, alive=False)

    async def test() -> None:
        async with talking_to(Api(job()).answer) as client:
            assert (await observed(client, status_of(), prepare)).doubt.saw_other_node is (suspect == "u1")

    run(test)


@pytest.mark.parametrize(("answers", "is_seen"), [("u0", True), ("u1", False)])
def test_r26_a_probe_that_is_answered_on_another_node_shows_that_we_reach_somebody(answers: str, is_seen: bool) -> None:
    def prepare(cluster: Cluster, room: JobRoom) -> None:
        room.prober.note("u1", alive=True)
        room.prober.note("u1", alive=False)
        room.prober.note(answers, alive=True)
        if answers == "u1":
            room.prober.note("u1", alive=False)

    async def test() -> None:
        async with talking_to(Api(job()).answer) as client:
            assert (await observed(client, status_of(), prepare)).doubt.saw_other_node is is_seen

    run(test)


def test_r26_what_answered_a_while_ago_is_not_reached_now() -> None:
    clock: Any = SimpleNamespace(now=lambda: clock.seconds, seconds=100.0)
    prober = Prober(None, clock, lambda: None)  # type: ignore[arg-type]
    assert not prober.answered_within("u0", 5.0)
    prober.note("u0", alive=True)
    clock.seconds += 5.0
    prober.note("u0", alive=False)
    assert prober.answered_within("u0", 5.0)
    clock.seconds += 0.1
    assert not prober.answered_within("u0", 5.0)


def test_r25_only_a_get_says_that_a_node_or_a_pod_is_gone() -> None:
    """u0 is another pod by now, u1 cannot be asked, n0 is there, n1 is not."""
    api = Api(with_status(status_of()))
    api.gone = ("/nodes/n1",)

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/pods/gpt-w1"):
            api.asked.append((request.method, request.path))
            return refusal(500, "InternalError", "etcd is slow")
        if request.path.endswith("/pods/gpt-w0"):
            return web.json_response({"metadata": {"uid": "another"}})
        return await api.answer(request)

    async def test() -> None:
        async with talking_to(answer) as client:
            cluster = cluster_of(client)
            cluster.clock = FastClock()
            room = JobRoom(cluster, api.body, lambda: None)
            until_seconds = cluster.clock.now() + 10.0
            while cluster.clock.now() < until_seconds:
                seen = await observe(cluster, room, api.body)
                await asyncio.sleep(0.01)
            assert (seen.gone_nodes, seen.gone_pods) == ({"n1"}, {"u0"})
            for path in ("/api/v1/nodes/n0", "/api/v1/namespaces/team/pods/gpt-w1"):
                assert 2 <= api.asked.count(("GET", path)) <= 3, "at 0, 2 and 6 s"
            assert api.asked.count(("GET", "/api/v1/nodes/n1")) == 1
            cluster.nodes.take(None, trim_node({"metadata": {"uid": "x", "name": "n1"}}, None, 0.0))
            assert (await observe(cluster, room, api.body)).gone_nodes == set()
            room.close()

    run(test)


def test_r25_pods_outside_of_a_plan_have_a_network_while_they_are_probed() -> None:
    async def test() -> None:
        async with talking_to(Api(job()).answer) as client:
            cluster = cluster_of(client)
            body = with_status(status_of("Preparing"))
            room = JobRoom(cluster, body, lambda: None)
            record = pod_record("u7", "10.0.0.7")
            cluster.pods.take(None, record)
            assert (await observe(cluster, room, body)).networks == {}
            cluster.sidecars.probe = unreachable  # type: ignore[method-assign]
            room.prober.keep([Peer("u7", "10.0.0.7")], "wished")
            await until(lambda: room.prober.failed("u7") >= 2)
            (network,) = (await observe(cluster, room, body)).networks.values()
            assert (network.failed_probes >= 2, network.lost_by) == (True, 0)
            assert 0.0 < network.silent_seconds < 20.0
            room.close()

    run(test)


async def unreachable(ip: str) -> bool:
    return False


def pod_record(uid: str, ip: str) -> Any:
    return trim_pod(pod(meta={"uid": uid}, podIP=ip), None, time.monotonic())
