"""Loading a checkpoint: all checks that can be made come before the first tensor is touched, the rest before the first step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from everstep import rng
from everstep.console import listing, say
from everstep.engine import Engine, FlatState, SavedItem
from everstep.errors import LoadError
from everstep.state import tensors, tree, values
from everstep.state.agreement import classes
from everstep.state.items import Entry, Saved, Slot
from everstep.state.optimizers import OptimizerEntry
from everstep.state.state import RECORD, RNG, Checkpoint, State, list_keys, shape_keys
from everstep.state.tree import Path as KeyPath
from everstep.world import World

Targets = dict[
    str, tuple[Saved, dict[KeyPath, str], dict[KeyPath, Slot]]
]  # entry -> what is saved, its keys, its places


def restore(state: State, engine: Engine, world: World, directory: Path, *, step: int) -> None:
    """Load `directory`, the state after `step` finished steps, into the objects in use. Raises LoadError on all ranks together."""
    with world.together(f"reading {directory}"):
        catalogue = engine.catalogue(directory)
        told = _told_first(catalogue)
    with world.together(f"loading {directory}"):
        engine.load(told, directory)
    with world.together(f"reading {directory}"):
        checkpoint = _checkpoint(catalogue, told.values)
        _check_record(checkpoint, state, step)
        targets, misfits = destinations(state, checkpoint, world)
    _require_fit(world.gather(misfits), directory)
    with world.together(f"loading {directory}"):
        wanted = _wanted(targets, checkpoint, world)
        engine.load(wanted, directory)
    with world.together(f"restoring {directory}"):
        for name, (saved, keys, slots) in targets.items():
            loaded = {path: _result(wanted.values[keys[path]], slot) for path, slot in slots.items()}
            state.entries[name].restore(loaded, saved)
    seeded = world.gather(rng.digests(rng.snapshot()))
    with world.together(f"restoring {directory}"):
        _restore_random(wanted.values, checkpoint, seeded, world, step)
    _tell(state, checkpoint, world, directory, step)


def _told_first(catalogue: Mapping[str, SavedItem]) -> FlatState:
    """What the checkpoint says of itself: the record, the shapes of nests, the lists of parameters."""
    keys = [*([RECORD] if RECORD in catalogue else []), *shape_keys(catalogue), *list_keys(catalogue)]
    return FlatState(dict.fromkeys(keys), {key: catalogue[key].path for key in keys})


def _checkpoint(catalogue: Mapping[str, SavedItem], told: Mapping[str, Any]) -> Checkpoint:
    shapes = {path: values.thaw(told[key]) for key, path in shape_keys(catalogue).items()}
    lists = {path: told[key] for key, path in list_keys(catalogue).items()}
    return Checkpoint(catalogue, told.get(RECORD), shapes, lists)


@dataclass(frozen=True)
class Misfits:
    """What of a checkpoint does not fit this rank. `spare`: items without a place here, which may have one on another rank."""

    problems: list[str]
    spare: set[KeyPath]


def destinations(state: State, checkpoint: Checkpoint, world: World) -> tuple[Targets, Misfits]:
    """Where each saved item goes, and what does not fit."""
    targets: Targets = {}
    misfits = Misfits([], set())
    meshes = state.meshes()
    for name, entry in state.entries.items():
        saved, keys = state.saved(name, checkpoint, meshes, rank=world.rank, world=world.size)
        if not saved.items:
            if name not in state.allow_missing and not _is_empty(entry):
                misfits.problems.append(_missing(name, state, checkpoint, world))
            continue
        try:
            slots = entry.slots(saved)
        except LookupError:
            misfits.problems.append(f"{name}: what the checkpoint holds under this name is another kind of thing")
            continue
        targets[name] = saved, keys, slots.of
        misfits.problems.extend(slots.problems)
        misfits.spare.update(slots.spare)
    return targets, misfits


def _require_fit(misfits: list[Misfits], directory: Path) -> None:
    """TR2: what is left over on one rank must have its place on another. Raises LoadError on all ranks, with all that does not fit."""
    told = list(dict.fromkeys(problem for each in misfits for problem in each.problems))
    lost = sorted(set.intersection(*(each.spare for each in misfits)), key=tree.key_of)
    told += [f"{tree.key_of(path)} has no place here: the model or the optimizer's groups changed" for path in lost]
    if told:
        raise LoadError(
            f"{directory} does not fit: {listing(told, most=30, between='; ')}; make the state what it was when this was saved, or "
            "resume from another checkpoint"
        )


def _is_empty(entry: Entry) -> bool:
    """Whether an entry has nothing to save: a loss without parameters, a stage without layers."""
    return not entry.capture(0).items


def _missing(name: str, state: State, checkpoint: Checkpoint, world: World) -> str:
    if name in state.per_rank and checkpoint.part_of(name):
        return (
            f"{name}: it was kept for each of {checkpoint.world} ranks, and now there are {world.size}; name it in `allow_missing` to go on "
            "with what the script made, or save it in a form that any number of ranks can use"
        )
    return f"{name}: nothing of it is in the checkpoint (`allow_missing` of the Checkpointer admits that)"


def _wanted(targets: Targets, checkpoint: Checkpoint, world: World) -> FlatState:
    wanted = FlatState({}, {})
    for _, keys, slots in targets.values():
        for path, slot in slots.items():
            wanted.values[keys[path]] = slot.into
    random = _random_key(checkpoint, world)
    if random in checkpoint.items:
        wanted.values[random] = None
    wanted.paths.update({key: checkpoint.items[key].path for key in wanted.values})
    return wanted


def _result(loaded: Any, slot: Slot) -> Any:
    """What the entry gets for what was loaded into a slot."""
    if slot.result is not None:
        return slot.result
    return tensors.finished(loaded, slot.traits) if isinstance(loaded, torch.Tensor) else values.thaw(loaded)


def _check_record(checkpoint: Checkpoint, state: State, step: int) -> None:
    """B20, B21: the state is of the step that it should be of, and as much is there as was saved."""
    record = checkpoint.record
    if record is None:  # written by stock dcp.save: what is there must be what an optimizer of this kind has
        for entry in state.entries.values():
            if isinstance(entry, OptimizerEntry):
                entry.check_has_state({item.path: item for item in checkpoint.items.values()})
        return
    if record["step"] != step:
        raise LoadError(
            f"it holds the state after step {record['step']}, not after step {step} as its name or the plan says"
        )
    for name, number in record["keys"].items():
        found = len(checkpoint.part_of(name))
        if name in state.entries and found != number:
            raise LoadError(f"{name}: {number} keys were saved, {found} are there")


def _random_key(checkpoint: Checkpoint, world: World) -> str:
    return f"{RNG}.{world.rank if checkpoint.world == world.size else 0}"


def _restore_random(
    loaded: Mapping[str, Any], checkpoint: Checkpoint, seeded: list[dict[str, str]], world: World, step: int
) -> None:
    """B24, TR9: the rank's own streams in the same world; in another one equal streams go on, different ones stay different."""
    streams = loaded.get(_random_key(checkpoint, world))
    record = checkpoint.record
    if record is None or streams is None:
        return
    if checkpoint.world == world.size:
        rng.restore(streams)
        return
    numbers = {kind: _stream_numbers(kind, record, seeded, world) for kind in streams}
    equal = {kind for kind, of_ranks in numbers.items() if len(set(of_ranks)) == 1}
    rng.restore({kind: value for kind, value in streams.items() if kind in equal})
    different = {kind: value for kind, value in streams.items() if kind not in equal}
    rng.derive(different, {kind: numbers[kind][world.rank] for kind in different}, step=step, world=world.size)
    if world.rank == 0 and different:
        say(
            f"random streams: saved by {checkpoint.world} ranks, now {world.size}: ranks whose streams differ start new ones "
            f"({', '.join(different)})"
        )


