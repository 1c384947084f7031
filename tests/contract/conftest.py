"""One API server for all contract tests, one namespace a test."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kopf
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from everstep_operator.api import crd
from everstep_operator.cluster import rbac
from everstep_operator.cluster.client import Client
from everstep_operator.cluster.connection import Credentials
from kube import ApiServer, find_programs

Raw = dict[str, Any]

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@dataclass(frozen=True)
class Space:
    """A namespace of one test."""

    server: ApiServer
    name: str

    @property
    def jobs(self) -> str:
        return f"/apis/everstep.dev/v1alpha1/namespaces/{self.name}/trainingjobs"

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.name}/pods"

    def create_job(self, body: Raw) -> tuple[int, Raw]:
        """fieldValidation=Strict, as kubectl asks."""
        return self.server.call("POST", f"{self.jobs}?fieldValidation=Strict", body)

    def made_job(self, body: Raw) -> Raw:
        status, answer = self.create_job(body)
        assert status == 201, answer
        return answer


def manifest(name: str = "gpt", **spec: Any) -> Raw:
    """A small job that the API server accepts."""
    return {
        "apiVersion": "everstep.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "workers": {"min": 2, "max": 4},
            "template": {"spec": {"containers": [{"name": "trainer", "image": "i:1", "command": ["python", "t.py"]}]}},
            "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "checkpoints"}}},
            **spec,
        },
    }


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path_factory.mktemp("api"), *find_programs())
    try:
        made.start()
        _install(made)
        yield made
    finally:
        made.stop()


@pytest.fixture
def space(server: ApiServer, request: pytest.FixtureRequest) -> Space:
    name = f"t{abs(hash(request.node.nodeid)) % 10**8}-{time.monotonic_ns() % 10**6}"
    status, answer = server.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    assert status == 201, answer
    return Space(server, name)


@asynccontextmanager
async def opened(server: ApiServer) -> AsyncIterator[Client]:
    """The operator's own client."""
    client = Client(Credentials(kopf.ConnectionInfo(server=server.url, token=server.token, insecure=True)))
    await client.open()
    try:
        yield client
    finally:
        await client.close()


async def until(holds: Callable[[], bool], limit_seconds: float = 60.0) -> None:
    """Wait for what must come."""

    async def wait() -> None:
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    await asyncio.wait_for(wait(), limit_seconds)


def grant(server: ApiServer, rules: tuple[rbac.Rule, ...], namespace: str = "") -> None:
    """Give the operator's user these rights, in one namespace or everywhere."""
    kind, root = ("Role", f"/namespaces/{namespace}/roles") if namespace else ("ClusterRole", "/clusterroles")
    name = f"everstep-{len(rules)}-{rules[0][1].replace('/', '-')}"
    document: Raw = {
        "metadata": {"name": name},
        "rules": [
            {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)} for group, resource, verbs in rules
        ],
    }
    binding: Raw = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "everstep"}],
    }
    base = "/apis/rbac.authorization.k8s.io/v1"
    for path, body in ((f"{base}{root}", document), (f"{base}{root.replace('roles', 'rolebindings')}", binding)):
        status, answer = server.call("POST", path, body)
        assert status == 201, answer


def _install(server: ApiServer) -> None:
    status, answer = server.call("POST", DEFINITIONS, crd.build_crd())
    assert status == 201, answer
    deadline = time.monotonic() + 30
    while server.call("GET", "/apis/everstep.dev/v1alpha1/trainingjobs")[0] != 200:
        assert time.monotonic() < deadline, "the definition is not served"
        time.sleep(0.05)
    _create_namespace(server, "kube-node-lease")
    grant(server, rbac.IN_JOB_NAMESPACES)
    grant(server, rbac.CLUSTER_WIDE)
    grant(server, rbac.IN_KUBE_NODE_LEASE, "kube-node-lease")


def _create_namespace(server: ApiServer, name: str) -> None:
    """The API server makes its own ones some seconds after its start."""
    status, answer = server.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    assert status in (201, 409), answer
