"""A small asynchronous client of the Kubernetes API for benchmarks: as many calls at a time as are asked for, raw JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

Raw = dict[str, Any]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
_LONGEST_LINE_BYTES = 16 << 20


class Refused(Exception):
    """An answer of 400 or more."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:300]}")
        self.status = status


class Api:
    """Use it as `async with`."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token

    async def __aenter__(self) -> Api:
        connector = aiohttp.TCPConnector(limit=64, ssl=False)
        headers = {"Authorization": f"Bearer {self._token}"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        self._session = aiohttp.ClientSession(
            connector=connector, headers=headers, timeout=timeout, read_bufsize=_LONGEST_LINE_BYTES
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Raw:
        """The answer's JSON. Raises Refused."""
        data = None if body is None else json.dumps(body).encode()
        async with self._session.request(method, self._url + path, data=data, headers={"Content-Type": kind}) as answer:
            raw = await answer.read()
            if answer.status >= 400:
                raise Refused(answer.status, raw.decode(errors="replace"))
            return json.loads(raw) if raw else {}

    async def text(self, path: str) -> str:
        """An answer that is no JSON: metrics."""
        async with self._session.get(self._url + path) as answer:
            return await answer.text()

    async def watch(self, path: str) -> AsyncIterator[Raw]:
        """Events for ever; begins again with all objects where the server ends it."""
        while True:
            async with self._session.get(f"{self._url}{path}?watch=true") as answer:
                rest = b""
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        if line:
                            yield json.loads(line)
