"""Loopback addresses that no other process of the tests listens on: several of them run side by side."""

from __future__ import annotations

import os
import socket

NETWORKS = 64 * 250


def address(number: int) -> str:
    """One of this process's own, `number` from 1 to 254. Connections that name no source come from 127.0.0.1, which is none of them."""
    network = os.getpid() % NETWORKS
    return f"127.{64 + network // 250}.{1 + network % 250}.{number}"


def free_port() -> int:
    """A TCP port that nobody has on any address now."""
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))
        return int(probe.getsockname()[1])
