"""The sidecar's client against the sidecar's server, on a real socket, over restarts of the server."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from aiohttp import web
from everstep_protocol import auth
from everstep_protocol.messages import Ack, Peer, Ping
from everstep_sidecar.client import Client, Refused, Unanswered
from everstep_sidecar.guard import GuardedPort
from everstep_sidecar.server import Identity, Rejected, Route, Server
from loopback import address

HANG = 20.0
TOKEN = "token"


class Asked:
    """A sidecar's server that counts what it is asked; `refusal` is what it answers, if set."""

    def __init__(self) -> None:
        self.pings: list[int] = []
        self.refusal: Rejected | None = None

    def application(self) -> web.Application:
        routes = {"/v1/ping": Route(Ping, self._ping, "job")}
        return Server(
            Identity(TOKEN, "job", "uid"), routes, is_member=lambda uid: True, highest=lambda: 7, status=dict
        ).application()

    async def _ping(self, sender: str, ping: Ping) -> Ack:
        self.pings.append(ping.highest)
        if self.refusal is not None:
            raise self.refusal
        return Ack(7)


async def _listen(asked: Asked, port: int) -> tuple[GuardedPort, int]:
    guarded = GuardedPort(asked.application(), is_member=lambda address: False)
    await guarded.start(address(1), port)
    assert guarded._server is not None
    return guarded, guarded._server.sockets[0].getsockname()[1]


def _run(test: Any) -> None:
    async def bounded() -> None:
        asked, heard = Asked(), []
        guarded, port = await _listen(asked, 0)
        client = Client(
            token=TOKEN, job_uid="job", own_uid="me", port=port, on_highest=heard.append, source_ip=address(1)
        )
        await client.start()
        try:
            await asyncio.wait_for(test(asked, client, guarded, port), HANG)
            assert set(heard) <= {7}
        finally:
            await client.close()

    asyncio.run(bounded())


def test_r22_a_restart_of_the_asked_is_not_noticed() -> None:
    async def test(asked: Asked, client: Client, guarded: GuardedPort, port: int) -> None:
        for start in (0, 10, 20):
            numbers = range(start, start + 5)
            answers = [client.post(Peer("uid", address(1)), "/v1/ping", Ping(n), Ack) for n in numbers]
            assert await asyncio.gather(*answers) == [Ack(7)] * 5
            assert sorted(asked.pings[-5:]) == list(numbers)
            await guarded.close()
            guarded, _ = await _listen(asked, port)
        assert len(asked.pings) == 15
        await guarded.close()

    _run(test)


def test_r22_a_request_is_repeated_once_and_no_more() -> None:
    async def test(asked: Asked, client: Client, guarded: GuardedPort, port: int) -> None:
        asked.refusal = Rejected(auth.OTHER_BOOT, "for ever")
        with pytest.raises(Refused, match="for ever"):
            await client.post(Peer("uid", address(1)), "/v1/ping", Ping(0), Ack)
        assert asked.pings == [0]  # the first contact was refused before it got there
        await guarded.close()

    _run(test)


def test_st16_an_answer_without_end_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(asked: Asked, client: Client, guarded: GuardedPort, port: int) -> None:
        await guarded.close()
        async with await asyncio.start_server(_answer_without_end, address(1), port):
            with pytest.raises(Unanswered, match="the answer has more than"):
                await client.post(Peer("uid", address(1)), "/v1/ping", Ping(0), Ack, seconds=5.0)

    monkeypatch.setattr(auth, "LARGEST_ANSWER_BYTES", 1 << 20)
    _run(test)


async def _answer_without_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        for _ in range(64):  # 4 MiB, then nothing more
            writer.write(b"x" * 65536)
            await writer.drain()
        while await reader.read(1000):
            pass
    writer.close()
