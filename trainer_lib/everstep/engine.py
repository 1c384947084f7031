"""The seam behind which saving and loading happen. Everything above it knows keys, destinations and files, and no format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from everstep.flat import Path as KeyPath


@dataclass(frozen=True)
class FlatState:
    """What is to be saved, or where to load it: flat key -> tensor (this rank's part) or value; and each key's path."""

    values: dict[str, Any]
    paths: dict[str, KeyPath]


@dataclass(frozen=True)
class SavedItem:
    """What a checkpoint says about a key. `shape` and `dtype` (a torch.dtype) are None for a value that is no tensor."""

    path: KeyPath
    shape: tuple[int, ...] | None
    dtype: Any


class PendingSave(Protocol):
    """A save that goes on in the background."""

    def wait(self) -> None:
        """Return when this rank's files, and with rank 0 `.metadata`, are written. Raises SaveError."""

    def on_done(self, call: Callable[[], None]) -> None:
        """Call, on the thread that saves, as soon as `wait` would not block. `call` must not raise."""


class Engine(Protocol):
    """Writes and reads plain DCP directories. All ranks call each method together, with the same keys but for per-rank ones."""

    def save(self, state: FlatState, directory: Path) -> PendingSave:
        """Freeze `state` (B12: nothing that changes after the return is saved) and write it in the background. One at a time."""

    def catalogue(self, directory: Path) -> Mapping[str, SavedItem]:
        """Every key of a checkpoint. Reads the index only. Raises LoadError."""

    def load(self, state: FlatState, directory: Path) -> None:
        """Fill the tensors of `state` in place and replace its values. Raises LoadError that names file and key; then
        tensors may be torn."""
