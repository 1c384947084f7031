"""Random streams of torch, Python and NumPy over a save and a resume: what each rank draws, and what it should."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import everstep
import numpy
import torch
from batches import copy_of
from playing import LAST_STEP, SAVED_STEP, Told, play
from things import WORLDS, rank

ALIKE, DIFFERENT, LATER = "seeded alike", "seeded differently", "seeded alike, then differently"
SEEDINGS = (ALIKE, DIFFERENT, LATER)
KINDS = ("torch", "python", "numpy")
Draws = Sequence[tuple[Any, ...]]  # by step: what each kind of stream gave


def seed(seeding: str, base: int) -> None:
    """As scripts do at their start."""
    chosen = base + (rank() if seeding == DIFFERENT else 0)
    torch.manual_seed(chosen)
    random.seed(chosen)
    numpy.random.seed(chosen)


def draw(folder: Path, seeding: str, base: int) -> Told:
    """What each step draws, from wherever the folder's checkpoint says."""
    seed(seeding, base)
    drawn = []
    for step in everstep.Checkpointer({"box": {}}, directory=folder, every=SAVED_STEP).steps(until=LAST_STEP + 1):
        if step == LAST_STEP:
            break
        if step == SAVED_STEP - 1 and seeding == LATER:
            seed(DIFFERENT, base)
        drawn.append((torch.rand(2).tolist(), random.random(), numpy.random.rand(), numpy.random.randn()))
    return Told(facts={"drawn": drawn})


def play_streams(folder: Path) -> list[str]:
    """Every seeding in every world; a line for each stream that went on wrongly."""
    wrong: list[str] = []
    for saved_by in (1, 2):
        folders = {seeding: folder / f"{saved_by}-{number}" for number, seeding in enumerate(SEEDINGS)}
        first = play(saved_by, [partial(draw, where, seeding, 100) for seeding, where in folders.items()], folder)
        for resumed_by in (pair[1] for pair in WORLDS if pair[0] == saved_by):
            cells = [(seeding, again) for seeding in SEEDINGS for again in (ALIKE, DIFFERENT)]
            jobs = [
                partial(draw, copy_of(folders[seeding], f"step_{SAVED_STEP}"), again, 900) for seeding, again in cells
            ]
            for (seeding, again), told in zip(cells, play(resumed_by, jobs, folder), strict=True):
                before = [each.facts["drawn"][SAVED_STEP:] for each in first[SEEDINGS.index(seeding)]]
                after = [each.facts.get("drawn", []) for each in told]
                worlds = f"{saved_by} to {resumed_by}, {seeding}, again {again}"
                wrong += [f"{worlds}: {text}" for text in _problems(before, after, seeding, again)]
    return wrong


def _problems(before: Sequence[Draws], after: Sequence[Draws], seeding: str, again: str) -> list[str]:
    """`before`: what each saving rank drew after the save; `after`: what each rank draws after the resume."""
    if not all(len(draws) == LAST_STEP - SAVED_STEP for draws in after):
        return [f"it did not go on from step {SAVED_STEP}: {[len(draws) for draws in after]} steps were drawn"]
    if len(before) == len(after):
        return [] if list(after) == list(before) else [f"not each rank's own went on: {before} became {after}"]
    is_alike = (again if len(before) == 1 else seeding) == ALIKE
    if is_alike:
        return (
            [] if all(draws == before[0] for draws in after) else [f"{before[0]} did not go on on every rank: {after}"]
        )
    return [
        f"the ranks' {kind} streams are not all different"
        for place, kind in enumerate(KINDS)
        if len({str(draws[0][place]) for draws in after}) < len(after)
    ]
