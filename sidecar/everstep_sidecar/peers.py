"""R25's N: one idle TCP connection to each peer, kept alive by the kernels. They answer even when Python on either side starves.

TCP_USER_TIMEOUT is left alone: it matters only with bytes in flight, and there are none; set, it would take the place of the count.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Callable

from everstep_protocol.messages import Peer

from everstep_sidecar.backoff import Backoff
from everstep_sidecar.sockets import keep_alive
from everstep_sidecar.tasks import Tasks

IDLE_SECONDS = 1
INTERVAL_SECONDS = 1
COUNT = 2
CONNECT_SECONDS = 2.0
FIRST_RETRY_SECONDS = 0.5
LARGEST_RETRY_SECONDS = 2.0  # so long, a peer that is back still counts as lost
HELD_SECONDS = 5.0  # a connection that was held longer, though it ended: the next one is tried soon
# The host, or the way to it, did not answer. Refused and reset are answers: the host lives.
SILENCE = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN})


def is_silence(error: BaseException) -> bool:
    """Whether an error of a connection means that nobody answered."""
    return isinstance(error, TimeoutError) or (isinstance(error, OSError) and error.errno in SILENCE)


class Peers:
    """Watches the other members of the plan. `on_change` is called when a peer is lost or found again, `on_failure` when a watch fails
    in a way that nobody foresaw: then nobody would say any more that a peer is silent."""

    def __init__(
        self, *, source_ip: str, port: int, on_change: Callable[[str, bool], None], on_failure: Callable[[], None]
    ) -> None:
        self._source_ip = source_ip
        self._port = port
        self._on_change = on_change
        self._tasks = Tasks(on_failure)
        self._watches: dict[Peer, asyncio.Task[None]] = {}
        self._lost_since: dict[str, float] = {}

    def watch(self, peers: frozenset[Peer]) -> None:
        """Watch exactly these."""
        for peer in set(self._watches) - peers:
            self._watches.pop(peer).cancel()
            self._lost_since.pop(peer.uid, None)
        for peer in peers - set(self._watches):
            self._watches[peer] = self._tasks.spawn(self._keep(peer))

    def lost(self) -> dict[str, float]:
        """Pod UID -> seconds since the kernel lost its connection."""
        now = time.monotonic()
        return {uid: now - since for uid, since in self._lost_since.items()}

    async def close(self) -> None:
        """Close all connections."""
        self.watch(frozenset())
        await self._tasks.close()

    async def _keep(self, peer: Peer) -> None:
        backoff = Backoff(FIRST_RETRY_SECONDS, LARGEST_RETRY_SECONDS)
        while True:
            began = time.monotonic()
            try:
                await self._hold(peer)
            except (OSError, TimeoutError) as error:
                self._note(peer.uid, is_silence(error))
            if time.monotonic() - began > HELD_SECONDS:
                backoff.reset()
            await backoff.pause()

    async def _hold(self, peer: Peer) -> None:
        """One connection, until it ends. Raises what ended it; returns when the peer closed it."""
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in peer.ip else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            keep_alive(connection, idle=IDLE_SECONDS, interval=INTERVAL_SECONDS, count=COUNT)
            connection.bind((self._source_ip, 0))
            async with asyncio.timeout(CONNECT_SECONDS):
                await loop.sock_connect(connection, (peer.ip, self._port))
            self._note(peer.uid, False)
            while await loop.sock_recv(connection, 256):
                pass

    def _note(self, uid: str, silent: bool) -> None:
        if silent and uid not in self._lost_since:
            self._lost_since[uid] = time.monotonic()
            self._on_change(uid, True)
        elif not silent and self._lost_since.pop(uid, None) is not None:
            self._on_change(uid, False)
