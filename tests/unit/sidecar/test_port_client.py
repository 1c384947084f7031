"""The sidecar's client against the sidecar's server, on a real socket, over restarts of the server."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from everstep_protocol import auth
from everstep_protocol.messages import Ack, Announce, Peer, Ping
from everstep_protocol.plan import Member
from everstep_sidecar import server
from everstep_sidecar.client import Client, Refused, Unanswered
from everstep_sidecar.guard import GuardedPort
from everstep_sidecar.server import PLAN_BODY_BYTES, Identity, Rejected, Route, Server
from hang_limit import hang_seconds
from loopback import address
from unit.sidecar.test_sidecar_core import PLAN

HANG = hang_seconds(20.0)
TOKEN = "token"


class Asked:
    """A sidecar's server that counts what it is asked; `refusal` is what it answers, if set."""

    def __init__(self) -> None:
        self.pings: list[int] = []
        self.announced: list[Announce] = []
        self.refusal: Rejected | None = None

    def application(self) -> web.Application:
        routes = {
            "/v1/ping": Route(Ping, self._ping, "job"),
            "/v1/announce": Route(Announce, self._announce, "job", PLAN_BODY_BYTES),
        }
        return Server(
            Identity(TOKEN, "job", "uid"), routes, is_member=lambda uid: True, highest=lambda: 7, status=dict
        ).application()

    async def _ping(self, sender: str, ping: Ping) -> Ack:
        self.pings.append(ping.highest)
        if self.refusal is not None:
            raise self.refusal
        return Ack(7)

    async def _announce(self, sender: str, announce: Announce) -> Ack:
        self.announced.append(announce)
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


@pytest.mark.parametrize("num_members", [1_000, 20_000])
def test_r22_a_first_contact_with_a_large_body_is_heard(num_members: int) -> None:
    """The asked has not proven the caller when it says its boot id, and does not read what comes after the head."""
    members = tuple(Member(n, f"uid-{n:032}", f"10.0.{n % 250}.1", f"node-{n}", (n, n + 1)) for n in range(num_members))
    announce = Announce(1, replace(PLAN, members=members))

    async def test(asked: Asked, client: Client, guarded: GuardedPort, port: int) -> None:
        for _ in range(3):
            assert await client.post(Peer("uid", address(1)), "/v1/announce", announce, Ack, seconds=HANG) == Ack(7)
            await guarded.close()
            guarded, _ = await _listen(asked, port)
        assert asked.announced == [announce] * 3
        await guarded.close()

    _run(test)


@pytest.mark.parametrize(
    "name", [auth.HEADER_SENDER, auth.HEADER_NONCE, auth.HEADER_SIGNATURE, auth.HEADER_BODY_SHA256]
)
@pytest.mark.parametrize("value", [b"\xff\xfe", b"\xed\xa0\x80", "\u00e9".encode()])
def test_st16_headers_that_are_no_text_are_a_strangers(
    name: str, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(asked: Asked, client: Client, guarded: GuardedPort, port: int) -> None:
        head = auth.new_post("/v1/ping", b"{}", job="job", sender="me", recipient="uid", boot="")
        headers = {key: text.encode() for key, text in head.headers("another token").items()} | {name: value}
        reader, writer = await asyncio.open_connection(address(1), port)
        lines = [b"%s: %s" % (key.encode(), text) for key, text in headers.items()]
        writer.write(b"\r\n".join([b"POST /v1/ping HTTP/1.1", b"Host: a", b"Content-Length: 2", *lines, b"", b"{}"]))
        assert (await reader.readline()).split()[1] == b"401"
        writer.close()
        await guarded.close()

    _run(test)
    assert "Traceback" not in caplog.text


def test_r22_an_answer_of_another_pod_at_that_address_does_not_count() -> None:
    async def test(asked: Asked, client: Client, guarded: GuardedPort, port: int) -> None:
        with pytest.raises(Unanswered, match="not signed by pod another"):
            await client.post(Peer("another", address(1)), "/v1/ping", Ping(0), Ack)
        await guarded.close()

    _run(test)


def test_r22_a_request_of_another_job_is_a_strangers() -> None:
    async def test(asked: Asked, client: Client, guarded: GuardedPort, port: int) -> None:
        other = Client(
            token=TOKEN, job_uid="another", own_uid="me", port=port, on_highest=lambda _: None, source_ip=address(1)
        )
        await other.start()
        with pytest.raises(Unanswered, match="401"):
            await other.post(Peer("uid", address(1)), "/v1/ping", Ping(0), Ack)
        await other.close()
        await guarded.close()
        assert asked.pings == []

    _run(test)


def test_st16_a_body_that_does_not_come_is_waited_for_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(asked: Asked, client: Client, guarded: GuardedPort, port: int) -> None:
        with pytest.raises(Refused):  # it says its boot id
            await client.post(Peer("uid", address(1)), "/v1/nothing", Ping(0), Ack)
        boot = client._boots.of("uid")
        head = auth.new_post("/v1/ping", b"{}", job="job", sender="me", recipient="uid", boot=boot)
        reader, writer = await asyncio.open_connection(address(1), port)
        lines = [f"{name}: {value}" for name, value in head.headers(TOKEN).items()]
        writer.write("\r\n".join(["POST /v1/ping HTTP/1.1", "Host: a", "Content-Length: 2", *lines, "", ""]).encode())
        assert (await reader.readline()).split()[1] == b"408"
        writer.close()
        await guarded.close()

    monkeypatch.setattr(server, "BODY_SECONDS", 0.05)
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
