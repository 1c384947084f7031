"""Talks to sidecars: signed requests, answers checked (R22). A dead host is told from a living one that refuses."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import time
from collections.abc import Callable
from typing import TypeVar

import aiohttp
from everstep_protocol import auth, codec
from everstep_protocol.messages import Peer, Problem

from everstep_operator.cluster.sockets import keepalive_factory
from everstep_operator.cluster.tasks import within

T = TypeVar("T")

_CONNECT_SECONDS = 1.0
_LEAST_SECONDS = 0.05  # of a time-out: none at all would mean for ever
_MEMORY_SECONDS = 30.0  # longer than anybody asks `heard_within` about
_ALIVE = (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE)


class Silent(Exception):
    """No answer, or none that is signed by this very pod: a time-out, as far as anyone can tell (R22, R25)."""


class Refusing(Exception):
    """Refused or reset: the host lives, its sidecar does not answer. No silence (R25)."""


class Rejected(Exception):
    """A signed answer that says no."""

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(f"{status}: {problem.error}")
        self.status = status
        self.problem = problem


class SidecarClient:
    """One session for all jobs; each connection has the kernel's keepalive, so a dead host is noticed in 2 to 3 s."""

    def __init__(self, root_key: bytes, port: int, port_at: Callable[[str], int] = lambda ip: 0) -> None:
        """`port_at`: the port of the sidecar with this IP, 0: not known, so it is `port`."""
        self._root_key = root_key
        self.key_id = hashlib.sha256(root_key).hexdigest()[:8]
        self._default_port = port
        self._port_at = port_at
        self._session: aiohttp.ClientSession | None = None
        self._boots = auth.Boots()
        self._heard: dict[str, float] = {}  # node -> when a sidecar there last answered
        self._swept_at = time.monotonic()

    def _port(self, ip: str) -> int:
        return self._port_at(ip) or self._default_port

    async def open(self) -> None:
        """Make the session."""
        factory = keepalive_factory(idle=1, interval=1, count=2, unacknowledged_seconds=2.5)
        connector = aiohttp.TCPConnector(limit=0, socket_factory=factory, keepalive_timeout=60)
        self._session = aiohttp.ClientSession(connector=connector)

    async def close(self) -> None:
        """End all connections."""
        if self._session is not None:
            await self._session.close()

    def token(self, job_uid: str) -> str:
        """The job's token: made, never read."""
        return auth.job_token(self._root_key, job_uid)

    def heard(self, node: str) -> None:
        """A sidecar on this node answered just now."""
        now = time.monotonic()
        self._heard[node] = now
        if now - self._swept_at > _MEMORY_SECONDS:  # nodes come and go
            self._heard = {name: at for name, at in self._heard.items() if now - at <= _MEMORY_SECONDS}
            self._swept_at = now

    def heard_within(self, seconds: float, *, other_than: set[str]) -> bool:
        """R26: whether any sidecar on another node answered lately."""
        now = time.monotonic()
        return any(now - at <= seconds for node, at in self._heard.items() if node not in other_than)

    async def call(
        self, job_uid: str, peer: Peer, path: str, message: object, kind: type[T], limit_seconds: float
    ) -> T:
        """POST one message to one pod and decode its answer. Raises Silent, Refusing or Rejected."""
        body = codec.dumps(message).encode()
        end = time.monotonic() + limit_seconds
        status, raw = await self._exchange(job_uid, peer, path, body, end)
        if status == auth.OTHER_BOOT:
            self._boots.learn(peer.uid, _problem(raw).boot)
            status, raw = await self._exchange(job_uid, peer, path, body, end)
        return _decode(raw, status, kind)

    async def _exchange(self, job_uid: str, peer: Peer, path: str, body: bytes, end: float) -> tuple[int, bytes]:
        """Status and body of an answer that this pod signed; `end` by the monotonic clock. Raises Silent or Refusing."""
        assert self._session is not None, "open() first"
        token, boot = self.token(job_uid), self._boots.of(peer.uid)
        head = auth.new_post(path, body, job=job_uid, sender=auth.OPERATOR, recipient=peer.uid, boot=boot)
        headers = {"Content-Type": "application/json", **head.headers(token)}
        url = f"http://{_host(peer.ip)}:{self._port(peer.ip)}{path}"
        limit = max(end - time.monotonic(), _LEAST_SECONDS)
        timeout = aiohttp.ClientTimeout(total=limit, sock_connect=_CONNECT_SECONDS)
        try:
            async with self._session.post(url, data=body, headers=headers, timeout=timeout) as answer:
                raw, status, given = await _read(answer), answer.status, answer.headers.get(auth.HEADER_SIGNATURE)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise _kind_of(error)(f"{path} of {peer.ip}: {error or type(error).__name__}") from error
        expected = auth.sign_answer(token, nonce=head.nonce, status=status, responder=peer.uid, body=raw)
        if not auth.verify(expected, given):
            raise Silent(f"{path} of {peer.ip}: the answer is not signed by pod {peer.uid}")
        return status, raw

    async def probe(self, ip: str) -> bool:
        """Whether the host answers a TCP connect, be it by a refusal, within 1 s."""
        try:
            _, writer = await within(_CONNECT_SECONDS, asyncio.open_connection(ip, self._port(ip)))
        except (asyncio.TimeoutError, OSError) as error:
            return isinstance(error, OSError) and error.errno in _ALIVE
        writer.close()
        return True


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """The whole body. Raises aiohttp.ClientPayloadError where it is longer than any that counts."""
    try:
        await answer.content.readexactly(auth.LARGEST_ANSWER_BYTES + 1)
    except asyncio.IncompleteReadError as end:
        return end.partial
    raise aiohttp.ClientPayloadError(f"the answer has more than {auth.LARGEST_ANSWER_BYTES} bytes")


def _decode(raw: bytes, status: int, kind: type[T]) -> T:
    if status != 200:
        raise Rejected(status, _problem(raw))
    try:
        return codec.loads(kind, raw)
    except codec.InvalidDocument as error:
        raise Rejected(status, Problem(f"an answer that cannot be read: {error}", 0)) from error


def _problem(raw: bytes) -> Problem:
    try:
        return codec.loads(Problem, raw)
    except codec.InvalidDocument as error:
        return Problem(f"a refusal that cannot be read: {error}", 0)


def _kind_of(error: BaseException) -> type[Silent] | type[Refusing]:
    """A time-out is silence, whoever notices it; all other errors were sent by a living host."""
    if isinstance(error, asyncio.TimeoutError):
        return Silent
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return Refusing
    number = getattr(error, "errno", None)
    return Refusing if number in _ALIVE else Silent


def _host(ip: str) -> str:
    return f"[{ip}]" if ":" in ip else ip
