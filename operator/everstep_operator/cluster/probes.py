"""N by our own eyes (R25): TCP connects to hosts that are suspected, or that a pass wishes to know of, for as long as that holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from everstep_protocol.messages import Peer

from everstep_operator.cluster import tasks
from everstep_operator.cluster.backoff import Clock
from everstep_operator.cluster.sidecars import SidecarClient

_EVERY_SECONDS = 0.5
_FEWER_AFTER = 20  # failures in a row: it does not matter any more when exactly it comes back
_FEWER_SECONDS = 2.0


@dataclass
class _Host:
    """What is known of one pod's host."""

    failed: int = 0  # in a row
    failing_since: float | None = None
    answered_at: float | None = None
    peer: Peer | None = None  # who is probed
    task: asyncio.Task[None] | None = None
    reasons: set[str] = field(default_factory=set)


class Prober:
    """Probes of one job, by pod UID. `wake` is called when something changed that may matter."""

    def __init__(self, client: SidecarClient, clock: Clock, wake: Callable[[], None]) -> None:
        self._client = client
        self._clock = clock
        self._wake = wake
        self._hosts: dict[str, _Host] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    def start(self, peer: Peer, reason: str) -> None:
        """Probe it from now on, for this reason too."""
        host = self._hosts.setdefault(peer.uid, _Host())
        host.reasons.add(reason)
        if host.peer != peer:
            self._cancel(host)
            host.peer = peer
            host.task = tasks.keep_running(lambda: self._probe_forever(peer), f"probe {peer.ip}", self._clock)

    def end(self, uid: str, reason: str) -> None:
        """This is no reason any more. What was found stays known until `forget`."""
        host = self._hosts.get(uid)
        if host is not None:
            host.reasons.discard(reason)
            if not host.reasons:
                self._cancel(host)

    def keep(self, peers: Iterable[Peer], reason: str) -> None:
        """Just these are to be probed for this reason; nothing is known any more of those that were probed for it alone."""
        wanted = {peer.uid: peer for peer in peers}
        for uid, host in list(self._hosts.items()):
            if reason in host.reasons and uid not in wanted:
                self.end(uid, reason)
                if not host.reasons:
                    del self._hosts[uid]
        for peer in wanted.values():
            self.start(peer, reason)

    def forget(self, reason: str) -> None:
        """End what goes on for this reason, and all that is known beside what goes on for another."""
        for uid, host in list(self._hosts.items()):
            self.end(uid, reason)
            if not host.reasons:
                del self._hosts[uid]

    def is_any(self, reason: str) -> bool:
        """Whether anything is probed for this reason."""
        return any(reason in host.reasons for host in self._hosts.values())

    def note(self, uid: str, *, alive: bool) -> None:
        """It answered, or did not, in whatever way it was asked."""
        host = self._hosts.setdefault(uid, _Host())
        before = host.failed
        host.failed = 0 if alive else before + 1
        host.failing_since = None if alive else host.failing_since if before else self._clock.now()
        host.answered_at = self._clock.now() if alive else host.answered_at
        if (before == 0) != alive or before in (1, 2):
            self._wake()

    def failed(self, uid: str) -> int:
        """Probes in a row that timed out."""
        host = self._hosts.get(uid)
        return host.failed if host else 0

    def silent_seconds(self, uid: str) -> float:
        """Since the first of them, 0: it answered last."""
        host = self._hosts.get(uid)
        return 0.0 if host is None or host.failing_since is None else self._clock.now() - host.failing_since

    def answered_within(self, uid: str, seconds: float) -> bool:
        """Whether it answered lately."""
        host = self._hosts.get(uid)
        return host is not None and host.answered_at is not None and self._clock.now() - host.answered_at <= seconds

    def uids(self) -> set[str]:
        """Of all pods that something is known of."""
        return set(self._hosts)

    def stop(self) -> None:
        """End all."""
        for host in self._hosts.values():
            self._cancel(host)
        self._hosts = {}

    def _cancel(self, host: _Host) -> None:
        if host.task is not None:
            host.task.cancel()
        host.task, host.peer = None, None

    async def _probe_forever(self, peer: Peer) -> None:
        """A probe every half second, each with a second to succeed: two that fail are known after a second and a half."""

        async def probe_once() -> None:
            self.note(peer.uid, alive=await self._client.probe(peer.ip))

        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                task = tasks.start(probe_once(), f"probe {peer.ip}")
                running.add(task)
                task.add_done_callback(running.discard)
                few = self.failed(peer.uid) >= _FEWER_AFTER
                await self._clock.sleep(_FEWER_SECONDS if few else _EVERY_SECONDS)
        finally:
            for task in running:
                task.cancel()
