"""A few answers of an API server on a real socket, for what a real one does only when it is ill."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import kopf
from aiohttp import web
from everstep_operator.cluster.client import Client
from everstep_operator.cluster.connection import Credentials
from hang_limit import hang_seconds

Raw = dict[str, Any]
HANG_SECONDS = hang_seconds(20.0)


def refusal(code: int, reason: str, message: str) -> web.Response:
    """A Status object, as the API server says no."""
    return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": message}, status=code)


@asynccontextmanager
async def talking_to(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], kind: type[Client] = Client
) -> AsyncIterator[Client]:
    """A client of a server that answers everything with `handler`."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return await handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    client = kind(Credentials(kopf.ConnectionInfo(server=f"http://{host}:{port}")))
    await client.open()
    try:
        yield client
    finally:
        await client.close()
        await runner.cleanup()


def run(test: Callable[[], Awaitable[None]]) -> None:
    """With a hang limit."""
    asyncio.run(asyncio.wait_for(test(), HANG_SECONDS))  # type: ignore[arg-type]


async def hangs(request: web.Request) -> web.StreamResponse:
    """An answer that does not come."""
    await asyncio.sleep(60.0)
    return web.json_response({})
