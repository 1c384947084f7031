"""R22: a rank's store client that comes before rank 0 listens backs off for 0.3 to 0.75 s. So: come after it."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Collection

_INTERVAL_SECONDS = 0.005


def wait_for_master(address: str, port: int, timeout_seconds: float) -> bool:
    """R22: wait until something listens there; False where nothing did in time (the store's own patience then decides).

    For a rank that has imported torch and is about to call init_process_group; rank 0 itself never waits.
    """
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection((address, port), timeout=1.0).close()
        except OSError:
            time.sleep(_INTERVAL_SECONDS)  # nothing can be awaited: another host's port gives no event
        else:
            return True
    return False


def choose_port(recent: Collection[int] = ()) -> int:
    """R22: a port that is free in this pod now and was not chosen lately.

    Below the range from which the kernel gives ports to outgoing connections: one of those must not take it before rank 0 does.
    """
    for port in random.SystemRandom().sample(range(20000, 30000), 1000):
        if port not in recent and _is_free(port):
            return port
    raise OSError("no port between 20000 and 29999 is free in this pod")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
            listener.listen(1)
        except OSError:
            return False
        return True
