"""Options of TCP sockets."""

from __future__ import annotations

import contextlib
import socket


def keep_alive(connection: socket.socket, *, idle: int, interval: int, count: int) -> None:
    """Let the kernel find out that the other host is gone: asked after `idle` seconds, then each `interval`, `count` times in vain."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with contextlib.suppress(AttributeError):  # named so on Linux
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, count)
