"""What /metrics tells. One registry a process; labels only from closed lists."""

from __future__ import annotations

import time
from typing import Final

from everstep_protocol.messages import SidecarStatus
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

REASONS: Final = (
    "ENOSPC",
    "EDQUOT",
    "EIO",
    "EACCES",
    "EROFS",
    "ESTALE",
    "ENOENT",
    "EBUSY",
    "StorageNotShared",
    "invalid",
    "other",
)
STAGES: Final = ("copy", "commit", "total", "verify")
_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class Metrics:
    """Counters exist at 0 from the start."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._saves = self._counter("saves", "Checkpoints committed by this sidecar (coordinator)")
        self._bytes = self._counter("saved_bytes", "Bytes copied from memory to storage by this sidecar")
        self._failures = self._counter("save_failures", "Failed tries to persist or commit, by reason", "reason")
        self._seconds = Histogram(
            "everstep_save_stage_seconds", "Seconds by stage", ["stage"], registry=self.registry, buckets=_BUCKETS
        )
        self._skipped = self._gauge("skipped_saves", "Saves that the trainers of this attempt skipped")
        self._never_whole = self._gauge("failed_snapshots", "Saves of this attempt that never became whole in memory")
        self._newest_step = self._gauge("newest_checkpoint_step", "Step of the newest complete checkpoint, -1: none")
        self._newest_time = self._gauge("newest_checkpoint_time_seconds", "When it was committed (Unix time), 0: none")
        self._since = self._gauge(
            "steps_since_checkpoint", "Steps finished since the newest complete checkpoint (coordinator)"
        )
        self._attempt = self._gauge("attempt", "Attempt that this pod obeys, 0: none")
        self._late = self._gauge("loop_late_seconds", "By how much the sidecar's own loop was late, worst of 5 s")
        self._lost_peers = self._gauge("lost_peers", "Peers whose keepalive connection is lost")
        self._newest_step.set(-1)
        for reason in REASONS:
            self._failures.labels(reason)
        for stage in STAGES:
            self._seconds.labels(stage)

    def committed(self, step: int) -> None:
        """A checkpoint was committed now."""
        self._saves.inc()
        self.newest(step, time.time())

    def newest(self, step: int, at: float) -> None:
        """The newest complete checkpoint that is known, and when it was committed (Unix time; for people only, R27)."""
        self._newest_step.set(step)
        self._newest_time.set(at)

    def copied(self, num_bytes: int) -> None:
        """Bytes that reached the storage."""
        self._bytes.inc(num_bytes)

    def stage(self, name: str, seconds: float) -> None:
        """How long one stage of one save took."""
        self._seconds.labels(name).observe(seconds)

    def failed(self, reason: str) -> None:
        """A try failed; reasons beyond the list count as `other`."""
        self._failures.labels(reason if reason in REASONS else "other").inc()

    def observe(self, status: SidecarStatus, *, since: int) -> None:
        """Gauges that are read when somebody asks."""
        self._attempt.set(status.attempt)
        self._since.set(since)
        self._skipped.set(status.num_skipped_saves)
        self._never_whole.set(status.num_failed_saves)
        self._late.set(status.late_seconds)
        self._lost_peers.set(len(status.lost_peers))

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"everstep_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"everstep_{name}", text, registry=self.registry)
