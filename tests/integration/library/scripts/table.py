"""The whole table: all things, and which cells have which outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import playing
from playing import play
from things import CHANGES_TYPE, GETS_KEYS, NOTHING, WORLDS, Cell, Impossible, Thing, cells_of, expected
from things_by_rank import by_rank_things
from things_entries import entry_things
from things_models import model_things
from things_optimizers import optimizer_things
from things_plain import plain_things
from things_refused import refused_things
from things_schedules import schedule_things
from things_sharded import sharded_things
from things_tensors import tensor_things


def all_things() -> list[Thing]:
    """Every line of the table."""
    return [
        *plain_things(),
        *refused_things(),
        *tensor_things(),
        *entry_things(),
        *model_things(),
        *optimizer_things(),
        *schedule_things(),
        *sharded_things(),
        *by_rank_things(),
    ]


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


def chosen(things: Sequence[Thing], outcome: str, saved_by: int) -> list[Cell]:
    """The cells that have this outcome in any world of the resume, where that many ranks save."""
    cells = [cell for cell in cells_of(things) if saved_by in cell.thing.saved_by]
    return [cell for cell in cells if any(expected(cell, *pair) == outcome for pair in WORLDS if pair[0] == saved_by)]
