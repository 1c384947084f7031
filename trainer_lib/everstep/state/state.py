"""All that the user gave to the Checkpointer, as one flat state: whose values count, under which keys they are saved and found."""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from everstep.console import listing
from everstep.engine import SavedItem
from everstep.errors import StateError
from everstep.state import tensors, values
from everstep.state.items import Captured, Entry, Item, Saved, Sharing
from everstep.state.models import ModuleEntry
from everstep.state.objects import ContainerEntry, GeneratorEntry, ObjectEntry, TensorEntry
from everstep.state.optimizers import GROUPS, PARAMS, OptimizerEntry, has_own_format, problem_of
from everstep.state.tagged import Unsavable
from everstep.state.tree import Path, key_of

RECORD = "everstep"  # our own entry: step, world size, samples consumed, keys an entry
RNG = "rng"  # rng.<rank>
_SHAPE = "shape"  # everstep.shape.<path>: how a nest is put together again
_RANKS = "ranks"  # everstep.ranks.<rank>.<path>: a rank's own copy of what rank 0 has under <path>
_RESERVED = (RECORD, RNG)
_CONTAINERS = (dict, list, collections.OrderedDict, collections.defaultdict, collections.Counter)


@dataclass
class Flat:
    """What this rank saves: flat key -> live or frozen value, its path, and the item behind it."""

    values: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    items: dict[str, Item] = field(default_factory=dict)
    samples_consumed: int = 0

    def add(self, path: Path, item: Item) -> None:
        """Two paths may read alike (`a.b` as one name and as two): the later one's key is told apart, its path says what it is."""
        key = key_of(path)
        while key in self.values:
            key += "~"
        self.values[key], self.paths[key], self.items[key] = item.value, path, item

    def add_ours(self, path: Path, value: Any) -> None:
        """What is no part of the user's state, and not compared between ranks."""
        self.values[key_of(path)], self.paths[key_of(path)] = value, path


