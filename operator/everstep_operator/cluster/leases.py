"""The kubelets' heartbeats: one LIST every few seconds, ages by our own clock since we last saw a lease change (R25, R27).

Only time that successful polls cover counts: after a failed one, after a start or a stall, every age begins anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from everstep_operator.cluster.client import ApiError, Client, Raw, Unavailable

_log = logging.getLogger(__name__)

PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
POLL_SECONDS = (
    3.0  # on a quiet cluster also the proof that the API server answers, which must be younger than 5 s (R26)
)
_GAP_SECONDS = 3 * POLL_SECONDS
_DEFAULT_DURATION_SECONDS = 40.0


@dataclass
class Beat:
    """One node's lease. Server's times are compared for equality only."""

    renew_time: str
    duration_seconds: float
    changed_at: float
    told: bool = False  # that it is stale


class Beats:
    """Ages of leases, fed with polls. Pure but for the clock that it is given."""

    def __init__(self, on_stale: Callable[[str], None], on_fresh: Callable[[str], None]) -> None:
        self._on_stale = on_stale
        self._on_fresh = on_fresh
        self._beats: dict[str, Beat] = {}
        self._polled_at: float | None = None

    def take(self, leases: list[Raw], now: float) -> list[str]:
        """One successful poll. Returns the nodes that became stale, to be confirmed."""
        if self._polled_at is not None and now - self._polled_at > _GAP_SECONDS:
            self.uncover(now)
        self._polled_at = now
        seen = {lease["metadata"]["name"]: lease.get("spec") or {} for lease in leases}
        for node in [node for node in self._beats if node not in seen]:
            del self._beats[node]
        for node, spec in seen.items():
            self._take_one(node, spec, now)
        return [node for node, beat in self._beats.items() if not beat.told and self._is_stale(beat, now)]

    def confirm(self, node: str, spec: Raw, now: float) -> None:
        """R25: a suspect's lease was read by itself, not from a cache. Tells `on_stale` when it is still the same."""
        self._take_one(node, spec, now)
        beat = self._beats[node]
        if self._is_stale(beat, now):
            beat.told = True
            self._on_stale(node)

    def uncover(self, now: float) -> None:
        """What was not looked at is not known: all ages begin again."""
        for beat in self._beats.values():
            beat.changed_at = now
            beat.told = False

    def age(self, node: str, now: float) -> tuple[float, float]:
        """(seconds since it changed, covered by polls; its own duration). A node without a lease is not judged: age 0."""
        beat = self._beats.get(node)
        if beat is None or self._polled_at is None:
            return 0.0, _DEFAULT_DURATION_SECONDS
        covered = min(now, self._polled_at + POLL_SECONDS)
        return max(0.0, covered - beat.changed_at), beat.duration_seconds

    def _take_one(self, node: str, spec: Raw, now: float) -> None:
        renew_time = str(spec.get("renewTime"))
        beat = self._beats.get(node)
        if beat is None or beat.renew_time != renew_time:
            duration = float(spec.get("leaseDurationSeconds") or _DEFAULT_DURATION_SECONDS)
            self._beats[node] = Beat(renew_time, duration, now)
            if beat is not None and beat.told:
                self._on_fresh(node)

    def _is_stale(self, beat: Beat, now: float) -> bool:
        return now - beat.changed_at >= beat.duration_seconds / 2


class LeaseWatch:
    """Polls for ever."""

    def __init__(self, client: Client, beats: Beats) -> None:
        self._client = client
        self._beats = beats
        self.synced = asyncio.Event()
        self.polled_at = time.monotonic()

    async def run(self) -> None:
        """For ever; never raises but on cancellation."""
        while True:
            try:
                await self._poll()
            except (ApiError, Unavailable) as error:
                _log.warning("leases of nodes are not seen: %s", error)
                self._beats.uncover(time.monotonic())
            await asyncio.sleep(POLL_SECONDS)

    async def _poll(self) -> None:
        leases: list[Raw] = []
        async for page in self._client.list_pages(PATH, {"resourceVersion": "0"}):
            leases.extend(page.get("items") or [])
        stale = self._beats.take(leases, time.monotonic())
        self.polled_at = time.monotonic()
        self.synced.set()
        for node in stale:
            lease = await self._client.request("GET", f"{PATH}/{node}")
            self._beats.confirm(node, lease.get("spec") or {}, time.monotonic())
