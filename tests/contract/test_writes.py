"""The operator's writes against a real API server: compare-and-swap, preconditions, Strict status."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from conftest import Space, manifest, opened
from everstep_operator.api import status as status_json
from everstep_operator.cluster.apply import Stale, apply_action
from everstep_operator.cluster.book import NodeBook, PodBook, Wakes
from everstep_operator.cluster.check import problems_of
from everstep_operator.cluster.client import Client, Conflict, Refused
from everstep_operator.cluster.leases import Beats
from everstep_operator.cluster.metrics import Metrics
from everstep_operator.cluster.report import post_event, seconds_to_write, write_status
from everstep_operator.cluster.room import Cluster, JobRoom
from everstep_operator.cluster.sidecars import SidecarClient
from everstep_operator.cluster.tasks import LoopWatch
from everstep_operator.core.model import (
    CreatePod,
    Decision,
    DeleteJob,
    DeletePod,
    JobStatus,
    Notice,
    Observed,
    PublishPlan,
)
from everstep_operator.settings import parse_settings
from unit.core.jobs import observed

_samples = importlib.util.spec_from_file_location(
    "status_samples_for_contract", Path(__file__).parents[1] / "unit" / "api" / "status_samples.py"
)
assert _samples is not None
assert _samples.loader is not None
samples: Any = importlib.util.module_from_spec(_samples)
_samples.loader.exec_module(samples)

RUNNING = Decision("Running", "Training", "fine", notices=(Notice("Normal", "Training", "4 workers train"),))


def cluster_of(client: Client) -> Cluster:
    wakes = Wakes()
    beats = Beats(lambda node: None, lambda node: None)
    settings = parse_settings({}, identity="me")
    nodes = NodeBook(beats, lambda node: None)
    sidecars = SidecarClient(b"k" * 32, 7471)
    return Cluster(settings, client, sidecars, PodBook(wakes), nodes, wakes, LoopWatch(), Metrics(), "cluster-uid")


def seen(status: JobStatus) -> Observed:
    return observed(uid="u", namespace="n", spec=None, status=status, pods=(), nodes={}, sidecar=None)


async def write(cluster: Cluster, room: JobRoom, status: JobStatus) -> bool:
    before = status_json.from_json(room.body.get("status"))
    return await write_status(cluster, room, room.body, seen(before), RUNNING, status)


def room_of(cluster: Cluster, body: Any) -> JobRoom:
    return JobRoom(cluster, body, lambda: None)


def test_a_full_status_is_written_strictly_and_read_back(space: Space) -> None:
    async def test() -> None:
        async with opened(space.server) as client:
            cluster = cluster_of(client)
            room = room_of(cluster, space.made_job(manifest()))
            assert await write(cluster, room, samples.full_status())
            stored = await client.request("GET", room.path)
            assert status_json.from_json(stored["status"]) == samples.full_status()
            assert stored["status"]["phase"] == "Running"
            room = room_of(cluster, stored)
            assert not await write(cluster, room, samples.full_status()), "nothing new, nothing written"
            preparing = dataclasses.replace(
                samples.full_status(), attempt=dataclasses.replace(samples.full_status(8).attempt, plan=None, ended="")
            )
            assert await write(cluster, room, preparing)
            assert status_json.from_json((await client.request("GET", room.path))["status"]) == preparing
            events = (await client.request("GET", f"/api/v1/namespaces/{space.name}/events"))["items"]
            assert [(e["reason"], e["involvedObject"]["name"]) for e in events] == [("Training", "gpt")] * 2

    asyncio.run(test())


def test_a_field_that_the_schema_does_not_know_is_refused_and_not_lost(space: Space) -> None:
    async def test() -> None:
        space.made_job(manifest())
        async with opened(space.server) as client:
            with pytest.raises(Refused, match="unknown field"):
                await client.request(
                    "PATCH",
                    f"{space.jobs}/gpt/status",
                    params={"fieldValidation": "Strict"},
                    body={"status": {"fieldOfTheFuture": 1}},
                    content_type="application/merge-patch+json",
                )

    asyncio.run(test())


def test_r1_of_two_writers_one_wins(space: Space) -> None:
    async def test() -> None:
        body = space.made_job(manifest())
        async with opened(space.server) as x, opened(space.server) as y:
            clusters = (cluster_of(x), cluster_of(y))
            rooms = [room_of(cluster, body) for cluster in clusters]
            statuses = [dataclasses.replace(samples.full_status(n), next_worker_id=n) for n in (1, 2)]
            outcomes = await asyncio.gather(
                *(write(*args) for args in zip(clusters, rooms, statuses, strict=True)), return_exceptions=True
            )
            assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict", "bool"]
            winner = outcomes.index(True)
            stored = await x.request("GET", rooms[0].path)
            assert status_json.from_json(stored["status"]) == statuses[winner]
            await asyncio.sleep(seconds_to_write(rooms[1 - winner]))
            with pytest.raises(Conflict):
                await write(clusters[1 - winner], rooms[1 - winner], statuses[1 - winner])

    asyncio.run(test())


def test_r2_plans_go_only_upwards_and_only_to_the_pod_that_was_seen(space: Space) -> None:
    async def test() -> None:
        async with opened(space.server) as client:
            cluster = cluster_of(client)
            room = room_of(cluster, space.made_job(manifest()))
            await apply_action(cluster, room, CreatePod(0, image="everstep:before"))
            pod = space.server.call("GET", f"{space.pods}/gpt-w0")[1]
            uid = pod["metadata"]["uid"]
            assert {own["image"] for own in pod["spec"]["initContainers"]} == {"everstep:before"}
            await apply_action(cluster, room, PublishPlan("gpt-w0", uid, 0, samples.full_plan(2)))
            for action in (
                PublishPlan("gpt-w0", uid, 0, samples.full_plan(1)),  # slow: 2 is there already
                PublishPlan("gpt-w0", uid, 1, samples.full_plan(3)),  # saw another attempt
                PublishPlan("gpt-w0", "another-uid", 2, samples.full_plan(3)),
                PublishPlan("gpt-w9", uid, 2, samples.full_plan(3)),
            ):
                with pytest.raises(Stale):
                    await apply_action(cluster, room, action)
            annotations = space.server.call("GET", f"{space.pods}/gpt-w0")[1]["metadata"]["annotations"]
            assert annotations["everstep.dev/attempt"] == "2"
            await apply_action(cluster, room, PublishPlan("gpt-w0", uid, 2, samples.full_plan(3)))

    asyncio.run(test())


def test_r2_r21_only_the_pod_that_was_seen_is_deleted_and_it_gets_its_grace(space: Space) -> None:
    async def test() -> None:
        async with opened(space.server) as client:
            cluster = cluster_of(client)
            room = room_of(cluster, space.made_job(manifest()))
            await apply_action(cluster, room, CreatePod(0))
            meta = space.server.call("GET", f"{space.pods}/gpt-w0")[1]["metadata"]
            version = meta["resourceVersion"]
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": "gpt-w0"},
                "target": {"kind": "Node", "name": "n1"},
            }
            assert space.server.call("POST", f"{space.pods}/gpt-w0/binding", binding)[0] == 201
            with pytest.raises(Stale):
                await apply_action(cluster, room, DeletePod("gpt-w0", meta["uid"], version))  # it changed
            version = space.server.call("GET", f"{space.pods}/gpt-w0")[1]["metadata"]["resourceVersion"]
            with pytest.raises(Stale):
                await apply_action(cluster, room, DeletePod("gpt-w0", "another-uid", version))
            await apply_action(cluster, room, DeletePod("gpt-w0", meta["uid"], version))
            left = space.server.call("GET", f"{space.pods}/gpt-w0")[1]["metadata"]
            assert left["deletionGracePeriodSeconds"] == 30
            await apply_action(cluster, room, DeletePod("gpt-w0", left["uid"], left["resourceVersion"], force=True))
            await apply_action(cluster, room, DeletePod("gpt-w0", left["uid"], left["resourceVersion"]))  # gone is done
            assert space.server.call("GET", f"{space.pods}/gpt-w0")[0] == 404

    asyncio.run(test())


def test_r20_a_pod_that_is_ours_is_done_and_another_s_burns_the_id(space: Space) -> None:
    async def test() -> None:
        async with opened(space.server) as client:
            cluster = cluster_of(client)
            room = room_of(cluster, space.made_job(manifest()))
            await asyncio.gather(*(apply_action(cluster, room, CreatePod(0, avoid=("n1", "n2"))) for _ in range(2)))
            assert room.names_taken == set()
            made = space.server.call("GET", f"{space.pods}/gpt-w0")[1]["spec"]["affinity"]["nodeAffinity"]
            (term,) = made["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            assert term["matchExpressions"] == [
                {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}
            ]
            other = room_of(cluster, {**room.body, "metadata": {**room.body["metadata"], "uid": "made-anew"}})
            with pytest.raises(Stale, match="belongs to another"):
                await apply_action(cluster, other, CreatePod(0))
            assert other.names_taken == {0}
            assert len(space.server.call("GET", space.pods)[1]["items"]) == 1

    asyncio.run(test())


def test_r22_the_token_is_made_once_and_belongs_to_the_job(space: Space) -> None:
    async def test() -> None:
        async with opened(space.server) as client:
            cluster = cluster_of(client)
            room = room_of(cluster, space.made_job(manifest()))
            await apply_action(cluster, room, CreatePod(0))
            room.token.is_made = False  # as after a restart
            await apply_action(cluster, room, CreatePod(1))
            (secret,) = space.server.call("GET", f"/api/v1/namespaces/{space.name}/secrets")[1]["items"]
            assert secret["metadata"]["name"] == f"gpt-{room.uid[:8]}-token-{cluster.sidecars.key_id}"
            assert secret["metadata"]["ownerReferences"][0]["uid"] == room.uid

    asyncio.run(test())


def test_a_job_is_deleted_by_uid_when_its_time_is_over(space: Space) -> None:
    async def test() -> None:
        async with opened(space.server) as client:
            cluster = cluster_of(client)
            room = room_of(cluster, space.made_job(manifest()))
            another = room_of(cluster, {**room.body, "metadata": {**room.body["metadata"], "uid": "another"}})
            with pytest.raises(Stale):
                await apply_action(cluster, another, DeleteJob())
            await apply_action(cluster, room, DeleteJob())
            await apply_action(cluster, room, DeleteJob())
            assert space.server.call("GET", f"{space.jobs}/gpt")[0] == 404

    asyncio.run(test())


def test_all_errors_of_a_template_are_told_before_any_pod_is_made(space: Space) -> None:
    async def test() -> None:
        container = {
            "name": "trainer",
            "image": "",
            "command": ["python", "t.py"],
            "volumeMounts": [{"name": "none", "mountPath": "/d"}],
        }
        body = manifest(template={"spec": {"containers": [container], "colour": "red"}})
        async with opened(space.server) as client:
            cluster = cluster_of(client)
            room = room_of(cluster, space.made_job(body))
            (problem,) = await problems_of(cluster, room, room.parsed(), JobStatus())
            assert 'unknown field "spec.colour"' in problem
            del container["volumeMounts"]
            good = manifest("other", template={"spec": {"containers": [{**container, "image": "i:1"}]}})
            room = room_of(cluster, space.made_job(good))
            assert await problems_of(cluster, room, room.parsed(), JobStatus()) == ()
            assert space.server.call("GET", space.pods)[1]["items"] == []

    asyncio.run(test())


def test_r21_a_claim_for_one_node_is_refused_for_more_than_one_worker(space: Space) -> None:
    claim = {
        "metadata": {"name": "checkpoints"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    assert space.server.call("POST", f"/api/v1/namespaces/{space.name}/persistentvolumeclaims", claim)[0] == 201

    async def test() -> None:
        async with opened(space.server) as client:
            cluster = cluster_of(client)
            room = room_of(cluster, space.made_job(manifest()))
            (problem,) = await problems_of(cluster, room, room.parsed(), JobStatus())
            assert problem.startswith("spec.checkpoint.storage.persistentVolumeClaim.claimName: claim checkpoints has")
            single = room_of(cluster, space.made_job(manifest("one", workers={"max": 1})))
            assert await problems_of(cluster, single, single.parsed(), JobStatus()) == ()

    asyncio.run(test())


def test_an_event_that_cannot_be_posted_stops_nothing(space: Space) -> None:
    async def test() -> None:
        async with opened(space.server) as client:
            room = room_of(cluster_of(client), space.made_job(manifest()))
            room.namespace = "no-such-namespace"
            await post_event(client, room, Notice("Warning", "X", "y" * 5000))

    asyncio.run(test())
