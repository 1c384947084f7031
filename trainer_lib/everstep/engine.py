"""The seam behind which saving and loading happen. Everything above it knows keys, destinations and files, and no format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

KeyPath = tuple[Any, ...]  # of str (dict keys) and int (places in a list), as stock DCP has them


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

    def described(self) -> str:
        """`torch.float32 [3, 2]`."""
        return "no tensor" if self.shape is None else f"{self.dtype} {list(self.shape)}"


class Agreement(Protocol):
    """What ranks tell each other on the way of a save, so that nothing is written that they do not agree on."""

    def report(self) -> Any:
        """What this rank says of the frozen state; on the thread that saves. Can be pickled."""

    def settle(self, reports: list[Any]) -> None:
        """On rank 0, with every rank's report: may still change rank 0's plain values. Raises StateError, then nothing is written."""


class PendingSave(Protocol):
    """A save that goes on in the background."""

    def wait(self) -> None:
        """Return when this rank's files, and with rank 0 `.metadata`, are written. Raises SaveError."""

    def runs_here(self) -> bool:
        """Whether the caller is the thread that saves: garbage may be collected on any."""

    def on_done(self, call: Callable[[], None]) -> None:
        """Call, on the thread that saves, as soon as `wait` would not block. `call` must not raise."""


class Engine(Protocol):
    """Writes and reads plain DCP directories. All ranks call each method together, with the same keys but for per-rank ones."""

    def save(self, state: FlatState, directory: Path, agreement: Agreement) -> PendingSave:
        """Write `state`, which is frozen (B12: it shares nothing that can change), in the background. One at a time."""

    def catalogue(self, directory: Path) -> Mapping[str, SavedItem]:
        """Every key of a checkpoint. Reads the index only. Raises LoadError."""

    def load(self, state: FlatState, directory: Path) -> None:
        """Fill the tensors of `state` in place and replace its values. Raises LoadError that names file and key; then
        tensors may be torn."""
