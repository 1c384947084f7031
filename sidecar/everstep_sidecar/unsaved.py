"""Saves that failed in the trainers themselves, before anything was there to persist: a state that could never be loaded again."""

from __future__ import annotations

from pathlib import Path

from everstep_protocol import codec, dcp_metadata, names, records
from everstep_protocol.messages import Trouble

_LARGEST_BYTES = 16384


def failure(memory: Path, attempt: int, processes: int, now_ns: int) -> Trouble | None:
    """The oldest of what this pod's trainers of an attempt say; None: their newest saves are good."""
    found = [told for local_rank in range(processes) if (told := _read(memory, local_rank, attempt)) is not None]
    if not found:
        return None
    oldest = min(found, key=lambda told: told.since_ns)
    return Trouble(oldest.reason, oldest.message, max(0, now_ns - oldest.since_ns) / 1e9)


def _read(memory: Path, local_rank: int, attempt: int) -> records.Unsaved | None:
    """None where nothing is there, or it is another attempt's. A trainer writes it: it is small and regular, or it is not read."""
    path = memory / f"{names.UNSAVED_PREFIX}{local_rank}"
    try:
        told = codec.loads(records.Unsaved, dcp_metadata.read_regular_file(path, limit_bytes=_LARGEST_BYTES))
    except (OSError, dcp_metadata.InvalidMetadata, codec.InvalidDocument):
        return None
    return told if told.attempt == attempt else None
