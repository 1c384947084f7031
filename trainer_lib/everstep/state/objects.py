"""Entries that are no models and no optimizers: objects with state_dict, plain dicts and lists, tensors, random generators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from everstep.errors import LoadError
from everstep.state import tensors, tree
from everstep.state.items import Captured, Item, Saved, Slot, Slots, under
from everstep.state.tagged import Unsavable
from everstep.state.tree import Path


def nest(root: Path, value: Any, *, everywhere: bool = True) -> Captured:
    """A nested value as items. Raises Unsavable."""
    leaves, shape = tree.flatten(value, root)
    items = [Item(path, leaf, everywhere=everywhere) for path, leaf in leaves]
    return Captured(items, {} if shape is None else {root: shape})


def nest_slots(root: Path, saved: Saved, live: Mapping[Path, Any], *, in_place: bool) -> Slots:
    """Places for the saved nest below a path: tensors go where `live` has one like them, else where one of their kind belongs.

    `in_place`: the live tensor itself is filled and kept; otherwise it only says where such a tensor lies.
    """
    told = dict(tree.traits_of(saved.shapes.get(root)))
    found: dict[Path, Slot] = {}
    problems = []
    for path, item in saved.items.items():
        if path[: len(root)] != root:
            continue
        if item.shape is None:
            found[path] = Slot(None)
            continue
        traits = told.get(path[len(root) :], {})
        like = live.get(path)
        if in_place and tensors.fits(like, item):
            found[path] = Slot(tensors.live(like), like)
            continue
        try:
            found[path] = Slot(tensors.blank(item, traits, like, saved.meshes), traits=traits)
        except LoadError as problem:
            problems.append(f"{tree.key_of(path)}: {problem}")
    return Slots(found, problems=tuple(problems))


def rebuilt(root: Path, loaded: Mapping[Path, Any], saved: Saved) -> Any:
    """The nested value below a path."""
    return tree.rebuild(under(root, loaded), saved.shapes.get(root))


class ObjectEntry:
    """Anything with `state_dict` and `load_state_dict`: LR scheduler, GradScaler, an optimizer with a format of its own.

    One with `state_dict_at(step)` is asked for its state after so many finished steps, however far it has run ahead, and its
    ranks may each hold a part of it: `load_state_dict` then gets all parts.
    """

    def __init__(self, name: str, thing: Any) -> None:
        self.name = name
        self._thing = thing

    def capture(self, step: int) -> Captured:
        """See `Entry.capture`."""
        at = getattr(self._thing, "state_dict_at", None)
        state = self._thing.state_dict() if at is None else at(step)
        return nest((self.name,), state, everywhere=at is None)

    def slots(self, saved: Saved) -> Slots:
        """See `Entry.slots`; what is saved decides, the object judges it."""
        return nest_slots((self.name,), saved, self._live(), in_place=False)

    def restore(self, loaded: Mapping[Path, Any], saved: Saved) -> None:
        """See `Entry.restore`."""
        self._thing.load_state_dict(rebuilt((self.name,), loaded, saved))

    def _live(self) -> dict[Path, Any]:
        try:
            return {item.path: item.value for item in self.capture(0).items}
        except Unsavable:
            return {}


class ContainerEntry:
    """A plain dict or list: restored in place, so that whoever holds it, or a tensor in it, sees the restored values."""

    def __init__(self, name: str, container: Any) -> None:
        self.name = name
        self._container = container

    def capture(self, step: int) -> Captured:
        """See `Entry.capture`."""
        return nest((self.name,), self._container)

    def slots(self, saved: Saved) -> Slots:
        """See `Entry.slots`."""
        live = {item.path: item.value for item in self.capture(0).items}
        return nest_slots((self.name,), saved, live, in_place=True)

    def restore(self, loaded: Mapping[Path, Any], saved: Saved) -> None:
        """See `Entry.restore`."""
        value = rebuilt((self.name,), loaded, saved)
        if type(value) is not type(self._container):
            raise LoadError(
                f"{self.name}: the checkpoint holds a {type(value).__name__}, not a {type(self._container).__name__}"
            )
        tree.assign(self._container, value)


class TensorEntry:
    """A tensor or NumPy array, filled in place."""

    def __init__(self, name: str, tensor: Any) -> None:
        self.name = name
        self._tensor = tensor

    def capture(self, step: int) -> Captured:
        """See `Entry.capture`."""
        return Captured([Item((self.name,), self._tensor)])

    def slots(self, saved: Saved) -> Slots:
        """See `Entry.slots`."""
        item = saved.items[(self.name,)]
        if not tensors.fits(self._tensor, item):
            here = tensors.described(tensors.live(self._tensor))
            told = (
                f"{self.name} is {item.described()} in the checkpoint, {here} here; it must be filled in place: make it of that kind, "
                'or put it into a dict, for example {"tensors": {...}}, where it is replaced'
            )
            return Slots({}, problems=(told,))
        return Slots({(self.name,): Slot(tensors.live(self._tensor))})

    def restore(self, loaded: Mapping[Path, Any], saved: Saved) -> None:
        """Nothing is left to do."""


class GeneratorEntry:
    """A torch.Generator: its stream goes on."""

    def __init__(self, name: str, generator: Any) -> None:
        self.name = name
        self._generator = generator

    def capture(self, step: int) -> Captured:
        """See `Entry.capture`."""
        return Captured([Item((self.name,), self._generator.get_state())])

    def slots(self, saved: Saved) -> Slots:
        """See `Entry.slots`."""
        item = saved.items[(self.name,)]
        return Slots({(self.name,): Slot(torch.empty(item.shape or (), dtype=item.dtype, device="cpu"))})

    def restore(self, loaded: Mapping[Path, Any], saved: Saved) -> None:
        """See `Entry.restore`."""
        self._generator.set_state(loaded[(self.name,)])
