"""CL7: the root key is made in the cluster, once, whoever comes first; then it is only read."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import kopf
import pytest
from conftest import Space, grant, opened
from everstep_operator.cluster import rbac, tasks
from everstep_operator.cluster.backoff import Clock
from everstep_operator.cluster.client import Client
from everstep_operator.cluster.connection import Credentials
from everstep_operator.cluster.root_key import Unusable, find_root_key


def secrets_of(space: Space) -> Any:
    return space.server.call("GET", f"/api/v1/namespaces/{space.name}/secrets")[1]["items"]


def test_replicas_that_come_together_have_one_key(space: Space) -> None:
    async def test() -> None:
        async with opened(space.server) as client:
            keys = await asyncio.gather(*(find_root_key(client, space.name, "es-root-key", Clock()) for _ in range(5)))
            assert len(set(keys)) == 1
            assert len(keys[0]) == 64
            (secret,) = secrets_of(space)
            assert secret["metadata"]["name"] == "es-root-key"
            assert await find_root_key(client, space.name, "es-root-key", Clock()) == keys[0], "as after an upgrade"

    asyncio.run(test())


def test_a_right_that_comes_late_is_waited_for(space: Space) -> None:
    async def test() -> None:
        info = kopf.ConnectionInfo(server=space.server.url, token=space.server.operator_token, insecure=True)
        refused = asyncio.Event()
        client = Client(Credentials(info), lambda verb, code: refused.set())
        await client.open()
        try:
            finding = asyncio.create_task(find_root_key(client, space.name, "es-root-key", Clock()))
            await refused.wait()
            assert secrets_of(space) == []
            grant(space.server, rbac.IN_OWN_NAMESPACE, space.name)
            assert len(await asyncio.wait_for(finding, 60)) == 64
        finally:
            await tasks.end(finding)
            await client.close()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("data", "words"),
    [({}, "has 0 bytes"), ({"key": base64.b64encode(b"short").decode()}, "has 5 bytes, at least 16 are needed")],
)
def test_a_secret_without_a_key_is_told_and_not_replaced(space: Space, data: dict[str, str], words: str) -> None:
    path = f"/api/v1/namespaces/{space.name}/secrets"
    assert space.server.call("POST", path, {"metadata": {"name": "mine"}, "data": data})[0] == 201

    async def test() -> None:
        async with opened(space.server) as client:
            with pytest.raises(Unusable, match=words):
                await find_root_key(client, space.name, "mine", Clock())
        assert [secret.get("data", {}) for secret in secrets_of(space)] == [data]

    asyncio.run(test())
