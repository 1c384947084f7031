"""How the table is played: what is equal shares Checkpointers, what is refused has small ones."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import playing
from batches import GROUP, Batch, batches_of, narrowed
from judging import Failures, by_cell, wrong_in_batch, wrong_refusal, wrong_save
from playing import LAST_STEP, SAVED_STEP, Told, play
from table import chosen
from things import AT_RESUME, AT_SAVE, AT_START, EQUAL, Cell, Thing, start_in

BATCH = 40  # things that share a Checkpointer where all is expected to be right
SMALL_BATCH = 2  # and where a few of their cells at a time are tried on the checkpoint
Played = list[tuple[Batch, Sequence[Told]]]


def play_starts(things: Sequence[Thing], num_ranks: int, folder: Path, failures: Failures) -> None:
    """Each alone: refused on all ranks, before the first step."""

    def attempt(batches: Sequence[Batch]) -> Played:
        jobs = [partial(playing.begin, each.cells, Path(tempfile.mkdtemp(dir=folder))) for each in batches]
        return list(zip(batches, play(num_ranks, jobs, folder), strict=True))

    narrowed(
        [Batch(folder, num_ranks, {None: cell}) for cell in chosen(things, AT_START, num_ranks)],
        attempt,
        by_cell(wrong_refusal("StateError")),
        lambda cell, text: failures.add(cell, str(num_ranks), AT_START, text),
    )


def play_saves(things: Sequence[Thing], num_ranks: int, folder: Path, failures: Failures) -> None:
    """A few of a happening together: told at the save, saved once repaired, raised at the end. Alone, if one spoils it."""

    def attempt(batches: Sequence[Batch]) -> Played:
        jobs = [partial(playing.break_and_repair, each.cells, Path(tempfile.mkdtemp(dir=folder))) for each in batches]
        return list(zip(batches, play(num_ranks, jobs, folder), strict=True))

    narrowed(
        [Batch(folder, num_ranks, dict(enumerate(group))) for group in _groups(chosen(things, AT_SAVE, num_ranks))],
        attempt,
        by_cell(wrong_save),
        lambda cell, text: failures.add(cell, str(num_ranks), AT_SAVE, text),
    )


def _groups(cells: Sequence[Cell]) -> list[list[Cell]]:
    together: dict[Any, list[Cell]] = {}
    for cell in cells:
        together.setdefault((cell.happening, cell.thing.is_savable, *sorted(cell.thing.options)), []).append(cell)
    return [group[at : at + GROUP] for group in together.values() for at in range(0, len(group), GROUP)]


def play_kept(cells: Sequence[Cell], saved_by: int, folder: Path, failures: Failures, wanted: str) -> list[Batch]:
    """Save the cells in a few Checkpointers."""
    last_step, num_things = (LAST_STEP, BATCH) if wanted == EQUAL else (SAVED_STEP, SMALL_BATCH)

    def attempt(batches: Sequence[Batch]) -> Played:
        fresh = [replace(batch, folder=Path(tempfile.mkdtemp(dir=folder))) for batch in batches]
        told = play(saved_by, [partial(playing.save, batch.cells, batch.folder, last_step) for batch in fresh], folder)
        return list(zip(fresh, told, strict=True))

    def wrong(cell: Cell, text: str) -> None:
        failures.add(cell, f"{saved_by}, saving", wanted, text)

    return narrowed(batches_of(cells, saved_by, folder, num_things), attempt, wrong_in_batch, wrong)


def play_equal(kept: Sequence[Batch], worlds: tuple[int, int], folder: Path, failures: Failures) -> None:
    """Start again in a world, many cells together."""
    saved_by, resumed_by = worlds
    start = start_in(saved_by, resumed_by)

    def attempt(batches: Sequence[Batch]) -> Played:
        jobs = [partial(playing.resume, each.cells, each.folder, each.copy(), start, saved_by) for each in batches]
        return list(zip(batches, play(resumed_by, jobs, folder), strict=True))

    narrowed(
        [batch for batch in (each.expecting(EQUAL, resumed_by) for each in kept) if batch.cells],
        attempt,
        wrong_in_batch,
        lambda cell, text: failures.add(cell, f"{saved_by} to {resumed_by}", EQUAL, text),
    )


def play_refused_resumes(kept: Sequence[Batch], worlds: tuple[int, int], folder: Path, failures: Failures) -> None:
    """Start again in a world, a few cells together: refused on all ranks, before the first step. Alone, if one spoils it."""
    saved_by, resumed_by = worlds
    start = start_in(saved_by, resumed_by)

    def attempt(batches: Sequence[Batch]) -> Played:
        jobs = [partial(playing.start_again, batch.cells, batch.copy(), start) for batch in batches]
        return list(zip(batches, play(resumed_by, jobs, folder), strict=True))

    narrowed(
        [group for batch in kept for group in batch.expecting(AT_RESUME, resumed_by).by_few()],
        attempt,
        by_cell(wrong_refusal("LoadError")),
        lambda cell, text: failures.add(cell, f"{saved_by} to {resumed_by}", AT_RESUME, text),
    )
