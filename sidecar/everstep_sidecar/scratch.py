"""R8: what this pod must not forget when its containers or its node start anew. On disk, fsynced before it is obeyed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from everstep_protocol import codec, names
from everstep_protocol.plan import Plan


@dataclass(frozen=True)
class Remembered:
    """`attempt`: highest seen. The rest belongs to that attempt: its plan, and how far it got here."""

    attempt: int = 0
    plan: Plan | None = None
    started: bool = False  # Start was sent to the launcher: it is never sent again (R7)
    started_at_ns: int = 0  # CLOCK_MONOTONIC
    master_addr: str = ""
    master_port: int = 0
    nonces: dict[str, str] = field(default_factory=dict)  # coordinator: as in `go`
    stop_step: int = -1  # coordinator: the step that it proposed to all (R19)
    stop_confirmed: bool = False


class Scratch:
    """The file on the scratch volume. Raises InvalidDocument when it cannot be read: better to stay down than to obey an old plan."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / names.HIGHEST_NAME

    def load(self) -> Remembered:
        """What was remembered; nothing in a new pod."""
        try:
            return codec.loads(Remembered, self._path.read_bytes())
        except FileNotFoundError:
            return Remembered()

    def save(self, remembered: Remembered) -> None:
        """Replace the file, fsynced. Blocks: call it in a thread."""
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(codec.dumps(remembered).encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        handle = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
