"""What the user gave to the Checkpointer, by kind: how each is captured, where it is loaded to, how it gets back into use (B20)."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from everstep import flat
from everstep.engine import FlatState, SavedItem
from everstep.errors import LoadError, StateError
from everstep.flat import Path
from everstep.optimizers import OptimizerEntry

RECORD = "everstep"  # our own entry: step, world size, samples consumed, keys an entry
RNG = "rng"  # rng.<rank>
_RESERVED = (RECORD, RNG)


class Entry(Protocol):
    """One thing of the state, under its name."""

    name: str

    def capture(self) -> Iterator[tuple[Path, Any]]:
        """(path, live value); the first part of a path is the entry's name."""

    def destination(self, saved: Mapping[str, SavedItem]) -> Iterator[tuple[str, Any]]:
        """(key, tensor to fill or value to replace) for what `saved`, this entry's part of a checkpoint, must and may hold.

        Raises LoadError for keys that have no place here."""

    def restore(self, loaded: Mapping[Path, Any]) -> None:
        """Put what was loaded into the objects in use."""


class ModuleEntry:
    """A model: canonical names, live tensors; loading fills them in place."""

    def __init__(self, name: str, module: Any) -> None:
        self.name = name
        self._module = module

    def capture(self) -> Iterator[tuple[Path, Any]]:
        """See `Entry.capture`."""
        for key, value in get_model_state_dict(self._module).items():
            yield (self.name, key), value

    def destination(self, saved: Mapping[str, SavedItem]) -> Iterator[tuple[str, Any]]:
        """See `Entry.destination`; the key sets must be equal."""
        own = {flat.key_of(path): value for path, value in self.capture()}
        unknown = sorted(set(saved) - set(own))
        if unknown:
            raise LoadError(f"the checkpoint holds keys that this model does not have: {', '.join(unknown[:10])}")
        yield from own.items()

    def restore(self, loaded: Mapping[Path, Any]) -> None:
        """See `Entry.restore`."""
        set_model_state_dict(self._module, {flat.key_of(path[1:]): value for path, value in loaded.items()})


class ObjectEntry:
    """Anything with `state_dict` and `load_state_dict`: LR scheduler, GradScaler, sampler."""

    def __init__(self, name: str, thing: Any) -> None:
        self.name = name
        self._thing = thing

    def capture(self) -> Iterator[tuple[Path, Any]]:
        """See `Entry.capture`."""
        yield from flat.flatten(self._thing.state_dict(), (self.name,))

    def destination(self, saved: Mapping[str, SavedItem]) -> Iterator[tuple[str, Any]]:
        """See `Entry.destination`; what is saved decides, the object judges it."""
        own = {flat.key_of(path): value for path, value in self.capture()}
        for key, item in saved.items():
            yield key, own[key] if isinstance(own.get(key), torch.Tensor) else _blank(item)

    def restore(self, loaded: Mapping[Path, Any]) -> None:
        """See `Entry.restore`."""
        self._thing.load_state_dict(flat.unflatten({path[1:]: value for path, value in loaded.items()}))


class ContainerEntry:
    """A plain dict or list: restored in place, so that whoever holds it sees the restored values."""

    def __init__(self, name: str, container: dict[Any, Any] | list[Any]) -> None:
        self.name = name
        self._container = container

    def capture(self) -> Iterator[tuple[Path, Any]]:
        """See `Entry.capture`."""
        yield from flat.flatten(self._container, (self.name,))

    def destination(self, saved: Mapping[str, SavedItem]) -> Iterator[tuple[str, Any]]:
        """See `Entry.destination`."""
        return ((key, _blank(item)) for key, item in saved.items())

    def restore(self, loaded: Mapping[Path, Any]) -> None:
        """See `Entry.restore`."""
        value = flat.unflatten({path[1:]: value for path, value in loaded.items()})
        if type(value) is not type(self._container):
            raise LoadError(
                f"{self.name}: the checkpoint holds a {type(value).__name__}, not a {type(self._container).__name__}"
            )
        if isinstance(self._container, list):
            self._container[:] = value
        else:
            self._container.clear()
            self._container.update(value)