def _stream_numbers(kind: str, record: Mapping[str, Any], seeded: list[dict[str, str]], world: World) -> list[int]:
    """A number for each rank of this world: equal where the streams are to be equal.

    Where all were equal when saved, so they stay. Where they were not, or where one rank alone was, as the script has seeded its ranks
    this time; if that tells nothing apart, as they were when saved.
    """
    saved = list(record.get("streams", {}).get(kind, ()))
    if len(saved) < 2:
        return classes([digests.get(kind, "") for digests in seeded])
    if len(set(saved)) == 1:
        return [0] * world.size
    by_seed = classes([digests.get(kind, "") for digests in seeded])
    if len(set(by_seed)) > 1:  # the script tells its ranks apart, perhaps in groups that draw alike
        return by_seed
    return [saved[rank] if rank < len(saved) else len(saved) + rank for rank in range(world.size)]


def _tell(state: State, checkpoint: Checkpoint, world: World, directory: Path, step: int) -> None:
    if world.rank != 0:
        return
    counts = ", ".join(f"{name} {len(checkpoint.part_of(name))}" for name in state.entries)
    say(f"resumed after step {step} from {directory} (keys: {counts})")
    known = {RECORD, RNG, *state.entries}
    others = sorted({str(item.path[0]) for item in checkpoint.items.values()} - known)
    if others:
        say(f"the checkpoint also holds {listing(others)}, which this script does not use")
