"""The Kubernetes API over bare aiohttp and JSON. Every call but a watch goes through `Client.request`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

from everstep_operator.cluster.connection import Credentials
from everstep_operator.cluster.sockets import keepalive_factory

Raw = dict[str, Any]
Params = dict[str, str]

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
_JSON = "application/json"
_CONCURRENT = 20
_LIMIT_SECONDS = 15.0
_LONGEST_LINE_BYTES = 8 << 20  # an object has at most 1.5 MiB in etcd
_TOO_MANY, _UNAVAILABLE = 429, 503
_LONGEST_RETRY_SECONDS = 30.0
FIELD_MANAGER = "everstep-operator"


class ApiError(Exception):
    """The API server said no. `reason` is its one word, `message` its sentence."""

    def __init__(self, status: int, reason: str, message: str, retry_seconds: float = 0.0) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.retry_seconds = retry_seconds  # Retry-After: it asks not to be asked before
        self.status = status
        self.reason = reason
        self.message = message


class NotFound(ApiError):
    """404."""


class Busy(ApiError):
    """429, and 503 with Retry-After: too much is asked at present; what is known of the object, or of its history, still holds."""


class Conflict(ApiError):
    """409: a precondition or a resourceVersion did not hold; drop the decision and read again (R1)."""


class AlreadyExists(ApiError):
    """409 of a create."""


class Gone(ApiError):
    """410: that history is not kept any more; list again."""


class Refused(ApiError):
    """400, 403 or 422: the object is not acceptable."""


class Leaving(Refused):
    """403: the namespace is being terminated, nothing new is made in it."""


class Unavailable(Exception):
    """No answer: connection refused or broken, time-out. `cause` is a short word for metrics."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


_KINDS: dict[int, type[ApiError]] = {404: NotFound, 409: Conflict, 410: Gone, 400: Refused, 403: Refused, 422: Refused}