class TensorEntry:
    """A tensor, filled in place."""

    def __init__(self, name: str, tensor: Any) -> None:
        self.name = name
        self._tensor = tensor

    def capture(self) -> Iterator[tuple[Path, Any]]:
        """See `Entry.capture`."""
        yield (self.name,), self._tensor.detach()

    def destination(self, saved: Mapping[str, SavedItem]) -> Iterator[tuple[str, Any]]:
        """See `Entry.destination`."""
        yield self.name, self._tensor.detach()

    def restore(self, loaded: Mapping[Path, Any]) -> None:
        """Nothing is left to do."""


class State:
    """All entries. `allow_missing`: names that a checkpoint may lack; they then keep their values."""

    def __init__(self, things: Mapping[str, Any], *, allow_missing: Collection[str] = ()) -> None:
        wrong = [_name_problem(name) for name in things if _name_problem(name)]
        if wrong:
            raise StateError("; ".join(wrong))
        modules = {name: thing for name, thing in things.items() if isinstance(thing, torch.nn.Module)}
        self.entries: dict[str, Entry] = {name: _entry(name, thing, modules) for name, thing in things.items()}
        self.allow_missing = frozenset(allow_missing)

    def capture(self) -> FlatState:
        """The live values under flat keys. Raises StateError where two have one key."""
        state = FlatState({}, {})
        for entry in self.entries.values():
            for path, value in entry.capture():
                key = flat.key_of(path)
                if key in state.values:
                    raise StateError(f"{key}: two values of the state have this key")
                state.values[key] = value
                state.paths[key] = path
        return state

    def check_plain(self) -> None:
        """Raises StateError that names every value which could not be read again: only tensors and plain values can."""
        found = {key: _problem(value) for key, value in self.capture().values.items()}
        wrong = [f"{key}: {problem}" for key, problem in found.items() if problem]
        if wrong:
            raise StateError(
                "these values cannot be saved, only tensors, numbers, strings, bytes, None and lists, tuples, dicts and sets "
                f"of them can (or what torch.serialization.add_safe_globals admits): {'; '.join(wrong[:10])}"
            )


def part_of(name: str, saved: Mapping[str, SavedItem]) -> dict[str, SavedItem]:
    """A checkpoint's keys that belong to an entry."""
    return {key: item for key, item in saved.items() if key == name or key.startswith(f"{name}.")}


def _name_problem(name: Any) -> str:
    if not isinstance(name, str) or not name or "." in name:
        return f"{name!r}: names in the Checkpointer's state are words without a dot"
    return f"{name!r}: this name is the library's own, take another" if name in _RESERVED else ""


def _entry(name: str, thing: Any, modules: Mapping[str, Any]) -> Entry:
    if isinstance(thing, torch.nn.Module):
        return ModuleEntry(name, thing)
    if isinstance(thing, torch.optim.Optimizer):
        return OptimizerEntry(name, thing, modules)
    if isinstance(thing, torch.Tensor):
        return TensorEntry(name, thing)
    if type(thing) in (dict, list):
        return ContainerEntry(name, thing)
    if hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
        return ObjectEntry(name, thing)
    raise StateError(
        f"{name}: a {type(thing).__name__} cannot be restored into the variable that holds it: put it into a dict, "
        f'for example {{"progress": {{"{name}": ...}}}}, and use it from there; objects need state_dict and load_state_dict'
    )


def _blank(item: SavedItem) -> Any:
    return None if item.shape is None else torch.empty(item.shape, dtype=item.dtype)


def _problem(value: Any) -> str:
    """Why a value could not be read by the restricted unpickler that loads it; empty: it can."""
    if isinstance(value, torch.Tensor):
        return ""
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except Exception as error:  # noqa: BLE001 - whatever a user's value raises is the answer
        return f"{type(value).__name__} ({str(error).splitlines()[0][:120]})"
    return ""
