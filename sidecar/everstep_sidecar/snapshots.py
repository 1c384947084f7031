"""The snapshots that trainers leave in this pod's memory: where they are, and how they go. Everything blocks: call it in a thread."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from everstep_protocol import names, storage
from everstep_protocol.records import Ready

from everstep_sidecar.store import temporary

_log = logging.getLogger(__name__)


def folder_of(memory: Path, attempt: int) -> Path:
    """Where an attempt's snapshots are, a folder for each step."""
    return memory / names.SNAPSHOTS_NAME / storage.snapshot_name(attempt)


def find_ready(memory: Path, attempt: int, step: int, rank: int) -> Ready | None:
    """A rank's record of a snapshot that is whole; None: it is not there, or damaged."""
    try:
        return temporary.read_ready(folder_of(memory, attempt) / storage.step_name(step), rank)
    except temporary.BadSnapshot:
        return None


def drop_foreign(memory: Path, attempt: int) -> None:
    """R10: what other attempts left in memory goes once this attempt starts."""
    keep = folder_of(memory, attempt)
    if keep.parent.is_dir():
        for other in keep.parent.iterdir():
            if other != keep:
                remove(other)


def remove(folder: Path) -> None:
    """Free the memory. What cannot be removed is told: it counts against the container's limit."""

    def tell(function: object, path: str, info: tuple[type[BaseException], BaseException, object]) -> None:
        if not isinstance(info[1], FileNotFoundError):
            _log.warning("cannot remove %s from memory: %s", path, info[1])

    shutil.rmtree(folder, onerror=tell)
