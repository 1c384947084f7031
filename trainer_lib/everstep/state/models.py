"""Models: canonical names, live tensors that are filled in place, and whose buffers count where ranks have different ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from everstep.naming import Member, members
from everstep.state import tensors
from everstep.state.items import Captured, Item, Saved, Sharing, Slot, Slots
from everstep.state.objects import nest, nest_slots, rebuilt
from everstep.state.tagged import Unsavable
from everstep.state.tree import Path


class ModuleEntry:
    """A model. Its ranks may hold different parts of it (pipeline stages): each saves, and gets, its own."""

    def __init__(self, name: str, module: Any) -> None:
        self.name = name
        self._module = module

    def capture(self, step: int) -> Captured:
        """See `Entry.capture`."""
        known = {member.name: member for member in members(self._module, what=self.name)}
        self._refuse_empty(known.values())
        items: list[Item] = []
        shapes: dict[Path, Any] = {}
        for key, value in self._live().items():
            sharing = _sharing(known.get(key))
            if isinstance(value, torch.Tensor):
                items.append(Item((self.name, key), value, sharing, everywhere=False))
                continue
            extra = nest((self.name, key), value, everywhere=False)  # get_extra_state
            items += [Item(item.path, item.value, sharing, everywhere=False) for item in extra.items]
            shapes.update(extra.shapes)
        return Captured(items, shapes)

    def slots(self, saved: Saved) -> Slots:
        """See `Entry.slots`: every tensor in place, but where the user's own module takes other shapes or keys than it has."""
        live = self._live()
        free = _Free(self._module, self.name)
        found: dict[Path, Slot] = {}
        spare: set[Path] = set()
        problems = []
        held = dict.fromkeys(path[1] for path in saved.items)
        for key in held:
            root = (self.name, key)
            item, own = saved.items.get(root), live.get(key)
            if isinstance(own, torch.Tensor) and item is not None:
                if (tuple(own.shape), own.dtype) == (item.shape, item.dtype):
                    found[root] = Slot(own)
                elif free.takes(key) and item.shape is not None:
                    found[root] = Slot(tensors.blank(item, {}, own, saved.meshes))
                else:
                    here = tensors.described(own)
                    problems.append(f"{self.name}.{key} is {item.described()} in the checkpoint, {here} here")
            elif key in live or free.takes(key):
                extra = nest_slots(root, saved, {}, in_place=False)
                found.update(extra.of)
                problems += extra.problems
            else:
                spare.update(path for path in saved.items if path[:2] == root)
        problems += [
            f"{self.name}.{key} is missing in the checkpoint" for key in live if key not in held and not free.takes(key)
        ]
        return Slots(found, frozenset(spare), tuple(problems))

    def restore(self, loaded: Mapping[Path, Any], saved: Saved) -> None:
        """See `Entry.restore`."""
        keys = dict.fromkeys(path[1] for path in loaded)
        set_model_state_dict(self._module, {key: rebuilt((self.name, key), loaded, saved) for key in keys})

    def _refuse_empty(self, known: Iterable[Member]) -> None:
        """Torch leaves what has no data out of a state dict without a word: a checkpoint without it could never be resumed from."""
        for member in known:
            problem = tensors.problem_of(member.value) if isinstance(member.value, torch.Tensor) else ""
            if problem and (member.kind == "parameter" or member.is_persistent):
                raise Unsavable(f"{self.name}.{member.name}: {problem}")

    def _live(self) -> dict[str, Any]:
        """Torch's function raises for a module without any state."""
        return dict(get_model_state_dict(self._module)) if self._module.state_dict() else {}


def _sharing(member: Member | None) -> Sharing:
    """TR1: what wraps the model says whose buffers count. Parameters of replicas are equal, or something is wrong."""
    if member is None or member.kind == "parameter":
        return Sharing.SAME
    if member.wrapper == "broadcast":
        return Sharing.RANK_0
    return Sharing.OWN if member.wrapper else Sharing.SAME


class _Free:
    """Which keys belong to a module of the user's own that decides by itself what it loads (`_load_from_state_dict`, a hook)."""

    def __init__(self, module: Any, name: str) -> None:
        modules = (member for member in members(module, what=name) if member.kind == "module")
        self._prefixes = [member.name for member in modules if _is_free(member.owner)]

    def takes(self, key: str) -> bool:
        """Whether what a checkpoint holds under this key is given to it, whatever it is."""
        return any(not prefix or key.startswith(f"{prefix}.") for prefix in self._prefixes)


def _is_free(module: Any) -> bool:
    definer = next(kind for kind in type(module).__mro__ if "_load_from_state_dict" in vars(kind))
    hooks = [getattr(wrapped, "hook", wrapped) for wrapped in module._load_state_dict_pre_hooks.values()]
    return not _is_torchs(definer) or any(not _is_torchs(hook) for hook in hooks)


def _is_torchs(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("torch.")
