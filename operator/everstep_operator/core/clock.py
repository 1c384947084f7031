"""Wall-clock times in status: seconds since the epoch to RFC 3339 and back. For people, the crash window, deadline and TTL (R27)."""

from __future__ import annotations

from datetime import datetime, timezone


def rfc3339(seconds: float) -> str:
    """`2025-11-29T01:02:03.250Z`."""
    moment = datetime.fromtimestamp(seconds, tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def since_epoch(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 time. Raises ValueError for anything else."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def seconds_between(earlier: str, now: float) -> float | None:
    """Seconds from `earlier` (RFC 3339) to `now`, never below 0; None where `earlier` is empty."""
    return round(max(0.0, now - since_epoch(earlier)), 3) if earlier else None
