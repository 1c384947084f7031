"""What becomes of saves, for those who tell of it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from everstep.engine import PendingSave


@dataclass
class Counts:
    """Saves of this attempt that were not made."""

    skipped: int = 0
    failed: int = 0


@dataclass(frozen=True)
class FailedSave:
    """Why the newest save failed: one word for machines, a sentence for people."""

    step: int
    reason: str
    message: str


@dataclass
class Flight:
    """The newest save: in the background until `settled`, then good or not."""

    step: int
    settled: Future[None] = field(default_factory=Future)
    pending: PendingSave | None = None  # None: it failed before it was begun
