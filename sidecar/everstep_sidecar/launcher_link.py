"""The pod's unix socket. The launcher holds one connection open; its end means that every trainer is gone with it (it is PID 1)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

from everstep_protocol import local
from everstep_protocol.codec import InvalidDocument

_log = logging.getLogger(__name__)
LONGEST_LINE_BYTES = 1 << 20


class LauncherGone(Exception):
    """The launcher's connection ended while it was to answer."""


class LauncherLink:
    """What the launcher said last, and orders to it. State, not events: whoever waits looks at these fields.

    `stopped`: no process of this attempt or an older one is left. `forbidden`: attempts up to this one must not run; a launcher
    that connects is told at once.
    """

    def __init__(self, path: Path, *, stir: Callable[[], None], on_saved: Callable[[], None]) -> None:
        self._path = path
        self._stir = stir
        self._on_saved = on_saved
        self._server: asyncio.Server | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._forbidden = 0
        self._grace_seconds = 0.0
        self._connections: set[asyncio.StreamWriter] = set()
        self.nonce = ""
        self.processes = 1
        self.running = 0
        self.stopped = 0
        self.port: local.PortChosen | None = None
        self.exited: local.ProcessExited | None = None
        self.finished = 0
        self._heard_from = time.monotonic()  # before then a launcher could not have told us anything
        self._activity: tuple[int, float] = (0, 0.0)  # attempt, monotonic seconds of its last sign of life
        self.leaving_at: float | None = None  # monotonic seconds at which the kubelet kills

    @property
    def connected(self) -> bool:
        """Whether a launcher is there."""
        return self._writer is not None

    @property
    def leaving(self) -> bool:
        """Whether the launcher got SIGTERM."""
        return self.leaving_at is not None

    def silent_seconds(self, attempt: int) -> float:
        """Since the last sign of life of this attempt's trainers that the launcher told; where it told none, since it could have."""
        told, alive_at = self._activity
        return time.monotonic() - (alive_at if told == attempt else self._heard_from)

    async def start(self) -> None:
        """Listen. A socket that a former process left is taken away."""
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self._path, limit=LONGEST_LINE_BYTES)
        self._path.chmod(0o666)  # the trainer container may run as another user

    async def close(self) -> None:
        """Stop listening, close connections."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._connections):
            writer.close()
        self._path.unlink(missing_ok=True)

    def forbid(self, attempt: int, grace_seconds: float = 0.0) -> None:
        """End every process of attempts up to this one, now and whenever a launcher connects."""
        if attempt > self._forbidden:
            self._forbidden = attempt
            self._grace_seconds = grace_seconds
            self._send(local.Stop(attempt, grace_seconds))

    def is_stopped(self, attempt: int) -> bool:
        """R7: whether a connected launcher confirmed that nothing of this attempt or an older one is left."""
        return self.connected and self.stopped >= attempt

    def choose_port(self, attempt: int) -> None:
        """Ask for a port; the answer comes in `port`."""
        self.port = None
        self._send(local.ChoosePort(attempt))

    def order(self, message: local.Start | local.Exit) -> None:
        """Send an order. Raises LauncherGone when nobody is there."""
        if not self.connected:
            raise LauncherGone("the launcher is not connected")
        self._send(message)

    def _send(self, message: local.Message) -> None:
        if self._writer is not None:
            self._writer.write(local.encode(message))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            await self._read(reader, writer)
        except (OSError, InvalidDocument, ValueError) as error:
            _log.warning("a connection on the pod's socket was closed: %s", error)
        finally:
            self._connections.discard(writer)
            writer.close()
            self._drop(writer)
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            message = local.decode(line)
            if isinstance(message, local.LauncherHello):
                self._connect(message, writer)
            elif isinstance(message, local.Saved):
                self._on_saved()
            elif message is not None and writer is self._writer:
                self._hear(message)

    def _connect(self, hello: local.LauncherHello, writer: asyncio.StreamWriter) -> None:
        if hello.nonce != self.nonce:
            self.exited, self.finished, self.leaving_at, self._activity = None, 0, None, (0, 0.0)
        self._writer, self._heard_from = writer, time.monotonic()
        self.nonce, self.processes, self.running = hello.nonce, hello.processes, hello.running
        self.stopped = 0
        if self._forbidden:
            self._send(local.Stop(self._forbidden, self._grace_seconds))
        _log.info("launcher connected, running attempt %d", hello.running)
        self._stir()

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        if writer is self._writer:
            self._writer = None
            self.running = 0
            _log.info("launcher's connection ended")
            self._stir()

    def _hear(self, message: local.Message) -> None:
        if isinstance(message, local.Stopped):
            self.stopped = max(self.stopped, message.attempt)
            self.running = 0 if self.running <= message.attempt else self.running
        elif isinstance(message, local.PortChosen):
            self.port = message
        elif isinstance(message, local.ProcessExited):
            self.exited = message
        elif isinstance(message, local.Finished):
            self.finished = message.attempt
        elif isinstance(message, local.Activity):
            self._activity = (message.attempt, time.monotonic() - message.idle_seconds)
            return  # only its age is asked for
        elif isinstance(message, local.Terminating):
            self.leaving_at = time.monotonic() + message.seconds
        self._stir()
