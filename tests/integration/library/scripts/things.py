"""What the table is made of: things that a script may put into its state, what may happen to them, and the rules of what follows.

A cell is a thing, a happening between start and save, and the two worlds. Its outcome follows from `expected`; a thing spells out
only where it is an exception. A thing that says nothing about a happening is an error, so that nobody can forget a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

# What may happen between start and save.
NOTHING = "nothing"
GROWS = "grows"
CHANGES_TYPE = "changes type"
CHANGES_DTYPE = "changes dtype"
GETS_KEYS = "gets keys"
LOSES_KEYS = "loses keys"
DIFFERS = "differs by rank"
REPLACED = "is replaced"
UNCOPYABLE = "cannot be copied"
TO_META = "goes to another device"
HAPPENINGS = (
    NOTHING,
    GROWS,
    CHANGES_TYPE,
    CHANGES_DTYPE,
    GETS_KEYS,
    LOSES_KEYS,
    DIFFERS,
    REPLACED,
    UNCOPYABLE,
    TO_META,
)
_APPEARING = (CHANGES_TYPE, GETS_KEYS)  # the thing is not there at the start, but at the save

# What follows. Nothing else is right.
EQUAL = "equal"
AT_START = "refused at the start"
AT_SAVE = "refused at the save"
AT_RESUME = "refused at the resume"

WORLDS = ((2, 2), (2, 3), (2, 1), (1, 1), (1, 2))  # saved by, resumed by

OTHER, EMPTY = "other", "empty"  # what a script that resumes has made before: values of that shape, or nothing yet


def start_in(saved_by: int, resumed_by: int) -> str:
    """Each kind of start meets the same world and another one."""
    return (OTHER, EMPTY)[WORLDS.index((saved_by, resumed_by)) % 2]


def rank() -> int:
    """This process's rank; 0 where it is alone."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """The number of ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


class Part:
    """A thing as one run of a script has it. `entries` go into the Checkpointer's state; `box` is what happenings change."""

    entries: Mapping[str, Any]
    goes_on = False  # whether what becomes of it after the resume is to be compared, too
    has_own_data = False  # each rank trains on its own: only the same world can end alike

    def step(self, step: int) -> None:
        """What the loop's body does."""

    def look(self) -> Any:
        """A copy of all that must come back; all ranks together."""
        raise NotImplementedError

    def forget(self, start: str) -> None:
        """Be as a script that starts again has it: with other values (OTHER), or empty (EMPTY)."""

    def places(self) -> dict[Any, Any]:
        """Tensors that a load must fill where they are, by place."""
        return {}

    def remember(self) -> Any:
        """What `repair` needs to undo a change."""
        raise NotImplementedError

    def repair(self, memory: Any) -> None:
        """Undo a change."""
        raise NotImplementedError


@dataclass(frozen=True)
class Impossible:
    """A happening that cannot be, or says nothing new, and why."""

    why: str


@dataclass(frozen=True)
class Change:
    """`make` does it between start and save; `prepare` is how a script that is to see it starts, at first and again."""

    make: Callable[[Any], None]
    prepare: Callable[[Any], None] = lambda part: None


@dataclass(frozen=True)
class Saved:
    """What a resumed rank may compare with: each saving rank's look, its own look before the load, and who it is."""

    looks: Sequence[Any]
    fresh: Any
    rank: int
    same_world: bool


def own_or_first(saved: Saved) -> Any:
    """In the same world each rank's own, elsewhere rank 0's."""
    return saved.looks[saved.rank] if saved.same_world else saved.looks[0]


def of_rank_0(saved: Saved) -> Any:
    """Rank 0's counts for all."""
    return saved.looks[0]


def own_or_fresh(saved: Saved) -> Any:
    """In the same world each rank's own; elsewhere what the script made."""
    return saved.looks[saved.rank] if saved.same_world else saved.fresh


@dataclass(frozen=True)
class Thing:
    """One line of the table.

    `key` is in each refusal's sentence; its first word is an entry's name. `changes` has one item for each happening.
    `outcomes` are exceptions from the rules.
    """

    name: str
    make: Callable[[], Part]
    key: str
    changes: Mapping[str, Change | Impossible]
    outcomes: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)  # by happening, where another key is the one to name
    is_savable: bool = True
    is_free: bool = False  # savable or not is the library's choice, but it must stay with it
    starts_alike: bool = True  # False: the ranks' values differ from the start
    elsewhere: str = EQUAL  # in another world, where the save is right
    in_worlds: Mapping[tuple[int, int], str] = field(default_factory=dict)  # exceptions from that
    comes_back_as: Callable[[Saved], Any] = own_or_first
    saved_by: tuple[int, ...] = (1, 2)
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of the Checkpointer: names of entries


@dataclass(frozen=True, eq=False)
class Cell:
    """A thing and a happening; the worlds are asked for in `expected`."""

    thing: Thing
    happening: str

    @property
    def change(self) -> Change:
        """How it is done."""
        change = self.thing.changes[self.happening]
        assert isinstance(change, Change)
        return change

    @property
    def key(self) -> str:
        """What a refusal must name."""
        return self.thing.keys.get(self.happening, self.thing.key)

    def __str__(self) -> str:
        return f"{self.thing.name} / {self.happening}"


def cells_of(things: Sequence[Thing]) -> list[Cell]:
    """Every possible cell. Raises AssertionError for a name that is twice there and a happening that a thing forgets."""
    names = [thing.name for thing in things]
    twice = sorted({name for name in names if names.count(name) > 1})
    assert not twice, f"two things have this name: {twice}"
    forgotten = [f"{thing.name}: {sorted(set(HAPPENINGS) ^ set(thing.changes))}" for thing in things]
    forgotten = [text for text in forgotten if not text.endswith("[]")]
    assert not forgotten, f"no word on these happenings: {forgotten}"
    return [
        Cell(thing, happening)
        for thing in things
        for happening in HAPPENINGS
        if isinstance(thing.changes[happening], Change)
    ]


def expected(cell: Cell, saved_by: int, resumed_by: int) -> str:
    """What must come of a cell: the rules."""
    outcome = _saving(cell, saved_by)
    if outcome != EQUAL or resumed_by == saved_by:
        return outcome
    return cell.thing.in_worlds.get((saved_by, resumed_by), cell.thing.elsewhere)


def _saving(cell: Cell, saved_by: int) -> str:
    thing, happening = cell.thing, cell.happening
    if not thing.is_savable:
        return AT_SAVE if happening in _APPEARING else AT_START
    if not thing.starts_alike and saved_by > 1:
        return AT_SAVE if happening in _APPEARING else AT_START
    if happening in thing.outcomes and not (happening == DIFFERS and saved_by == 1):
        return thing.outcomes[happening]
    if happening in (UNCOPYABLE, TO_META):
        return AT_SAVE
    if happening == DIFFERS and saved_by > 1:
        return AT_SAVE
    return EQUAL


def only(why: str, **changes: Change) -> dict[str, Change | Impossible]:
    """These changes (`happening` with _ for blanks) and no others."""
    told = {name.replace("_", " "): change for name, change in changes.items()}
    return {happening: told.get(happening, Impossible(why)) for happening in HAPPENINGS}
