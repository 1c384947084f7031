"""The whole table, and how it is played: what is equal shares Checkpointers, what is refused has small ones."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import playing
from playing import LAST_STEP, SAVED_STEP, Told, entry_name, play
from things import (
    AT_RESUME,
    AT_SAVE,
    AT_START,
    CHANGES_TYPE,
    EQUAL,
    GETS_KEYS,
    NOTHING,
    Cell,
    Impossible,
    Thing,
    cells_of,
    expected,
    start_in,
)
from things_models import model_things
from things_optimizers import optimizer_things
from things_plain import plain_things
from things_refused import refused_things
from things_schedules import schedule_things
from things_sharded import sharded_things
from things_tensors import tensor_things

GROUP = 8  # cells to be refused that share a Checkpointer: the sentence must name each
BATCH = 40  # things that share a Checkpointer where all is expected to be right
SMALL_BATCH = 2  # and where a few of their cells at a time are tried on the checkpoint
Numbered = dict[int | None, Cell]


def all_things() -> list[Thing]:
    """Every line of the table."""
    return [
        *plain_things(),
        *refused_things(),
        *tensor_things(),
        *model_things(),
        *optimizer_things(),
        *schedule_things(),
        *sharded_things(),
    ]


@dataclass
class Failures:
    """Cells whose outcome is wrong, each with the worlds, what was expected, and what was found."""

    lines: list[str]

    def add(self, cell: Cell, worlds: str, wanted: str, found: str) -> None:
        """One more."""
        self.lines.append(f"{cell} / {worlds}: expected {wanted}, found: {' '.join(found.split())[:600]}")

    def check(self) -> None:
        """Raises AssertionError that lists them."""
        assert not self.lines, f"{len(self.lines)} cells are wrong:\n" + "\n".join(sorted(set(self.lines)))


# ---------------------------------------------------------------------- what a refusal must look like


_REMEDY = re.compile(
    r"\b(give|put|take|use|keep|make|convert|admit|add|pass|name|turn|save|remove|repair|leave|redistribute|set|call|start|resume)\b",
    re.I,
)


def complaints(text: str, keys: Sequence[str]) -> list[str]:
    """What a sentence for users lacks."""
    found = [f"it does not name {key}" for key in keys if not re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", text)]
    if "Traceback" in text or 'File "' in text:
        found.append("it holds a traceback")
    if not _REMEDY.search(text):
        found.append("it says no remedy")
    if len(re.findall(r"[.!?]\s+[A-Z]", text)) > 1:
        found.append("it is more than two sentences")
    return found


def key_in(cell: Cell, number: int | None) -> str:
    """The cell's key where its entries are numbered."""
    first, dot, rest = cell.key.partition(".")
    return entry_name(first, number) + dot + rest


# ---------------------------------------------------------------------- free things


def settled(things: Sequence[Thing], folder: Path) -> list[Thing]:
    """The things, where those that the library may take or refuse are marked by what it does."""
    free = [thing for thing in things if thing.is_free]
    jobs = [partial(playing.begin, {None: Cell(thing, NOTHING)}, folder / f"free-{n}") for n, thing in enumerate(free)]
    told = dict(zip((thing.name for thing in free), play(1, jobs, folder), strict=True))
    return [_refused(thing) if thing.name in told and told[thing.name][0].kind else thing for thing in things]


def _refused(thing: Thing) -> Thing:
    kept = (NOTHING, CHANGES_TYPE, GETS_KEYS)
    seen = Impossible("refused at the start")
    changes = {name: change if name in kept else seen for name, change in thing.changes.items()}
    return replace(thing, is_savable=False, changes=changes)


# ---------------------------------------------------------------------- refused


def chosen(things: Sequence[Thing], outcome: str, saved_by: int) -> list[Cell]:
    """The cells of one outcome where that many ranks save."""
    cells = [cell for cell in cells_of(things) if saved_by in cell.thing.saved_by]
    return [cell for cell in cells if expected(cell, saved_by, saved_by) == outcome]


