"""Strangers who do their worst to one port, until this process is ended: `python hostile.py <ip> <port>`.

Prints `all were closed` once every one of the connections was ended by the other side (those that reconnect for ever: came often enough).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import Awaitable, Callable

OF_A_KIND = 40
LARGE = 4 << 20
POST = b"POST /v1/poll HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % LARGE
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def drip(writer: asyncio.StreamWriter, first: bytes, more: bytes, seconds: float) -> None:
    writer.write(first)
    while True:
        writer.write(more)
        await writer.drain()
        await asyncio.sleep(seconds)


async def silent(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


async def slow_headers(writer: asyncio.StreamWriter) -> None:
    await drip(writer, b"POST /v1/poll HTTP/1.1\r\n", b"X-More: a\r\n", 0.5)


async def endless_headers(writer: asyncio.StreamWriter) -> None:
    await drip(writer, b"POST /v1/poll HTTP/1.1\r\n", b"X-More: " + b"a" * 1000 + b"\r\n", 0.0)


async def endless_header(writer: asyncio.StreamWriter) -> None:
    await drip(writer, b"POST /v1/poll HTTP/1.1\r\nX-More: ", b"a" * 1000, 0.0)


async def slow_body(writer: asyncio.StreamWriter) -> None:
    await drip(writer, POST, b"x" * 1000, 0.1)


async def body_at_once(writer: asyncio.StreamWriter) -> None:
    await drip(writer, POST, b"x" * LARGE, 0.5)


async def unread_answers(writer: asyncio.StreamWriter) -> None:
    await drip(writer, b"", b"GET /status HTTP/1.1\r\nHost: a\r\n\r\n" * 100, 0.01)


async def garbage(writer: asyncio.StreamWriter) -> None:
    await drip(writer, b"", os.urandom(1000) + b"\r\n\r\n", 0.01)


KINDS = (silent, slow_headers, endless_headers, endless_header, slow_body, body_at_once, unread_answers, garbage)


class Crowd:
    """All connections."""

    def __init__(self, ip: str, port: int) -> None:
        self._ip = ip
        self._port = port
        self._numbers = itertools.count()
        self._closed = [0] * (OF_A_KIND * (len(KINDS) + 1))

    async def run(self) -> None:
        kinds: list[Callable[[asyncio.StreamWriter], Awaitable[None]] | None] = [*KINDS, None]
        tasks = [asyncio.create_task(self._come_again(kind)) for kind in kinds for _ in range(OF_A_KIND)]
        while not all(self._closed):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        print("all were closed", flush=True)
        await asyncio.gather(*tasks)

    async def _come_again(self, act: Callable[[asyncio.StreamWriter], Awaitable[None]] | None) -> None:
        """The even ones come from one address, each of the others from its own."""
        number = next(self._numbers)
        source = "127.9.0.1" if number % 2 == 0 else f"127.9.1.{number % 250 + 1}"
        while True:
            with contextlib.suppress(OSError):
                streams = await asyncio.open_connection(self._ip, self._port, local_addr=(source, 0), limit=1 << 12)
                await self._act(streams, act)
                self._closed[number] += 1
            await asyncio.sleep(0.02)

    async def _act(self, streams: Streams, act: Callable[[asyncio.StreamWriter], Awaitable[None]] | None) -> None:
        reader, writer = streams
        try:
            if act is not None:
                acting = asyncio.ensure_future(act(writer))
                ended = asyncio.create_task(self._until_closed(reader, is_reading=act is not unread_answers))
                await asyncio.wait((acting, ended), return_when=asyncio.FIRST_COMPLETED)
                for task in (acting, ended):
                    task.cancel()
                await asyncio.gather(acting, ended, return_exceptions=True)
        finally:
            writer.transport.abort()

    async def _until_closed(self, reader: asyncio.StreamReader, *, is_reading: bool) -> None:
        while not (is_reading or reader.at_eof()):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        with contextlib.suppress(OSError):
            while await reader.read(1 << 12):
                pass


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Crowd(sys.argv[1], int(sys.argv[2])).run())
