"""What the container's control group says: how many cores there are, how many processes were killed for memory."""

from __future__ import annotations

import os
import re
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_SELF = Path("/proc/self/cgroup")


def count_oom_kills(root: Path = _ROOT, own: Path = _SELF) -> int | None:
    """Processes of this container that the kernel killed for memory so far; None where it cannot be known."""
    files = _candidates("memory", "memory.events", "memory.oom_control", root, own)
    return next((int(found[1]) for text in files if (found := re.search(r"^oom_kill (\d+)$", text, re.M))), None)


def count_cores(root: Path = _ROOT, own: Path = _SELF) -> int:
    """Cores that this container may use, at least 1: its affinity, or its limit where that is less."""
    cores = float(len(os.sched_getaffinity(0)))
    for text in _candidates("cpu", "cpu.max", "cpu.cfs_quota_us", root, own):
        if found := re.match(r"(\d+)(?: (\d+))?\s*$", text):
            cores = min(cores, int(found[1]) / int(found[2] or 100_000))  # version 1's period is the default of both
            break
    return max(1, int(cores))


def _candidates(controller: str, file_v2: str, file_v1: str, root: Path, own: Path) -> list[str]:
    """Contents of the file, looked for where the kernel says this process is, then at the root (a container's own view)."""
    found = []
    for line in _read(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found += [root / path.lstrip("/") / file_v2, root / "unified" / path.lstrip("/") / file_v2]
        elif controller in controllers.split(","):
            found.append(root / controller / path.lstrip("/") / file_v1)
    found += [root / file_v2, root / controller / file_v1]
    return [text for file in found if (text := _read(file))]


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