def play_starts(things: Sequence[Thing], num_ranks: int, folder: Path, failures: Failures) -> None:
    """Each alone: refused on all ranks, before the first step."""
    cells = chosen(things, AT_START, num_ranks)
    jobs = [partial(playing.begin, {None: cell}, folder / f"start-{num_ranks}-{n}") for n, cell in enumerate(cells)]
    for cell, told in zip(cells, play(num_ranks, jobs, folder), strict=True):
        for number, each in enumerate(told):
            wrong = [] if each.kind == "StateError" else [f"{each.kind or 'nothing'} was raised"]
            wrong += complaints(each.error, [cell.key]) if each.kind else []
            if wrong:
                failures.add(cell, f"{num_ranks}, rank {number}", AT_START, f"{', '.join(wrong)}: {each.error}")


def play_saves(things: Sequence[Thing], num_ranks: int, folder: Path, failures: Failures) -> None:
    """A few of a happening together: told at the save, saved once repaired, raised at the end. Alone, if one spoils it."""

    def attempt(batches: Sequence[Batch]) -> list[tuple[Batch, Sequence[Told]]]:
        jobs = [partial(playing.break_and_repair, each.cells, Path(tempfile.mkdtemp(dir=folder))) for each in batches]
        return list(zip(batches, play(num_ranks, jobs, folder), strict=True))

    narrowed(
        [Batch(folder, num_ranks, dict(enumerate(group))) for group in _groups(chosen(things, AT_SAVE, num_ranks))],
        attempt,
        lambda batch, told: _by_cell(batch, told, _wrong_save),
        lambda cell, text: failures.add(cell, str(num_ranks), AT_SAVE, text),
    )


def _groups(cells: Sequence[Cell]) -> list[list[Cell]]:
    together: dict[Any, list[Cell]] = {}
    for cell in cells:
        together.setdefault((cell.happening, cell.thing.is_savable, *sorted(cell.thing.options)), []).append(cell)
    return [group[at : at + GROUP] for group in together.values() for at in range(0, len(group), GROUP)]


def _wrong_save(told: Sequence[Told], key: str) -> str:
    """What is wrong on any rank; empty: all is right."""
    wrong = []
    for number, each in enumerate(told):
        if not each.facts:
            return f"rank {number}: {each.kind}: {each.error[-500:]}"
        if each.facts["saved"] != [2]:
            wrong.append(f"rank {number} sees the saves {each.facts['saved']}, not [2]")
        if each.kind != "SaveError":
            wrong.append(f"rank {number} raised {each.kind or 'nothing'} at the end")
        elif lacks := complaints(each.error, [key]):
            wrong.append(f"rank {number}, at the end: {', '.join(lacks)}: {each.error}")
    first = "".join(each.facts["first"] for each in told)
    if lacks := complaints(first, [key]):
        wrong.append(f"on stderr: {', '.join(lacks)}: {first}")
    return "; ".join(wrong)


# ---------------------------------------------------------------------- saved, and started again


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


Attempt = Callable[[Sequence[Batch]], list[tuple[Batch, Sequence[Told]]]]
Verdict = Callable[[Batch, Sequence[Told]], dict[int | None, str]]  # what is wrong, by number of the cell
Tell = Callable[[Cell, str], None]


def narrowed(batches: Sequence[Batch], attempt: Attempt, verdict: Verdict, wrong: Tell) -> list[Batch]:
    """Batches that went well. One that did not is tried again thing by thing, then cell by cell, to find what spoils it."""
    good: list[Batch] = []
    spoiled: list[tuple[Batch, dict[int | None, str]]] = []
    for batch, told in attempt(batches) if batches else []:
        problems = verdict(batch, told)
        if problems:
            spoiled.append((batch, problems))
        else:
            good.append(batch)
    smaller = [part for batch, _ in spoiled for part in batch.parts()]
    found: set[str] = set()

    def wrong_alone(cell: Cell, text: str) -> None:
        found.add(str(cell))
        wrong(cell, text)

    good += narrowed(smaller, attempt, verdict, wrong_alone) if smaller else []
    for batch, problems in spoiled:
        if not any(str(cell) in found for cell in batch.cells.values()):
            number, text = next(iter(problems.items()))
            others = len(batch.cells) - 1
            wrong(batch.cells[number], f"{f'only together with {others} others: ' if others else ''}{text}")
    return good


