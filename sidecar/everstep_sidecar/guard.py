"""Stands between the network and aiohttp: what a connection may cost before a signed request was heard on it.

A connection is *proven* by its first signed request (`prove`). Until then it may send little, gets one answer, and lives for seconds;
there is room for a bounded number, the oldest goes first. Only one thing stays open unproven: a connection from a member's address
on which nothing was ever sent; the kernels of peers watch this host over those (R25). aiohttp hears of a connection with its first byte.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import resource
import socket
from collections.abc import Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from everstep_protocol.plan import Plan

from everstep_sidecar.core.unproven import Unproven
from everstep_sidecar.sockets import keep_alive

PROOF_SECONDS = 10.0  # from the connect, or from a member's first byte, to a signed request
KEPT_SECONDS = 75.0  # a proven connection between two requests; longer than any client of ours keeps one
ACCEPTED_AT_ONCE = 32  # before those that they displace are closed
WAITING_AT_MOST = 1024  # in the kernel's queue: a thousand members may come at the same moment
READ_BYTES = 16 << 10
UNPROVEN_BYTES = 128 << 10  # headers, and what comes of the body while they are judged
LINGERING_SECONDS = 1.0  # a body that is not wanted is thrown away for so long, that the answer may be read
LINE_BYTES = 1024
HEADER_BYTES = 2048
NUM_HEADERS = 48


class PlanAddresses:
    """Whether an address is that of a member of the newest plan that this pod obeyed."""

    def __init__(self, plan: Callable[[], Plan | None]) -> None:
        self._plan = plan
        self._newest: Plan | None = None
        self._addresses: frozenset[str] = frozenset()

    def has(self, address: str) -> bool:
        """Now."""
        plan = self._plan()
        if plan is not None and plan is not self._newest:
            self._newest, self._addresses = plan, frozenset(_one_spelling(member.ip) for member in plan.members)
        return _one_spelling(address) in self._addresses


def _one_spelling(address: str) -> str:
    """IPv6 knows several; and one for IPv4, too."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


class GuardedPort:
    """One listening port and the application behind it."""

    def __init__(self, application: web.Application, *, is_member: Callable[[str], bool]) -> None:
        application.on_response_prepare.append(_end_unproven)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=1.0,
            logger=_http_log(),
            keepalive_timeout=KEPT_SECONDS,
            lingering_time=LINGERING_SECONDS,
            read_bufsize=READ_BYTES,
            auto_decompress=False,
            max_line_size=LINE_BYTES,
            max_field_size=HEADER_BYTES,
            max_headers=NUM_HEADERS,
        )
        self._server: asyncio.Server | None = None
        self._buffer = bytearray(READ_BYTES)  # of all connections: each hands on what it read before another reads
        self.is_member = is_member
        self.unproven: Unproven[GuardedConnection] = Unproven()

    async def start(self, host: str | None, port: int) -> None:
        """Listen. Raises OSError."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._connection, host, port, reuse_address=True, backlog=ACCEPTED_AT_ONCE
        )
        for listening in self._server.sockets:
            with socket.socket(fileno=os.dup(listening.fileno())) as same:
                same.listen(WAITING_AT_MOST)

    async def close(self) -> None:
        """End all connections; what is being answered has a second."""
        if self._server is not None:
            self._server.close()
        for connection in self.unproven.all():
            connection.abort()
        await self._runner.cleanup()

    def hold(self, connection: GuardedConnection) -> None:
        """Count it among the unproven, and close whom it displaces."""
        displaced = self.unproven.add(connection, connection.address, is_member=connection.is_member)
        if displaced is not None:
            displaced.abort()

    def _connection(self) -> asyncio.BaseProtocol:
        assert self._runner.server is not None
        return GuardedConnection(self, self._runner.server, memoryview(self._buffer))


class GuardedConnection(asyncio.BufferedProtocol):
    """One accepted connection."""

    def __init__(self, port: GuardedPort, serve: Callable[[], asyncio.Protocol], buffer: memoryview) -> None:
        self._port = port
        self._serve = serve
        self._buffer = buffer
        self._http: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._unproven_bytes = 0
        self.is_proven = False
        self.address = ""
        self.is_member = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accepted."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        connection: socket.socket = transport.get_extra_info("socket")
        keep_alive(connection, idle=30, interval=10, count=3)
        self.address = str(transport.get_extra_info("peername", ("",))[0])
        self.is_member = self._port.is_member(self.address)
        self._port.hold(self)
        self._set_deadline()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to read to."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """So much was read."""
        if not self.is_proven and not self._may_say(nbytes):
            self.abort()
            return
        self._ask_http().data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> bool | None:
        """The other side says no more."""
        return self._http.eof_received() if self._http is not None else None

    def pause_writing(self) -> None:
        """The other side does not read."""
        self._ask_http().pause_writing()

    def resume_writing(self) -> None:
        """It reads again."""
        self._ask_http().resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """It has ended."""
        self._forget()
        if self._http is not None:
            self._http.connection_lost(error)

    def prove(self) -> None:
        """A signed request was heard: from now on it is a caller of this job."""
        self.is_proven = True
        self._forget()

    def abort(self) -> None:
        """End it at once."""
        self._forget()
        if self._transport is not None:
            self._transport.abort()

    def _ask_http(self) -> asyncio.Protocol:
        if self._http is None:
            assert self._transport is not None
            self._http = self._serve()
            self._http.connection_made(self._transport)
            if self.is_member:
                self._set_deadline()
        return self._http

    def _may_say(self, num_bytes: int) -> bool:
        self._unproven_bytes += num_bytes
        return self._unproven_bytes <= UNPROVEN_BYTES

    def _set_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(PROOF_SECONDS, self._end)

    def _end(self) -> None:
        """The time for proof is over. A plan may have come in the meantime, which makes the address a member's, or a stranger's."""
        was_member, self.is_member = self.is_member, self._port.is_member(self.address)
        if self._http is not None or not self.is_member:
            self.abort()
            return
        if not was_member:
            self._port.hold(self)
        self._set_deadline()

    def _forget(self) -> None:
        self._port.unproven.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def prove(transport: asyncio.BaseTransport | None) -> None:
    """Whose connection this is has shown that it knows the job's token, by a request that cannot have been recorded before."""
    if (connection := _guarded(transport)) is not None:
        connection.prove()


def allow_connections() -> None:
    """As many open files as this process may have: a coordinator of a thousand members holds several connections with each."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _end_unproven(request: web.Request, response: web.StreamResponse) -> None:
    connection = _guarded(request.transport)
    if connection is not None and not connection.is_proven:
        response.force_close()
        response.headers["Connection"] = "close"  # aiohttp has decided on this header already


def _guarded(transport: asyncio.BaseTransport | None) -> GuardedConnection | None:
    protocol = transport.get_protocol() if isinstance(transport, asyncio.Transport) else None
    return protocol if isinstance(protocol, GuardedConnection) else None


def _http_log() -> logging.Logger:
    log = logging.getLogger(f"{__name__}.http")
    log.addFilter(_is_ours)
    return log


def _is_ours(record: logging.LogRecord) -> bool:
    """Strangers must not fill the log with what is wrong in their requests."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (HttpProcessingError, web.RequestPayloadError))
