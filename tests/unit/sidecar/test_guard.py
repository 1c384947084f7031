"""ST16: what a connection may cost before it is proven, on real sockets; the time for proof is short here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
from aiohttp import web
from everstep_sidecar import guard
from everstep_sidecar.core.unproven import STRANGERS
from hang_limit import hang_seconds
from unit.sidecar.test_sidecar_core import PLAN

HANG = hang_seconds(20.0)
PROOF_SECONDS = 0.1
GET = b"GET /open HTTP/1.1\r\nHost: a\r\n\r\n"
PROVE = b"GET /proof HTTP/1.1\r\nHost: a\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Port:
    """A guarded port whose callers prove themselves by asking for /proof."""

    def __init__(self) -> None:
        application = web.Application()
        application.router.add_get("/open", self._answer)
        application.router.add_get("/proof", self._prove)
        self.members: set[str] = set()
        self.guarded = guard.GuardedPort(application, is_member=lambda address: address in self.members)
        self.number = 0

    async def _answer(self, request: web.Request) -> web.Response:
        return web.Response(text="open")

    async def _prove(self, request: web.Request) -> web.Response:
        guard.prove(request.transport)
        return web.Response(text="proven")

    async def connect(self, source: str = "127.0.0.1") -> Streams:
        return await asyncio.open_connection("127.0.0.1", self.number, local_addr=(source, 0))


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[Port]:
    port = Port()
    await port.guarded.start("127.0.0.1", 0)
    assert port.guarded._server is not None
    port.number = port.guarded._server.sockets[0].getsockname()[1]
    try:
        yield port
    finally:
        await port.guarded.close()


def run(test: Callable[[Port], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with listening() as port:
            await asyncio.wait_for(test(port), HANG)

    asyncio.run(bounded())


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "PROOF_SECONDS", PROOF_SECONDS)


async def answer(streams: Streams, request: bytes) -> bytes:
    reader, writer = streams
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


async def until_closed(streams: Streams) -> None:
    with contextlib.suppress(ConnectionError):
        while await streams[0].read(1000):
            pass


async def until_held(port: Port, number: int) -> None:
    while len(port.guarded.unproven) != number:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def pass_deadlines(port: Port) -> None:
    """Three strangers, one after the other, have had their time."""
    for _ in range(3):
        await until_closed(await port.connect("127.0.0.99"))


BEGUN = {
    "nothing": b"",
    "some headers": b"GET /open HTTP/1.1\r\nHost",
    "a body that does not come": b"POST /open HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
}


@pytest.mark.parametrize("said", BEGUN.values(), ids=BEGUN)
def test_a_stranger_has_its_time(said: bytes) -> None:
    async def test(port: Port) -> None:
        streams = await port.connect()
        streams[1].write(said)
        await until_closed(streams)

    run(test)


def test_r25_a_members_silent_connection_stays_open() -> None:
    async def test(port: Port) -> None:
        port.members.add("127.0.0.2")
        reader, _ = await port.connect("127.0.0.2")
        await pass_deadlines(port)
        assert len(port.guarded.unproven) == 1
        assert not reader.at_eof()

    run(test)


@pytest.mark.parametrize(
    ("planned", "seen", "is_member"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("FD00:0::0:1", "fd00::1", True),
        ("fd00::1", "fd00::2", False),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "", False),
    ],
)
def test_r25_a_members_address_has_many_spellings(planned: str, seen: str, is_member: bool) -> None:
    plan = replace(PLAN, members=(replace(PLAN.members[0], ip=planned),))
    assert guard.PlanAddresses(lambda: plan).has(seen) is is_member
    assert not guard.PlanAddresses(lambda: None).has(seen)


def test_r25_who_becomes_a_member_in_time_stays_and_who_is_none_any_more_goes() -> None:
    async def test(port: Port) -> None:
        streams = await port.connect("127.0.0.2")
        port.members.add("127.0.0.2")
        await pass_deadlines(port)
        assert not streams[0].at_eof()
        port.members.clear()
        await until_closed(streams)

    run(test)


def test_a_member_that_begins_to_speak_has_its_time_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(port: Port) -> None:
        port.members.add("127.0.0.2")
        streams = await port.connect("127.0.0.2")
        await until_held(port, 1)
        monkeypatch.setattr(guard, "PROOF_SECONDS", PROOF_SECONDS)
        streams[1].write(BEGUN["some headers"])
        await until_closed(streams)

    monkeypatch.setattr(guard, "PROOF_SECONDS", 2 * HANG)
    run(test)


def test_who_is_proven_stays_and_counts_no_more() -> None:
    async def test(port: Port) -> None:
        streams = await port.connect()
        assert b"Connection: close" not in await answer(streams, PROVE)
        await pass_deadlines(port)
        assert len(port.guarded.unproven) == 0
        assert (await answer(streams, GET)).endswith(b"open")

    run(test)


def test_a_proven_connection_that_nobody_uses_any_more_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(port: Port) -> None:
        streams = await port.connect()
        await answer(streams, PROVE)
        await until_closed(streams)

    monkeypatch.setattr(guard, "KEPT_SECONDS", 0.05)
    run(test)


def test_a_body_that_is_not_wanted_is_thrown_away_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(port: Port) -> None:
        streams = await port.connect()
        assert b"Connection: close" in await answer(streams, BEGUN["a body that does not come"])
        await until_closed(streams)

    monkeypatch.setattr(guard, "PROOF_SECONDS", 2 * HANG)
    monkeypatch.setattr(guard, "LINGERING_SECONDS", 0.05)
    run(test)


def test_a_stranger_gets_one_answer_and_is_told_so() -> None:
    async def test(port: Port) -> None:
        for request in (GET, b"GET /none HTTP/1.1\r\nHost: a\r\n\r\n", b"PUT /open HTTP/1.1\r\nHost: a\r\n\r\n"):
            streams = await port.connect()
            assert b"Connection: close" in await answer(streams, request)
            await until_closed(streams)

    run(test)


def test_a_stranger_cannot_say_much(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(port: Port) -> None:
        streams = await port.connect()
        streams[1].write(b"POST /open HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000000\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while not streams[0].at_eof():
                streams[1].write(b"x" * 10_000)
                await streams[1].drain()
                await asyncio.sleep(0)
        await until_closed(streams)

    monkeypatch.setattr(guard, "PROOF_SECONDS", 2 * HANG)
    monkeypatch.setattr(guard, "LINGERING_SECONDS", 2 * HANG)
    run(test)


def test_the_oldest_stranger_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(port: Port) -> None:
        first = await port.connect("127.0.0.3")
        crowd = [await port.connect("127.0.0.3") for _ in range(STRANGERS)]
        await until_closed(first)
        await until_held(port, STRANGERS)
        caller = await port.connect("127.0.0.4")
        more = [await port.connect("127.0.0.3") for _ in range(STRANGERS)]
        assert (await answer(caller, PROVE)).endswith(b"proven")
        for streams in crowd:
            await until_closed(streams)
        for _, writer in more:
            writer.close()

    monkeypatch.setattr(guard, "PROOF_SECONDS", 2 * HANG)
    run(test)


def test_a_wave_is_accepted_in_parts_that_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    held, worst = 0, 0

    class Counted(guard.GuardedConnection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            nonlocal held, worst
            super().connection_made(transport)
            held += 1
            worst = max(worst, held)

        def connection_lost(self, error: Exception | None) -> None:
            nonlocal held
            super().connection_lost(error)
            held -= 1

    async def test(port: Port) -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(600):  # this loop runs only when all of them wait in the kernel's queue
                stack.enter_context(socket.create_connection(("127.0.0.1", port.number), HANG))
            streams = await port.connect()
            await until_held(port, STRANGERS)
            assert (await answer(streams, PROVE)).endswith(b"proven")
        assert worst <= STRANGERS + 128

    monkeypatch.setattr(guard, "PROOF_SECONDS", 2 * HANG)
    monkeypatch.setattr(guard, "GuardedConnection", Counted)
    run(test)


@pytest.mark.parametrize("request_", [b"\x16\x03\x01 nonsense\r\n\r\n", b"GET /open HTTP/1.1\r\n" + b"a" * 9000])
def test_what_is_wrong_in_strangers_requests_does_not_fill_the_log(
    request_: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(port: Port) -> None:
        streams = await port.connect()
        streams[1].write(request_)
        await until_closed(streams)

    with caplog.at_level(logging.DEBUG):
        run(test)
    assert [record for record in caplog.records if record.exc_info] == []


def test_an_error_of_ours_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(port: Port, request: web.Request) -> web.Response:
        raise ValueError("ours")

    async def test(port: Port) -> None:
        assert b"500" in await answer(await port.connect(), GET)

    monkeypatch.setattr(Port, "_answer", fail)
    run(test)
    assert "ours" in caplog.text
