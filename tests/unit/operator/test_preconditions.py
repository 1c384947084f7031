"""R2, R3, R20-R22: what goes with each call to the API server, so that it does nothing where something changed meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from everstep_operator.cluster.apply import Stale, apply_action, begin
from everstep_operator.cluster.check import problems_of
from everstep_operator.cluster.room import Cluster, JobRoom
from everstep_operator.core import model
from everstep_operator.handlers.actor import Actor
from everstep_protocol import codec, names
from unit.core.jobs import plan
from unit.operator.small_api import refusal, run, talking_to
from unit.operator.test_actor_passes import cluster_of, job

Raw = dict[str, Any]
PODS = "/api/v1/namespaces/team/pods"
DELETE = model.DeletePod("gpt-w3", "u3", "77")


class Recorder:
    """Takes everything; `there`: the pod that has a name already."""

    def __init__(self, there: Raw | None = None) -> None:
        self.sent: list[tuple[str, str, Any]] = []
        self._there = there

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.sent.append((request.method, request.path, body))
        if self._there is not None and request.path.startswith(PODS):
            if request.method == "POST":
                return refusal(409, "AlreadyExists", "pods gpt-w3 already exists")
            return web.json_response(self._there)
        return web.json_response({**job(), "status": {}})


def applied(action: Any, api: Recorder) -> tuple[Cluster, JobRoom]:
    made: list[tuple[Cluster, JobRoom]] = []

    async def test() -> None:
        async with talking_to(api) as client:
            cluster = cluster_of(client)
            made.append((cluster, JobRoom(cluster, job(), lambda: None)))
            await apply_action(*made[0], action)

    run(test)
    return made[0]


def test_r2_r21_a_pod_is_deleted_as_it_was_seen_and_with_its_grace() -> None:
    api = Recorder()
    applied(DELETE, api)
    expected = {"preconditions": {"uid": "u3", "resourceVersion": "77"}}
    assert api.sent == [("DELETE", f"{PODS}/gpt-w3", expected)]


def test_r21_only_what_the_core_says_is_deleted_by_force() -> None:
    api = Recorder()
    applied(model.DeletePod("gpt-w3", "u3", "77", force=True), api)
    ((_, _, options),) = api.sent
    assert options["gracePeriodSeconds"] == 0
    assert options["preconditions"] == {"uid": "u3", "resourceVersion": "77"}


def test_r2_a_plan_is_published_to_the_pod_and_over_the_attempt_that_were_seen() -> None:
    api, published = Recorder(), plan(4)
    applied(model.PublishPlan("gpt-w3", "u3", 2, published), api)
    attempt, text = (
        f"/metadata/annotations/{name.replace('/', '~1')}" for name in (names.ANNOTATION_ATTEMPT, names.ANNOTATION_PLAN)
    )
    ((method, path, patch),) = api.sent
    assert (method, path) == ("PATCH", f"{PODS}/gpt-w3")
    assert patch == [
        {"op": "test", "path": "/metadata/uid", "value": "u3"},
        {"op": "test", "path": attempt, "value": "2"},
        {"op": "add", "path": text, "value": codec.dumps(published)},
        {"op": "replace", "path": attempt, "value": "4"},
    ]


def pod_of(owner: str, worker: str) -> Raw:
    owners = [{"uid": owner, "controller": True}]
    return {"metadata": {"name": "gpt-w3", "labels": {names.LABEL_WORKER: worker}, "ownerReferences": owners}}


def test_r20_a_pod_of_the_wanted_name_that_is_ours_is_the_one_that_was_wanted() -> None:
    _, room = applied(model.CreatePod(3), Recorder(pod_of("job", "3")))
    assert room.names_taken == set()


@pytest.mark.parametrize(("owner", "worker"), [("another-job", "3"), ("job", "4")])
def test_r20_any_other_burns_the_id(owner: str, worker: str) -> None:
    async def test() -> None:
        async with talking_to(Recorder(pod_of(owner, worker))) as client:
            room = JobRoom(cluster := cluster_of(client), job(), lambda: None)
            with pytest.raises(Stale, match="belongs to another"):
                await apply_action(cluster, room, model.CreatePod(3))
            assert room.names_taken == {3}

    run(test)


def test_r22_the_token_is_a_secret_that_nobody_can_change_and_that_goes_with_the_job() -> None:
    api = Recorder()
    cluster, room = applied(model.CreatePod(3), api)
    (secret,) = [
        body for method, path, body in api.sent if (method, path) == ("POST", "/api/v1/namespaces/team/secrets")
    ]
    assert secret["immutable"] is True
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [room.uid]
    assert room.uid in secret["metadata"]["name"]
    assert cluster.sidecars.token(room.uid) not in str(api.sent), "but in base64, in the Secret alone"


def test_r22_one_secret_serves_all_pods_of_a_job() -> None:
    async def test() -> None:
        api = Recorder()
        async with talking_to(api) as client:
            room = JobRoom(cluster := cluster_of(client), job(), lambda: None)
            await asyncio.wait(begin(cluster, room, tuple(model.CreatePod(number) for number in range(5))))
        paths = [path for method, path, _ in api.sent if method == "POST"]
        assert (paths.count(PODS), paths.count("/api/v1/namespaces/team/secrets")) == (5, 1)

    run(test)


@pytest.mark.parametrize(
    ("modes", "is_wrong"), [(["ReadWriteOnce"], True), (["ReadWriteOnce", "ReadWriteMany"], False)]
)
def test_r21_a_claim_for_one_node_is_refused_for_more_than_one_worker(modes: list[str], is_wrong: bool) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"spec": {"accessModes": modes}})

    async def test() -> None:
        async with talking_to(answer) as client:
            room = JobRoom(cluster := cluster_of(client), job(suspend=False, workers={"max": 2}), lambda: None)
            problems = await problems_of(cluster, room, room.parsed(), model.JobStatus())
            assert any("more than one worker needs ReadWriteMany" in problem for problem in problems) is is_wrong

    run(test)


def test_r3_nothing_is_done_in_the_pass_that_writes_the_intent() -> None:
    def decide(seen: model.Observed, settings: model.Settings) -> model.Decision:
        return model.Decision("Running", "R", "r", (model.WriteStatus(model.JobStatus(next_worker_id=7)), DELETE))

    async def test() -> None:
        api = Recorder()
        async with talking_to(api) as client:
            await Actor(cluster_of(client), job(), decide).look()
        assert {method for method, _, _ in api.sent} == {"PATCH"}

    run(test)
