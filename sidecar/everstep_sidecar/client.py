"""R22: signed requests to other sidecars, and answers that count only with the right signature over the request's nonce."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

import aiohttp
from everstep_protocol import auth, codec
from everstep_protocol.messages import Peer, Problem

T = TypeVar("T")
CONNECT_SECONDS = 2.0
LEAST_SECONDS = 0.05  # of a time-out: none at all would mean for ever


class Unanswered(Exception):
    """No answer that counts: silence, a refused connection, or one that the asked pod did not sign."""


class Refused(Exception):
    """The asked pod said no, signed."""

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(f"{status}: {problem.error}")
        self.status = status
        self.highest = problem.highest


class Client:
    """Asks sidecars of this job. `on_highest` hears the highest attempt of each answer (R23)."""

    def __init__(
        self, *, token: str, job_uid: str, own_uid: str, port: int, on_highest: Callable[[int], None], source_ip: str
    ) -> None:
        self._token = token
        self._job_uid = job_uid
        self._own_uid = own_uid
        self._port = port
        self._on_highest = on_highest
        self._source_ip = source_ip
        self._boots = auth.Boots()
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Make the session."""
        connector = aiohttp.TCPConnector(local_addr=(self._source_ip, 0), limit=0)
        self._session = aiohttp.ClientSession(connector=connector)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def post(self, peer: Peer, path: str, request: Any, kind: type[T], *, seconds: float = 5.0) -> T:
        """The answer to one request. Raises Unanswered or Refused."""
        body = codec.dumps(request).encode()
        end = time.monotonic() + seconds
        status, raw = await self._exchange(peer, path, body, end)
        if status == auth.OTHER_BOOT:
            self._boots.learn(peer.uid, _read_problem(raw).boot)
            status, raw = await self._exchange(peer, path, body, end)
        return self._decode(status, raw, kind)

    async def _exchange(self, peer: Peer, path: str, body: bytes, end: float) -> tuple[int, bytes]:
        """Status and body of an answer that counts; `end` by the monotonic clock. Raises Unanswered."""
        assert self._session is not None
        boot = self._boots.of(peer.uid)
        head = auth.new_post(path, body, job=self._job_uid, sender=self._own_uid, recipient=peer.uid, boot=boot)
        headers = {"Content-Type": "application/json", **head.headers(self._token)}
        timeout = aiohttp.ClientTimeout(total=max(end - time.monotonic(), LEAST_SECONDS), sock_connect=CONNECT_SECONDS)
        url = f"http://{_host(peer.ip)}:{self._port}{path}"
        try:
            async with self._session.post(url, data=body, headers=headers, timeout=timeout) as answer:
                raw = await _read(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unanswered(f"{peer.ip} {path}: {error or type(error).__name__}") from error
        self._verify(peer, head.nonce, answer.status, raw, answer.headers.get(auth.HEADER_SIGNATURE))
        return answer.status, raw

    def _verify(self, peer: Peer, nonce: str, status: int, body: bytes, given: str | None) -> None:
        expected = auth.sign_answer(self._token, nonce=nonce, status=status, responder=peer.uid, body=body)
        if not auth.verify(expected, given):
            raise Unanswered(f"{peer.ip}: the answer ({status}) is not signed by pod {peer.uid}")

    def _decode(self, status: int, body: bytes, kind: type[T]) -> T:
        if status != 200:
            problem = _read_problem(body)
            self._on_highest(problem.highest)
            raise Refused(status, problem)
        try:
            answer = codec.loads(kind, body)
        except codec.InvalidDocument as error:
            raise Unanswered(f"the answer cannot be read: {error}") from error
        self._on_highest(getattr(answer, "highest", 0))
        return answer


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """The whole body. Raises aiohttp.ClientPayloadError where it is longer than any that counts."""
    try:
        await answer.content.readexactly(auth.LARGEST_ANSWER_BYTES + 1)
    except asyncio.IncompleteReadError as end:
        return end.partial
    raise aiohttp.ClientPayloadError(f"the answer has more than {auth.LARGEST_ANSWER_BYTES} bytes")


def _read_problem(body: bytes) -> Problem:
    """Raises Unanswered."""
    try:
        return codec.loads(Problem, body)
    except codec.InvalidDocument as error:
        raise Unanswered(f"the refusal cannot be read: {error}") from error


def _host(ip: str) -> str:
    return f"[{ip}]" if ":" in ip else ip
