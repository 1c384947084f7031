"""R22: signed requests to other sidecars, and answers that count only with the right signature over the request's nonce."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, TypeVar

import aiohttp
from everstep_protocol import auth, codec
from everstep_protocol.messages import Peer, Problem

T = TypeVar("T")
CONNECT_SECONDS = 2.0


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
        assert self._session is not None
        body = codec.dumps(request).encode()
        nonce = secrets.token_hex(16)
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        url = f"http://{_host(peer.ip)}:{self._port}{path}"
        try:
            async with self._session.post(
                url, data=body, headers=self._headers(peer, path, nonce, body), timeout=timeout
            ) as answer:
                raw = await answer.read()
                self._verify(peer, nonce, answer.status, raw, answer.headers.get(auth.HEADER_SIGNATURE))
                return self._decode(answer.status, raw, kind)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unanswered(f"{peer.ip} {path}: {error or type(error).__name__}") from error

    def _headers(self, peer: Peer, path: str, nonce: str, body: bytes) -> dict[str, str]:
        signature = auth.sign_request(
            self._token,
            method="POST",
            path=path,
            job=self._job_uid,
            sender=self._own_uid,
            recipient=peer.uid,
            nonce=nonce,
            body=body,
        )
        return {
            auth.HEADER_JOB: self._job_uid,
            auth.HEADER_SENDER: self._own_uid,
            auth.HEADER_RECIPIENT: peer.uid,
            auth.HEADER_NONCE: nonce,
            auth.HEADER_SIGNATURE: signature,
            "Content-Type": "application/json",
        }

    def _verify(self, peer: Peer, nonce: str, status: int, body: bytes, given: str | None) -> None:
        expected = auth.sign_answer(self._token, nonce=nonce, status=status, responder=peer.uid, body=body)
        if not auth.verify(expected, given):
            raise Unanswered(f"{peer.ip}: the answer ({status}) is not signed by pod {peer.uid}")

    def _decode(self, status: int, body: bytes, kind: type[T]) -> T:
        try:
            if status != 200:
                problem = codec.loads(Problem, body)
                self._on_highest(problem.highest)
                raise Refused(status, problem)
            answer = codec.loads(kind, body)
        except codec.InvalidDocument as error:
            raise Unanswered(f"the answer cannot be read: {error}") from error
        self._on_highest(getattr(answer, "highest", 0))
        return answer


def _host(ip: str) -> str:
    return f"[{ip}]" if ":" in ip else ip