def _went_well(batch: Batch, told: Sequence[Told]) -> dict[int | None, str]:
    """Nothing was raised, the save is there, and every cell is as it should be."""
    for each in told:
        if each.kind or not (each.facts.get("saved") or each.facts.get("began")):
            return dict.fromkeys(batch.cells, f"{each.kind}: {each.text}")
    return {number: text for each in told for number, text in each.found.items()}


def play_kept(cells: Sequence[Cell], saved_by: int, folder: Path, failures: Failures, wanted: str) -> list[Batch]:
    """Save the cells in a few Checkpointers."""
    last_step, num_things = (LAST_STEP, BATCH) if wanted == EQUAL else (SAVED_STEP, SMALL_BATCH)

    def attempt(batches: Sequence[Batch]) -> list[tuple[Batch, Sequence[Told]]]:
        fresh = [replace(batch, folder=Path(tempfile.mkdtemp(dir=folder))) for batch in batches]
        told = play(saved_by, [partial(playing.save, batch.cells, batch.folder, last_step) for batch in fresh], folder)
        return list(zip(fresh, told, strict=True))

    def wrong(cell: Cell, text: str) -> None:
        failures.add(cell, f"{saved_by}, saving", wanted, text)

    return narrowed(batches_of(cells, saved_by, folder, num_things), attempt, _went_well, wrong)


def play_equal(kept: Sequence[Batch], resumed_by: int, folder: Path, failures: Failures) -> None:
    """Start again in a world, many cells together."""
    saved_by = kept[0].saved_by
    start = start_in(saved_by, resumed_by)

    def attempt(batches: Sequence[Batch]) -> list[tuple[Batch, Sequence[Told]]]:
        jobs = [partial(playing.resume, each.cells, each.folder, each.copy(), start, saved_by) for each in batches]
        return list(zip(batches, play(resumed_by, jobs, folder), strict=True))

    chosen = [batch.expecting(EQUAL, resumed_by) for batch in kept]
    narrowed(
        [batch for batch in chosen if batch.cells],
        attempt,
        _went_well,
        lambda cell, text: failures.add(cell, f"{saved_by} to {resumed_by}", EQUAL, text),
    )


def play_refused_resumes(kept: Sequence[Batch], resumed_by: int, folder: Path, failures: Failures) -> None:
    """Start again in a world, a few cells together: refused on all ranks, before the first step. Alone, if one spoils it."""
    saved_by = kept[0].saved_by
    start = start_in(saved_by, resumed_by)

    def attempt(batches: Sequence[Batch]) -> list[tuple[Batch, Sequence[Told]]]:
        jobs = [partial(playing.start_again, batch.cells, batch.copy(), start) for batch in batches]
        return list(zip(batches, play(resumed_by, jobs, folder), strict=True))

    narrowed(
        [group for batch in kept for group in batch.expecting(AT_RESUME, resumed_by).by_few()],
        attempt,
        lambda batch, told: _by_cell(batch, told, _wrong_resume),
        lambda cell, text: failures.add(cell, f"{saved_by} to {resumed_by}", AT_RESUME, text),
    )


def _by_cell(batch: Batch, told: Sequence[Told], judge: Callable[[Sequence[Told], str], str]) -> dict[int | None, str]:
    """What is wrong with each cell, as far as its key tells."""
    texts = {number: judge(told, key_in(cell, number)) for number, cell in batch.cells.items()}
    return {number: text for number, text in texts.items() if text}


def _wrong_resume(told: Sequence[Told], key: str) -> str:
    wrong = []
    for number, each in enumerate(told):
        lacks = complaints(each.error, [key]) if each.kind == "LoadError" else [f"raised {each.kind or 'nothing'}"]
        wrong += [f"rank {number}: {', '.join(lacks)}: {each.error}"] if lacks else []
    return "; ".join(wrong)
