"""The connection to the sidecar: retried until it is there, made anew when the sidecar restarts. Training never waits for it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from everstep_protocol import local, names
from everstep_protocol.codec import InvalidDocument

from everstep.launcher.loop import Loop, Timer

_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.05, 0.5  # a killed sidecar is back after 0.8 s (RECOVERY.md)
_ALONE_SECONDS = 30.0  # without a sidecar for so long: the reader of this log is told where to look
_LONGEST_LINE_BYTES = 16 << 20


class Link:
    """One connection at a time. What was sent while there was none is lost: `on_open` says again what still matters."""

    def __init__(
        self,
        loop: Loop,
        path: Path,
        *,
        on_open: Callable[[], None],
        on_message: Callable[[local.Message], None],
        say: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._path = path
        self._on_open = on_open
        self._on_message = on_message
        self._say = say
        self._socket: socket.socket | None = None
        self._received = bytearray()
        self._unsent = bytearray()
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._alone: Timer | None = None  # runs while there is no connection

    def open(self) -> None:
        """Connect, and keep connected."""
        self._alone = self._loop.call_later(_ALONE_SECONDS, self._tell_alone)
        self._connect()

    def _connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(str(self._path))
        except OSError:
            connection.close()
            self._loop.call_later(self._retry_seconds, self._connect)
            self._retry_seconds = min(2 * self._retry_seconds, _LONGEST_RETRY_SECONDS)
            return
        if self._alone is not None:
            self._alone.cancel()
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._socket = connection
        self._received.clear()
        self._unsent.clear()
        self._loop.on_readable(connection.fileno(), self._read)
        self._on_open()

    def send(self, message: local.Message) -> None:
        """Send, where there is a connection."""
        if self._socket is not None:
            self._unsent += local.encode(message)
            self._write()

    def offer(self, message: local.Message) -> None:
        """Send what will soon be said anew: only where all that was said before has been taken."""
        if not self._unsent:
            self.send(message)

    def close(self) -> None:
        """Let go."""
        if self._socket is not None:
            self._loop.on_readable(self._socket.fileno(), None)
            self._loop.on_writable(self._socket.fileno(), None)
            self._socket.close()
            self._socket = None

    def _lost(self) -> None:
        self.close()
        self._say("the sidecar is gone; trainers go on, waiting for it to come back")
        self.open()

    def _tell_alone(self) -> None:
        self._say(
            f"no sidecar has listened for {_ALONE_SECONDS:g} s: nothing is saved and no attempt can begin until it does; "
            f"look at the container {names.SIDECAR_CONTAINER} of this pod"
        )

    def _write(self) -> None:
        if self._socket is None:  # lost in this same turn of the loop
            return
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._lost()
            return
        self._loop.on_writable(self._socket.fileno(), self._write if self._unsent else None)

    def _read(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(self._received) > _LONGEST_LINE_BYTES:
            self._lost()
            return
        self._received += data
        *lines, rest = bytes(self._received).split(b"\n") if b"\n" in data else (self._received,)
        self._received = bytearray(rest)
        for line in lines:
            self._take(bytes(line))

    def _take(self, line: bytes) -> None:
        try:
            message = local.decode(line)
        except InvalidDocument as error:
            self._say(f"not understood from the sidecar: {error}")
            return
        if message is not None:
            self._on_message(message)
