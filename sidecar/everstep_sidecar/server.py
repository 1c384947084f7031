"""The HTTP side: who may ask (R22), what is asked, signed answers. Every problem is JSON; a wrong signature gets an unsigned 401."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from aiohttp import web
from everstep_protocol import auth, codec
from everstep_protocol.messages import Problem

from everstep_sidecar.core.nonces import NonceWindow

LARGEST_BODY_BYTES = 4 << 20
_log = logging.getLogger(__name__)


class Rejected(Exception):
    """Answered with this status and sentence, signed."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status


@dataclass(frozen=True)
class Route:
    """One path. `who`: `operator`, `member` of the plan that this pod obeys, or anybody with the job's token (`job`)."""

    kind: type[Any]
    handle: Callable[[str, Any], Awaitable[Any]]
    who: Literal["operator", "member", "job"]


@dataclass(frozen=True)
class Identity:
    """Whose requests are answered, as whom."""

    token: str
    job_uid: str
    pod_uid: str


class Server:
    """Checks, decodes, hands on, signs. Knows nothing of what the answers mean."""

    def __init__(
        self,
        identity: Identity,
        routes: dict[str, Route],
        *,
        is_member: Callable[[str], bool],
        highest: Callable[[], int],
        status: Callable[[], Any],
    ) -> None:
        self._identity = identity
        self._routes = routes
        self._is_member = is_member
        self._highest = highest
        self._status = status
        self._nonces = NonceWindow()
        self._strangers: set[str] = set()

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=LARGEST_BODY_BYTES)
        app.router.add_get("/status", self._read_status)
        app.router.add_get("/v1/status", self._read_status)
        app.router.add_post("/v1/{name}", self._answer)
        return app

    async def _read_status(self, request: web.Request) -> web.Response:
        return web.json_response(codec.to_json(self._status()))

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        if not self._is_authentic(request, body):
            return web.json_response({"error": "not signed with this job's token"}, status=401)
        nonce = request.headers[auth.HEADER_NONCE]
        try:
            answer = await self._handle(request, body)
        except Rejected as error:
            return self._signed(nonce, error.status, Problem(str(error), self._highest()))
        except OSError as error:
            _log.exception("%s failed", request.path)
            return self._signed(nonce, 503, Problem(f"the storage or disk failed: {error}", self._highest()))
        return self._signed(nonce, 200, answer)

    async def _handle(self, request: web.Request, body: bytes) -> Any:
        """Raises Rejected."""
        sender = request.headers[auth.HEADER_SENDER]
        if request.headers[auth.HEADER_RECIPIENT] != self._identity.pod_uid:
            raise Rejected(421, f"this is pod {self._identity.pod_uid}, not the one that is meant")
        if not self._nonces.admit(request.headers[auth.HEADER_NONCE], time.monotonic()):
            raise Rejected(409, "this request was received before")
        route = self._routes.get(request.path)
        if route is None:
            raise Rejected(404, f"no such path: {request.path}")
        self._admit(route, sender)
        try:
            message = codec.loads(route.kind, body)
        except codec.InvalidDocument as error:
            raise Rejected(400, str(error)) from error
        return await route.handle(sender, message)

    def _admit(self, route: Route, sender: str) -> None:
        """R22: the token is not enough, the sender must be in the plan."""
        is_operator = sender == auth.OPERATOR
        if route.who == "operator" and not is_operator:
            raise Rejected(403, "only the operator may ask this")
        if route.who == "member" and (is_operator or not self._is_member(sender)):
            raise Rejected(403, f"pod {sender} is not in the plan of this attempt")

    def _is_authentic(self, request: web.Request, body: bytes) -> bool:
        headers = request.headers
        needed = (auth.HEADER_JOB, auth.HEADER_SENDER, auth.HEADER_RECIPIENT, auth.HEADER_NONCE)
        job, sender, recipient, nonce = (headers.get(name, "") for name in needed)
        expected = auth.sign_request(
            self._identity.token,
            method=request.method,
            path=request.path,
            job=job,
            sender=sender,
            recipient=recipient,
            nonce=nonce,
            body=body,
        )
        given = headers.get(auth.HEADER_SIGNATURE)
        if all((sender, nonce)) and job == self._identity.job_uid and auth.verify(expected, given):
            return True
        self._note_stranger(request.remote or "?")
        return False

    def _note_stranger(self, address: str) -> None:
        if address not in self._strangers and len(self._strangers) < 1000:
            self._strangers.add(address)
            _log.warning("requests from %s are not signed with this job's token; they are refused (said once)", address)

    def _signed(self, nonce: str, status: int, answer: Any) -> web.Response:
        body = codec.dumps(answer).encode()
        own = self._identity.pod_uid
        signature = auth.sign_answer(self._identity.token, nonce=nonce, status=status, responder=own, body=body)
        headers = {
            auth.HEADER_SENDER: own,
            auth.HEADER_JOB: self._identity.job_uid,
            auth.HEADER_NONCE: nonce,
            auth.HEADER_SIGNATURE: signature,
        }
        return web.Response(body=body, status=status, headers=headers, content_type="application/json")
