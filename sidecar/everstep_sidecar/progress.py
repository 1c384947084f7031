"""Shared memory with the trainers: their Progress pages are read, the Control page is written."""

from __future__ import annotations

import time
from pathlib import Path

from everstep_protocol import names
from everstep_protocol.shared_memory import Control, Page, Progress


class TrainerPages:
    """The pages of this pod's trainers. Cheap: maps each file once, then only reads memory."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._pages: dict[tuple[str, int], Page[Progress]] = {}
        self._control: Page[Control] = Page(memory / names.CONTROL_NAME, Control)
        self._control_open = False

    def progress(self, attempt: int, processes: int) -> tuple[Progress, ...]:
        """The newest record of each local rank that reported in this attempt."""
        records = (self._read(local_rank) for local_rank in range(processes))
        return tuple(record for record in records if record is not None and record.attempt == attempt)

    def write_control(self, control: Control) -> None:
        """Publish the agreed stop step, or that there is none."""
        self._open_control()
        self._control.write(control)

    def control(self) -> Control | None:
        """What trainers see now."""
        self._open_control()
        return self._control.read()

    def close(self) -> None:
        """Unmap all."""
        for page in self._pages.values():
            page.close()
        self._pages.clear()
        self._control.close()
        self._control_open = False

    def _open_control(self) -> None:
        if not self._control_open:
            self._control.open(create=True)
            self._control_open = True

    def _read(self, local_rank: int) -> Progress | None:
        path = self._memory / f"{names.PROGRESS_PREFIX}{local_rank}"
        try:
            stat = path.stat()
        except FileNotFoundError:
            return None
        key = (path.name, stat.st_ino)  # a file made anew is another page
        page = self._pages.get(key)
        if page is None:
            page = self._opened(path, key)
        return page.read()

    def _opened(self, path: Path, key: tuple[str, int]) -> Page[Progress]:
        for old in [other for other in self._pages if other[0] == path.name]:
            self._pages.pop(old).close()
        page: Page[Progress] = Page(path, Progress)
        page.open(create=False)
        self._pages[key] = page
        return page


def now_ns() -> int:
    """CLOCK_MONOTONIC, the trainers' own clock."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
