"""CL8: namespaces with rules on sizes: what refuses our own containers names the setting, and the setting makes them pass."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from conftest import Space, manifest, opened
from everstep_operator.cluster.apply import apply_action
from everstep_operator.cluster.check import problems_of
from everstep_operator.cluster.client import Client, Refused
from everstep_operator.core.model import CreatePod, JobStatus
from test_writes import cluster_of, room_of

Raw = dict[str, Any]
PLAIN = {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"cpu": "2", "memory": "8Gi"}}
QUOTA = {"limits.cpu": "64", "limits.memory": "256Gi"}
RULES: dict[str, tuple[Raw, dict[str, str]]] = {
    "a quota on limits": ({}, {"sidecar_cpu_limit": "1", "sidecar_memory_limit": "1Gi"}),
    "a default limit below the request": (
        {"default": {"cpu": "200m"}, "defaultRequest": {"cpu": "100m"}},
        {"sidecar_cpu_limit": "250m"},
    ),
    "a minimum above the request": ({"min": {"cpu": "500m"}}, {"sidecar_cpu": "500m", "sidecar_cpu_limit": "500m"}),
    "a ratio of limit to request": ({"maxLimitRequestRatio": {"cpu": "1"}}, {"sidecar_cpu_limit": "250m"}),
}


def impose(space: Space, rule: Raw) -> None:
    if rule:
        body: Raw = {"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container", **rule}]}}
        assert space.server.call("POST", f"/api/v1/namespaces/{space.name}/limitranges", body)[0] == 201
        return
    path = f"/api/v1/namespaces/{space.name}/resourcequotas"
    assert space.server.call("POST", path, {"metadata": {"name": "q"}, "spec": {"hard": QUOTA}})[0] == 201
    counted = {"status": {"hard": QUOTA, "used": dict.fromkeys(QUOTA, "0")}}  # what a controller of Kubernetes does
    assert space.server.call("PATCH", f"{path}/q/status", counted, "application/merge-patch+json")[0] == 200


def job() -> Raw:
    container = {"name": "trainer", "image": "i:1", "command": ["python", "t.py"], "resources": PLAIN}
    return manifest(template={"spec": {"containers": [container]}})


@pytest.mark.parametrize("rule", RULES)
def test_the_refusal_names_the_setting_and_the_setting_helps(space: Space, rule: str) -> None:
    async def problems(client: Client, **sizes: str) -> tuple[str, ...]:
        cluster = cluster_of(client)
        pods = dataclasses.replace(cluster.settings.pods, **sizes)  # type: ignore[arg-type]
        cluster.settings = dataclasses.replace(cluster.settings, pods=pods)
        room = room_of(cluster, body)
        found = await problems_of(cluster, room, room.parsed(), JobStatus())
        try:
            await apply_action(cluster, room, CreatePod(0))
        except Refused:
            assert found, "what is refused is refused beforehand"
        else:
            assert not found
        return found

    async def test() -> None:
        async with opened(space.server) as client:
            (found,) = await problems(client)
            assert "the chart's values sidecar.resources and sidecar.limits" in found
            assert await problems(client, **RULES[rule][1]) == ()

    impose(space, RULES[rule][0])
    body = space.made_job(job())
    asyncio.run(test())
