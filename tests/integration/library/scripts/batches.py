"""Cells that share a Checkpointer, and the search for the one that spoils it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from playing import SAVED_STEP, Told
from things import Cell, expected

GROUP = 8  # cells to be refused that share a Checkpointer: the sentence must name each
MOST_TRIES = 150  # of smaller batches, so that a library that fails at everything is told soon
Numbered = dict[int | None, Cell]


@dataclass(frozen=True)
class Batch:
    """Cells that share a Checkpointer; in `folder` are their checkpoint and what they looked like."""

    folder: Path
    saved_by: int
    cells: Numbered

    def without_others(self, cells: Sequence[int | None]) -> Batch:
        """The same checkpoint for fewer cells."""
        return replace(self, cells={number: self.cells[number] for number in cells})

    def parts(self) -> list[Batch]:
        """Smaller batches, down to one cell."""
        if len(self.cells) == 1:
            return []
        things = self.by_thing()
        return things if len(things) > 1 else [self.without_others([number]) for number in self.cells]

    def by_thing(self) -> list[Batch]:
        """A batch for each thing."""
        things: dict[str, list[int | None]] = {}
        for number, cell in self.cells.items():
            things.setdefault(cell.thing.name, []).append(number)
        return [self.without_others(numbers) for numbers in things.values()]

    def by_few(self) -> list[Batch]:
        """Batches of some cells."""
        numbers = list(self.cells)
        return [self.without_others(numbers[at : at + GROUP]) for at in range(0, len(numbers), GROUP)]

    def expecting(self, outcome: str, resumed_by: int) -> Batch:
        """The cells of this outcome in that world."""
        cells = self.cells.items()
        return self.without_others([n for n, cell in cells if expected(cell, self.saved_by, resumed_by) == outcome])

    def copy(self) -> Path:
        """A new folder of checkpoints with this one."""
        return copy_of(self.folder / "checkpoints", f"step_{SAVED_STEP}")


def copy_of(folder: Path, checkpoint: str) -> Path:
    """A new folder with one of a folder's checkpoints."""
    target = Path(tempfile.mkdtemp(dir=folder.parent))
    shutil.copytree(folder / checkpoint, target / checkpoint)
    return target


def batches_of(cells: Sequence[Cell], saved_by: int, folder: Path, num_things: int) -> list[Batch]:
    """Batches of some things each, those with options apart."""
    whole = Batch(folder, saved_by, dict(enumerate(cells)))
    rows = whole.by_thing()
    apart = [[row for row in rows if bool(_first(row).thing.options) is has_options] for has_options in (False, True)]
    made = [group[at : at + num_things] for group in apart for at in range(0, len(group), num_things)]
    return [whole.without_others([number for row in group for number in row.cells]) for group in made]


def _first(batch: Batch) -> Cell:
    return next(iter(batch.cells.values()))


@dataclass(frozen=True)
class Verdict:
    """What is wrong, by number of the cell. `is_certain`: it is these cells' own fault, whatever the others are."""

    problems: dict[int | None, str]
    is_certain: bool = False


Attempt = Callable[[Sequence[Batch]], list[tuple[Batch, Sequence[Told]]]]
Judge = Callable[[Batch, Sequence[Told]], Verdict]
Tell = Callable[[Cell, str], None]


def narrowed(batches: Sequence[Batch], attempt: Attempt, judge: Judge, wrong: Tell) -> list[Batch]:
    """Batches that went well. One that did not is tried again thing by thing, then cell by cell, to find what spoils it."""
    good: list[Batch] = []
    spoiled: list[tuple[Batch, Verdict]] = []
    for batch, told in attempt(batches) if batches else []:
        verdict = judge(batch, told)
        if verdict.problems and not verdict.is_certain:
            spoiled.append((batch, verdict))
            continue
        good.append(batch)
        for number, text in verdict.problems.items():
            wrong(batch.cells[number], text)
    found: set[Cell] = set()

    def wrong_alone(cell: Cell, text: str) -> None:
        found.add(cell)
        wrong(cell, text)

    smaller = [part for batch, _ in spoiled for part in batch.parts()]
    good += narrowed(smaller[:MOST_TRIES], attempt, judge, wrong_alone) if smaller else []
    for batch, verdict in spoiled:
        if not found & set(batch.cells.values()):
            number, text = next(iter(verdict.problems.items()))
            others = f"only together with {len(batch.cells) - 1} others: " if len(batch.cells) > 1 else ""
            wrong(batch.cells[number], others + text)
    return good
