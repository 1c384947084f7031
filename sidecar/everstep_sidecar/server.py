"""The HTTP side: who may ask (R22), what is asked, signed answers. Every problem is JSON; a wrong signature gets an unsigned 401.

Nothing of a body is read before the signature is checked and the sender is known to be allowed to ask; `guard` bounds all before that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from aiohttp import web
from everstep_protocol import auth, codec
from everstep_protocol.messages import Problem

from everstep_sidecar import guard
from everstep_sidecar.core.nonces import NonceWindow

SMALL_BODY_BYTES = 256 << 10  # an attempt's members by name, ids of checkpoints
PLAN_BODY_BYTES = 4 << 20
BODY_SECONDS = 10.0
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
    largest_body_bytes: int = SMALL_BODY_BYTES


@dataclass(frozen=True)
class Identity:
    """Whose requests are answered, as whom."""

    token: str
    job_uid: str
    pod_uid: str


class Server:
    """Checks, decodes, hands on, signs. Knows nothing of what the answers mean. `status` is told to anybody, without a signature."""

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
        app = web.Application()
        app.router.add_get("/status", self._read_status)
        app.router.add_get("/v1/status", self._read_status)
        app.router.add_post("/v1/{name}", self._answer)
        return app

    async def _read_status(self, request: web.Request) -> web.Response:
        return web.json_response(codec.to_json(self._status()))

    async def _answer(self, request: web.Request) -> web.Response:
        head = auth.read_head(request.method, request.path, request.headers)
        if not self._is_authentic(head, request.headers.get(auth.HEADER_SIGNATURE)):
            self._note_stranger(request.remote or "?")
            return web.json_response({"error": "not signed with this job's token"}, status=401)
        try:
            answer = await self._handle(request, head)
        except Rejected as error:
            return self._signed(head.nonce, error.status, self._problem(str(error)))
        except OSError as error:
            _log.exception("%s failed", request.path)
            return self._signed(head.nonce, 503, self._problem(f"the storage or disk failed: {error}"))
        return self._signed(head.nonce, 200, answer)

    async def _handle(self, request: web.Request, head: auth.RequestHead) -> Any:
        """Raises Rejected."""
        self._take(head)
        guard.prove(request.transport)
        route = self._routes.get(head.path)
        if route is None:
            raise Rejected(404, f"no such path: {head.path}")
        self._admit(route, head.sender)
        body = await _read_body(request, head, route.largest_body_bytes)
        try:
            message = codec.loads(route.kind, body)
        except codec.InvalidDocument as error:
            raise Rejected(400, str(error)) from error
        return await route.handle(head.sender, message)

    def _take(self, head: auth.RequestHead) -> None:
        """R22: what is signed may still be meant for another pod, or have been heard before."""
        if head.recipient != self._identity.pod_uid:
            raise Rejected(421, f"this is pod {self._identity.pod_uid}, not the one that is meant")
        newness = self._nonces.admit(head.boot, head.nonce)
        if newness == "other boot":
            raise Rejected(
                auth.OTHER_BOOT, "this process does not know that boot id; ask again with the one that it says here"
            )
        if newness == "seen":
            raise Rejected(409, "this request was received before")

    def _admit(self, route: Route, sender: str) -> None:
        """R22: the token is not enough, the sender must be in the plan."""
        is_operator = sender == auth.OPERATOR
        if route.who == "operator" and not is_operator:
            raise Rejected(403, "only the operator may ask this")
        if route.who == "member" and (is_operator or not self._is_member(sender)):
            raise Rejected(403, f"pod {sender} is not in the plan of this attempt")

    def _is_authentic(self, head: auth.RequestHead, given: str | None) -> bool:
        is_complete = bool(head.sender and head.nonce)
        is_ours = head.job == self._identity.job_uid
        return is_complete and is_ours and auth.verify(head.signature(self._identity.token), given)

    def _note_stranger(self, address: str) -> None:
        if address not in self._strangers and len(self._strangers) < 1000:
            self._strangers.add(address)
            _log.warning("requests from %s are not signed with this job's token; they are refused (said once)", address)

    def _problem(self, error: str) -> Problem:
        return Problem(error, self._highest(), self._nonces.boot)

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


async def _read_body(request: web.Request, head: auth.RequestHead, largest_bytes: int) -> bytes:
    """The body that was signed. Raises Rejected."""
    length = request.content_length
    if length is None:
        raise Rejected(411, "the request does not say how long its body is (Content-Length)")
    if length > largest_bytes:
        raise Rejected(413, f"the body has {length} bytes; {head.path} takes at most {largest_bytes}")
    try:
        body = await asyncio.wait_for(request.content.readexactly(length), BODY_SECONDS)
    except asyncio.TimeoutError:
        raise Rejected(408, f"the body of {length} bytes did not come within {BODY_SECONDS:g} s") from None
    except (asyncio.IncompleteReadError, web.RequestPayloadError, ConnectionError) as error:
        raise Rejected(400, f"the body ended before its {length} bytes") from error
    if auth.body_sha256(body) != head.body_sha256:
        raise Rejected(400, "the body is not the one that was signed")
    return body