class State:
    """All entries.

    `allow_missing`: names that a checkpoint may lack; they then keep their values. `per_rank`: names of which each rank has its
    own. `from_rank_0`: names of which rank 0's count.
    """

    def __init__(
        self,
        things: Mapping[str, Any],
        *,
        allow_missing: Collection[str] = (),
        per_rank: Collection[str] = (),
        from_rank_0: Collection[str] = (),
    ) -> None:
        self._things = dict(things)
        self.per_rank = frozenset(per_rank)
        self.from_rank_0 = frozenset(from_rank_0)
        self.allow_missing = frozenset(allow_missing)
        modules = {name: thing for name, thing in things.items() if isinstance(thing, torch.nn.Module)}
        wrong = [problem for name, thing in things.items() if (problem := _problem(name, thing, list(things.values())))]
        wrong += [f"per_rank, from_rank_0: {name!r} is not in the state" for name in self._declared() - set(things)]
        wrong += [f"{name!r} is both in per_rank and in from_rank_0" for name in self.per_rank & self.from_rank_0]
        if wrong:
            raise StateError("; ".join(wrong))
        self.entries: dict[str, Entry] = {name: _entry(name, thing, modules) for name, thing in things.items()}

    def _declared(self) -> frozenset[str]:
        return self.per_rank | self.from_rank_0

    def capture(self, step: int, *, rank: int) -> Flat:
        """The live values that this rank saves after `step` steps. Raises StateError with every value that cannot be saved."""
        flat = Flat()
        wrong: list[str] = []
        for name, entry in self.entries.items():
            try:
                captured = entry.capture(step)
            except (Unsavable, StateError) as problem:
                wrong.append(str(problem))
                continue
            except Exception as error:  # noqa: BLE001 - a script's own state_dict may raise anything
                wrong.append(f"{name}: its state cannot be read, make its state_dict() work: {error!r}")
                continue
            for path, item in self._placed(name, captured, rank):
                flat.add(path, item)
        for key, value in flat.values.items():
            try:
                flat.values[key] = _checked(value)
            except Unsavable as problem:
                wrong.append(f"{key}: {problem}")
            except Exception as error:  # noqa: BLE001 - another thread changes it while it is read, say
                wrong.append(f"{key}: it cannot be read, keep it still while a step ends: {error!r}")
        try:
            flat.samples_consumed = self.samples_consumed(step)
        except Exception as error:  # noqa: BLE001 - as above
            wrong.append(f"how many samples were consumed cannot be read: {error!r}")
        if wrong:
            raise StateError(f"{listing(wrong, most=30, between='; ')}; {values.REMEDY}")
        return flat

    def samples_consumed(self, step: int) -> int:
        """How many samples of the global order `step` finished steps have taken, as the first sampler of the state says; else 0."""
        for thing in self._things.values():
            if hasattr(thing, "state_dict_at"):
                return int(thing.state_dict_at(step).get("samples_consumed", 0))
            if hasattr(thing, "samples_consumed"):
                return int(thing.samples_consumed)
        return 0

    def saved(
        self, name: str, checkpoint: Checkpoint, meshes: list[Any], *, rank: int, world: int
    ) -> tuple[Saved, dict[Path, str]]:
        """What a checkpoint holds of an entry for this rank, and the key of each item's path in the entry."""
        keys: dict[Path, str] = {}
        is_same_world = checkpoint.world == world
        own = (RECORD, _RANKS, str(rank), name)
        for key, item in checkpoint.items.items():
            path = item.path
            if path[:1] == (name,) and (is_same_world or name not in self.per_rank):
                path = self._entry_path(name, path, rank)
            elif path[:4] == own and is_same_world:
                path = path[3:]
            else:
                continue
            if path and (path not in keys or key.startswith(f"{RECORD}.")):
                keys[path] = key
        shapes = {
            self._entry_path(name, path, rank): shape
            for path, shape in checkpoint.shapes.items()
            if path[:1] == (name,)
        }
        items = {path: checkpoint.items[key] for path, key in keys.items()}
        return Saved(items, shapes, self._groups(name, checkpoint, rank), meshes), keys

    def _groups(self, name: str, checkpoint: Checkpoint, rank: int) -> list[list[str]]:
        """As all ranks together had them; an optimizer kept for each rank, or by stock, as its own lists say."""
        recorded = (checkpoint.record or {}).get("groups", {})
        if name in recorded and name not in self.per_rank:
            return [list(group) for group in recorded[name]]
        lists = {
            self._entry_path(name, path, rank): names for path, names in checkpoint.lists.items() if path[0] == name
        }
        return [list(names) for path, names in sorted(lists.items()) if path]

    def _placed(self, name: str, captured: Captured, rank: int) -> Iterator[tuple[Path, Item]]:
        """Each item under the path where it is saved; what is not for this rank to save is left out."""
        everywhere = any(item.everywhere for item in captured.items)
        shapes = [
            Item((RECORD, _SHAPE, *path), shape, everywhere=everywhere) for path, shape in captured.shapes.items()
        ]
        for item, at in [*((item, 1) for item in captured.items), *((shape, 3) for shape in shapes)]:
            path = item.path
            if name in self.per_rank:
                yield (*path[:at], str(rank), *path[at:]), Item(path, item.value, everywhere=False)
            elif self._counts_of_rank_0(name, item):
                if rank == 0:
                    yield path, Item(path, item.value, everywhere=False)
            elif item.sharing is Sharing.OWN and rank > 0:
                yield (RECORD, _RANKS, str(rank), *path), Item(path, item.value, everywhere=False)
            elif item.sharing is Sharing.OWN:
                yield path, Item(path, item.value, everywhere=False)
            else:
                yield path, item

    def _counts_of_rank_0(self, name: str, item: Item) -> bool:
        if item.sharing is Sharing.RANK_0:
            return True
        return name in self.from_rank_0 and not (
            isinstance(item.value, torch.Tensor) and tensors.is_sharded(item.value)
        )

    def _entry_path(self, name: str, path: Path, rank: int) -> Path:
        """A saved path as the entry knows it; empty: another rank's."""
        if name not in self.per_rank:
            return path
        return (name, *path[2:]) if path[1:2] == (str(rank),) else ()

    def meshes(self) -> list[Any]:
        """The device meshes over which anything in use is sharded."""
        found: dict[int, Any] = {}
        for entry in self.entries.values():
            try:
                items = entry.capture(0).items
            except (Unsavable, StateError):
                continue
            for item in items:
                if hasattr(item.value, "device_mesh"):
                    found.setdefault(id(item.value.device_mesh), item.value.device_mesh)
        return list(found.values())


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's index, and what was read of it before anything is loaded. `record`: None where stock wrote it."""

    items: Mapping[str, SavedItem]
    record: Mapping[str, Any] | None
    shapes: Mapping[Path, Any]
    lists: Mapping[Path, list[str]]

    @property
    def world(self) -> int:
        """By how many ranks it was saved, 0: not known."""
        return int(self.record["world"]) if self.record is not None else 0

    def part_of(self, name: str) -> dict[str, SavedItem]:
        """The items that belong to an entry."""
        return {key: item for key, item in self.items.items() if item.path[:1] == (name,)}


