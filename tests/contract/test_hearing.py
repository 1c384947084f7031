"""CL3, CL12: what the operator hears of: a namespace that is not there costs the others nothing, a definition may come late."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from conftest import DEFINITIONS, Space, grant, manifest
from everstep_operator.api import crd
from everstep_operator.cluster import rbac
from kube import ApiServer, find_programs
from test_operator_process import Job, Runs, condition

Raw = dict[str, Any]
JSON_PATCH = "application/json-patch+json"


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[ApiServer]:
    """An API server of this test's own, without the definition, and without rights in any namespace."""
    made = ApiServer(tmp_path / "api", *find_programs())
    try:
        made.start()
        for namespace in ("one", "two", "kube-node-lease"):
            made.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        grant(made, rbac.CLUSTER_WIDE)
        grant(made, rbac.IN_KUBE_NODE_LEASE, "kube-node-lease")
        grant(made, rbac.IN_OWN_NAMESPACE, "one")
        grant(made, rbac.IN_JOB_NAMESPACES, "one")
        yield made
    finally:
        made.stop()


async def readiness(runs: Runs) -> str:
    url = f"http://127.0.0.1:{runs.health_port}/readyz"
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return await answer.text()
    except aiohttp.ClientConnectionError:
        return ""


async def said(runs: Runs, words: str) -> None:
    while words not in (text := await readiness(runs)):
        assert not runs.is_dead, text
        await asyncio.sleep(0.1)


async def until_refused(space: Space) -> None:
    """New jobs are made until one is refused its status: the API server takes a moment to serve another definition."""
    for number in itertools.count():
        name = f"old-{number}"
        space.made_job({**manifest(suspend=True), "metadata": {"name": name}})
        try:
            job = Job(space, name=name)
            await job.until(lambda status: condition(status, "Suspended").get("status") == "True", 3.0)
        except asyncio.TimeoutError:
            return


def test_a_definition_that_comes_late_and_a_namespace_that_comes_and_goes(bare: ApiServer, tmp_path: Path) -> None:
    one, two = Space(bare, "one"), Space(bare, "two")
    suspended = manifest(suspend=True)

    async def served(space: Space) -> None:
        await Job(space).until(lambda status: condition(status, "Suspended").get("status") == "True")

    async def test() -> None:
        runs = Runs(one, tmp_path, namespaces="one,two")
        runs.start()
        try:
            await said(runs, "install the CustomResourceDefinition")
            assert bare.call("POST", DEFINITIONS, crd.build_crd())[0] == 201
            while one.create_job(suspended)[0] != 201:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            await served(one)
            await said(runs, "trainingjobs in namespace two cannot be listed: trainingjobs.everstep.dev is forbidden")
            grant(bare, rbac.IN_JOB_NAMESPACES, "two")
            two.made_job(suspended)
            await served(two)
            await said(runs, "ok")

            older = crd.build_crd()
            del older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"][
                "accepted"
            ]
            definition = f"{DEFINITIONS}/{older['metadata']['name']}"
            assert (
                bare.call(
                    "PATCH", definition, [{"op": "replace", "path": "/spec", "value": older["spec"]}], JSON_PATCH
                )[0]
                == 200
            )
            await until_refused(two)
            await said(runs, "does not know status.accepted: it is older than the operator")
            newer = [{"op": "replace", "path": "/spec", "value": crd.build_crd()["spec"]}]
            assert bare.call("PATCH", definition, newer, JSON_PATCH)[0] == 200
            await said(runs, "ok")

            role = "/apis/rbac.authorization.k8s.io/v1/namespaces/two/rolebindings"
            assert bare.call("DELETE", role)[0] == 200  # as with a namespace that is deleted
            await said(runs, "trainingjobs in namespace two cannot be listed")
            one.made_job({**suspended, "metadata": {"name": "another"}})
            await Job(dataclasses.replace(one), name="another").until(
                lambda status: condition(status, "Suspended").get("status") == "True"
            )
            assert runs.stop() == 0
        finally:
            if not runs.is_dead:
                runs.kill()

    asyncio.run(asyncio.wait_for(test(), 240))
