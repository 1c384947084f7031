"""TCP sockets that notice a dead host: kernel keepalive, and a bound on bytes that nobody acknowledges."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import aiohttp


def keepalive_factory(
    *, idle: int, interval: int, count: int, unacknowledged_seconds: float
) -> Callable[[Any], socket.socket]:
    """For `aiohttp.TCPConnector(socket_factory=...)`."""

    def make(address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option, value in (
            ("TCP_KEEPIDLE", idle),
            ("TCP_KEEPINTVL", interval),
            ("TCP_KEEPCNT", count),
            ("TCP_USER_TIMEOUT", int(unacknowledged_seconds * 1000)),
        ):
            if hasattr(socket, option):  # Linux has them all
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        return made

    return make