def shape_keys(items: Mapping[str, SavedItem]) -> dict[str, Path]:
    """The keys of the shapes in a checkpoint, and the paths at which the nests begin."""
    return {key: nest for key, item in items.items() if (nest := nest_of(item.path))}


def nest_of(path: Path) -> Path:
    """Where the nest begins whose shape is saved under this path; empty: it is no shape."""
    return path[2:] if path[:2] == (RECORD, _SHAPE) else ()


def list_keys(items: Mapping[str, SavedItem]) -> dict[str, Path]:
    """The keys of optimizers' lists of parameters, and their paths."""
    return {key: item.path for key, item in items.items() if item.path[-1:] == (PARAMS,) and GROUPS in item.path[1:3]}


def _problem(name: Any, thing: Any, others: list[Any]) -> str:
    if not isinstance(name, str) or not name or "." in name:
        return f"{name!r}: names in the Checkpointer's state are words without a dot"
    if name in _RESERVED:
        return f"{name!r}: this name is the library's own, take another"
    return problem_of(name, thing, others) if isinstance(thing, torch.optim.Optimizer) else ""


def _entry(name: str, thing: Any, modules: Mapping[str, Any]) -> Entry:
    if isinstance(thing, torch.nn.Module):
        return ModuleEntry(name, thing)
    if isinstance(thing, torch.optim.Optimizer) and not has_own_format(thing):
        return OptimizerEntry(name, thing, modules)
    if isinstance(thing, torch.Generator):
        return GeneratorEntry(name, thing)
    if tensors.is_tensor(thing):
        return TensorEntry(name, thing)
    if type(thing) in _CONTAINERS:
        return ContainerEntry(name, thing)
    if hasattr(thing, "load_state_dict") and (hasattr(thing, "state_dict") or hasattr(thing, "state_dict_at")):
        return ObjectEntry(name, thing)
    raise StateError(
        f"{name}: a {type(thing).__name__} cannot be restored into the variable that holds it: put it into a dict, "
        f'for example {{"progress": {{"{name}": ...}}}}, and use it from there; objects need state_dict and load_state_dict'
    )


def _checked(value: Any) -> Any:
    """A tensor as it is, a plain value frozen. Raises Unsavable."""
    if not isinstance(value, torch.Tensor):
        return value if tensors.is_array(value) else values.freeze(value)
    problem = tensors.problem_of(value)
    if problem:
        raise Unsavable(problem)
    return value
