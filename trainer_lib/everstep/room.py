"""How much can be written to a place."""

from __future__ import annotations

import os
from pathlib import Path


def free_bytes(path: Path) -> int | None:
    """What is free for this user; None where the file system does not say: some FUSE and network mounts answer with zeros."""
    try:
        status = os.statvfs(path)
    except OSError:  # the writer meets it, too, and there it is a failed save
        return None
    return status.f_bavail * status.f_frsize if status.f_blocks else None
