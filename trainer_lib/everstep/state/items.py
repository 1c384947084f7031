"""What the entries of the state say to the saver and the loader: items to save, places to load into."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from everstep.engine import SavedItem
from everstep.state.tree import Path, Shape


class Sharing(enum.Enum):
    """Whose a value is, where several ranks hold one under one key (B24, TR1)."""

    SAME = "same"  # all ranks hold equal ones; a difference is refused
    RANK_0 = "rank 0"  # rank 0's counts
    OWN = "own"  # rank 0's counts, and in a world of the same size each rank gets its own back
    LISTED = "listed"  # a list of names; the ranks' lists together count


@dataclass(frozen=True)
class Item:
    """A value of the state. `everywhere`: every rank must hold one of this path."""

    path: Path
    value: Any
    sharing: Sharing = Sharing.SAME
    everywhere: bool = True


@dataclass(frozen=True)
class Captured:
    """An entry's items, and the shapes of nests that do not follow from their paths, by the path where they begin."""

    items: list[Item]
    shapes: dict[Path, Shape] = field(default_factory=dict)


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds of an entry, for this rank: each item with its path in the entry, shapes as `Captured`."""

    items: Mapping[Path, SavedItem]
    shapes: Mapping[Path, Shape]
    groups: list[list[str]]  # an optimizer's parameter names by group, of all ranks together
    meshes: Sequence[Any] = ()  # device meshes over which the state in use is sharded


@dataclass(frozen=True)
class Slot:
    """Where a saved item is loaded: `into` a tensor, or None for a value; `result` is what the entry gets then, if not `into`."""

    into: Any
    result: Any = None
    traits: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Slots:
    """`of`: this rank's. `spare`: saved items that have no place here, but may have one on another rank. `problems`: sentences."""

    of: dict[Path, Slot]
    spare: frozenset[Path] = frozenset()
    problems: tuple[str, ...] = ()


class Entry(Protocol):
    """One thing of the state, under its name."""

    name: str

    def capture(self, step: int) -> Captured:
        """Live values after `step` finished steps; the first part of a path is the entry's name. Raises Unsavable, StateError."""

    def slots(self, saved: Saved) -> Slots:
        """Where to load what `saved` holds, and every key that does not fit."""

    def restore(self, loaded: Mapping[Path, Any], saved: Saved) -> None:
        """Put what was loaded into the objects in use."""


def under(root: Path, items: Mapping[Path, Any]) -> dict[Path, Any]:
    """The items below a path, with what follows of their paths."""
    return {path[len(root) :]: value for path, value in items.items() if path[: len(root)] == root}
