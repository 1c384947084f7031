"""/healthz, /readyz and /metrics of the operator."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

Check = Callable[[], list[str]]  # what is wrong, a sentence each; empty: all is well


class Health:
    """One small HTTP server in the operator's own loop, so that an answer also proves that the loop is alive.

    An empty host is every address there is, of either family: clusters may have pods with IPv6 alone.
    """

    def __init__(self, host: str, port: int, registry: CollectorRegistry, *, alive: Check, ready: Check) -> None:
        self._address = (host, port)
        self._registry = registry
        self._alive = alive
        self._ready = ready
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None)
        await self._runner.setup()
        host, port = self._address
        await web.TCPSite(self._runner, host or None, port).start()

    async def stop(self) -> None:
        """Listen no more."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:
        return _answer(self._alive())

    async def _readyz(self, request: web.Request) -> web.Response:
        return _answer(self._ready())

    async def _metrics(self, request: web.Request) -> web.Response:
        text = generate_latest(self._registry)
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _answer(problems: list[str]) -> web.Response:
    return web.Response(text="; ".join(problems) or "ok", status=503 if problems else 200)