class Client:
    """One session, 20 requests at a time. `open` before use, `close` at the end."""

    def __init__(self, credentials: Credentials, on_error: Callable[[str, str], None] | None = None) -> None:
        self._credentials = credentials
        self._server = credentials.info.server.rstrip("/")
        self._limit = asyncio.Semaphore(_CONCURRENT)
        self._on_error = on_error or (lambda verb, code: None)
        self._busy_until = -float("inf")  # until then the API server asked not to be asked
        self._session: aiohttp.ClientSession | None = None
        self._answered_at = -float("inf")

    async def open(self) -> None:
        """Make the session."""
        factory = keepalive_factory(idle=5, interval=2, count=3, unacknowledged_seconds=12)
        ssl = self._credentials.info.as_ssl_context() if self._server.startswith("https") else True
        connector = aiohttp.TCPConnector(limit=0, ssl=ssl, socket_factory=factory)
        self._session = aiohttp.ClientSession(connector=connector, json_serialize=json.dumps)

    async def close(self) -> None:
        """End the session and its connections."""
        if self._session is not None:
            await self._session.close()

    def beside(self) -> Client:
        """Another one for what must not wait behind this one's requests, nor for its connections; to be opened by itself."""
        return Client(self._credentials, self._on_error)

    def answer_age_seconds(self) -> float:
        """Since the API server last answered anything (R26)."""
        return time.monotonic() - self._answered_at

    async def request(
        self, method: str, path: str, *, params: Params | None = None, body: Any = None, content_type: str = _JSON
    ) -> Raw:
        """One API call. Raises ApiError where the server said no, Unavailable where it said nothing."""
        async with self._limit:
            await asyncio.sleep(max(0.0, self._busy_until - time.monotonic()))
            try:
                return await self._call(method, path, params or {}, body, content_type)
            except ApiError as error:
                self._on_error(method, str(error.status))
                self._busy_until = max(self._busy_until, time.monotonic() + error.retry_seconds)
                raise
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                cause = "timeout" if isinstance(error, asyncio.TimeoutError) else "connection"
                self._on_error(method, cause)
                raise Unavailable(cause, f"{method} {path}: {error or type(error).__name__}") from error

    async def list_pages(self, path: str, params: Params | None = None) -> AsyncIterator[Raw]:
        """A collection, a page of 500 at a time, so that no list of everything is ever held."""
        query = {"limit": "500", **(params or {})}
        while True:
            page = await self.request("GET", path, params=query)
            yield page
            token = page.get("metadata", {}).get("continue")
            if not token:
                return
            query = {**query, "continue": token}
            query.pop("resourceVersion", None)

    async def watch(self, path: str, params: Params, inactivity_seconds: float) -> AsyncIterator[Raw]:
        """Events of a watch until the server ends it. Raises as `request`; silence beyond the limit is Unavailable."""
        query = {"watch": "true", "allowWatchBookmarks": "true", **params}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=inactivity_seconds)
        try:
            async with self._open_session().get(
                self._server + path, params=query, headers=self._credentials.headers(), timeout=timeout
            ) as answer:
                await self._raise_for(answer)
                async for line in _lines(answer.content):
                    self._answered_at = time.monotonic()
                    yield json.loads(line)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise Unavailable("watch", f"watch of {path}: {error or type(error).__name__}") from error

    async def _call(self, method: str, path: str, params: Params, body: Any, content_type: str) -> Raw:
        headers = {**self._credentials.headers(), "Accept": _JSON}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = content_type
            params = {"fieldManager": FIELD_MANAGER, **params} if method != "DELETE" else params
        timeout = aiohttp.ClientTimeout(total=_LIMIT_SECONDS, sock_connect=5)
        async with self._open_session().request(
            method, self._server + path, params=params, data=data, headers=headers, timeout=timeout
        ) as answer:
            await self._raise_for(answer)
            raw = await answer.read()
            self._answered_at = time.monotonic()
            document: Raw = json.loads(raw) if raw else {}
            return document

    async def _raise_for(self, answer: aiohttp.ClientResponse) -> None:
        self._answered_at = time.monotonic()
        if answer.status >= 400:
            raise error_of(answer.status, await answer.read(), _retry_seconds(answer.headers.get("Retry-After", "")))

    def _open_session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "open() first"
        return self._session


def _retry_seconds(text: str) -> float:
    """A number of seconds is all that the API server says; a proxy's longest is bounded."""
    return min(float(text), _LONGEST_RETRY_SECONDS) if text.isascii() and text.isdecimal() else 0.0


def error_of(status: int, body: bytes, retry_seconds: float = 0.0) -> ApiError:
    """The exception for an answer, or for the Status object of a watch's ERROR event."""
    try:
        document = json.loads(body)
    except ValueError:
        document = {}
    reason = str(document.get("reason") or "") if isinstance(document, dict) else ""
    message = str(document.get("message") or "") if isinstance(document, dict) else ""
    is_busy = status == _TOO_MANY or (status == _UNAVAILABLE and retry_seconds > 0)
    kind = Busy if is_busy else _kind_of(status, reason, message)
    return kind(status, reason or f"HTTP{status}", message or body[:300].decode(errors="replace"), retry_seconds)


def _kind_of(status: int, reason: str, message: str) -> type[ApiError]:
    if reason == "AlreadyExists":
        return AlreadyExists
    if status == 403 and "because it is being terminated" in message:
        return Leaving
    return _KINDS.get(status, ApiError)


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines, however long: aiohttp's own reader gives up at 128 KiB."""
    rest = bytearray()
    async for chunk in stream.iter_any():
        rest += chunk
        while (end := rest.find(b"\n")) >= 0:
            line = bytes(rest[:end])
            del rest[: end + 1]
            if line.strip():
                yield line
        if len(rest) > _LONGEST_LINE_BYTES:
            raise aiohttp.ClientPayloadError("a watch event without end")
