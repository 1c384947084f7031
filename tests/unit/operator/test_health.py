"""Metrics and health are there on every address of the pod, of whichever family."""

from __future__ import annotations

import socket

import aiohttp
import pytest
from everstep_operator.health import Health
from everstep_operator.settings import parse_settings
from prometheus_client import CollectorRegistry
from unit.operator.small_api import run


def free_port() -> int:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
def test_both_families(address: str) -> None:
    async def test() -> None:
        host = parse_settings({}, identity="me").health_host
        health = Health(host, port := free_port(), CollectorRegistry(), alive=list, ready=lambda: ["not yet"])
        await health.start()
        try:
            async with aiohttp.ClientSession() as session:
                for path, status in (("healthz", 200), ("readyz", 503), ("metrics", 200)):
                    async with session.get(f"http://{address}:{port}/{path}") as answer:
                        assert answer.status == status
        finally:
            await health.stop()

    run(test)
