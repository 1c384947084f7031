"""Loading a checkpoint: all checks that can be made come before the first tensor is touched, the rest before the first step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from everstep import rng
from everstep.console import listing, say
from everstep.engine import Engine, FlatState, SavedItem
from everstep.errors import LoadError
from everstep.optimizers import OptimizerEntry
from everstep.state import RECORD, RNG, State, part_of
from everstep.world import World


def restore(state: State, engine: Engine, world: World, directory: Path, *, step: int) -> None:
    """Load `directory`, the state after `step` finished steps, into the objects in use. Raises LoadError on all ranks together."""
    with world.together(f"reading {directory}"):
        saved = engine.catalogue(directory)
        wanted = destinations(state, saved, world)
    with world.together(f"loading {directory}"):
        engine.load(wanted, directory)
    with world.together(f"restoring {directory}"):
        record = wanted.values.get(RECORD)
        _check_record(record, saved, state, step)
        for name, entry in state.entries.items():
            keys = part_of(name, saved)
            if keys:
                entry.restore({wanted.paths[key]: wanted.values[key] for key in keys})
        _restore_random(wanted, world, step)
    _tell(state, saved, world, directory, step)


def destinations(state: State, saved: Mapping[str, SavedItem], world: World) -> FlatState:
    """Where each key of a checkpoint goes. Raises LoadError with every missing, unknown or differing key."""
    problems: list[str] = []
    wanted = FlatState({}, {})
    for name, entry in state.entries.items():
        part = part_of(name, saved)
        if not part:
            if name not in state.allow_missing:
                problems.append(
                    f"{name}: nothing of it is in the checkpoint (`allow_missing` of the Checkpointer admits that)"
                )
            continue
        try:
            found = dict(entry.destination(part))
        except LoadError as error:
            problems.append(f"{name}: {error}")
            continue
        problems.extend(text for key, value in found.items() if (text := _difference(key, value, saved.get(key))))
        wanted.values.update(found)
    for key in (RECORD, _random_key(saved, world)):
        if key in saved:
            wanted.values[key] = None
    wanted.paths.update({key: saved[key].path for key in wanted.values if key in saved})
    if problems:
        raise LoadError(f"the checkpoint does not fit: {listing(problems)}")
    return wanted


def _difference(key: str, value: Any, item: SavedItem | None) -> str:
    if item is None:
        return f"{key} is missing in the checkpoint"
    here = (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else (None, None)
    if here == (item.shape, item.dtype):
        return ""
    return f"{key} is {_described(item.shape, item.dtype)} in the checkpoint, {_described(*here)} here"


def _described(shape: Any, dtype: Any) -> str:
    return "no tensor" if shape is None else f"{dtype} {list(shape)}"


def _check_record(record: Any, saved: Mapping[str, SavedItem], state: State, step: int) -> None:
    """B20, B21: the state is of the step that it should be of, and as much is there as was saved."""
    if record is None:  # written by stock dcp.save: what is there must be what an optimizer of this kind has
        for entry in state.entries.values():
            if isinstance(entry, OptimizerEntry):
                entry.check_has_state(saved)
        return
    if record["step"] != step:
        raise LoadError(
            f"it holds the state after step {record['step']}, not after step {step} as its name or the plan says"
        )
    for name, number in record["keys"].items():
        found = len(part_of(name, saved))
        if name in state.entries and found != number:
            raise LoadError(f"{name}: {number} keys were saved, {found} are there")


def _random_key(saved: Mapping[str, SavedItem], world: World) -> str:
    same_world = len(part_of(RNG, saved)) == world.size
    return f"{RNG}.{world.rank if same_world else 0}"


def _restore_random(wanted: FlatState, world: World, step: int) -> None:
    """B24: the rank's own streams in the same world; in another one new ones, all distinct."""
    own = wanted.values.get(f"{RNG}.{world.rank}")
    ancestor = wanted.values.get(f"{RNG}.0")
    record = wanted.values.get(RECORD)
    if record is not None and record["world"] == world.size and own is not None:
        rng.restore(own)
    elif record is not None and ancestor is not None:
        rng.derive(ancestor, step=step, rank=world.rank, world=world.size)
        if world.rank == 0:
            say(
                f"random streams: saved by {record['world']} ranks, now {world.size}: every rank starts a new one of its own"
            )


def _tell(state: State, saved: Mapping[str, SavedItem], world: World, directory: Path, step: int) -> None:
    if world.rank != 0:
        return
    counts = ", ".join(f"{name} {len(part_of(name, saved))}" for name in state.entries)
    say(f"resumed after step {step} from {directory} (keys: {counts})")
    known = {RECORD, RNG, *state.entries}
    others = sorted({key.split(".")[0] for key in saved} - known)
    if others:
        say(f"the checkpoint also holds {listing(others)}, which this script does not use")
