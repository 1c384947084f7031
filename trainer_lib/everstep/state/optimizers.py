"""An optimizer's state under canonical parameter names, in the nested form that stock `get_optimizer_state_dict` gives.

Taken from the live `optimizer.state`: torch's own function runs a step when there is none yet (Adam's count is then wrong), and
gives an empty state without a word when gradients are there but no state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from everstep.engine import SavedItem
from everstep.errors import LoadError, StateError
from everstep.naming import parameter_names
from everstep.state import tensors, tree
from everstep.state.items import Captured, Item, Saved, Sharing, Slot, Slots
from everstep.state.objects import nest, rebuilt
from everstep.state.tree import Path

STATE = "state"
GROUPS = "param_groups"
PARAMS = "params"
_OWN_ATTRIBUTES = ("state", GROUPS, "defaults", "_params")  # _params: LBFGS's list of its parameters


class OptimizerEntry:
    """One optimizer of the state; `modules` are the models given beside it, where its parameters' names come from.

    Its ranks may hold different parameters (pipeline stages); what is set for a group must be the same on all.
    """

    def __init__(self, name: str, optimizer: Any, modules: Mapping[str, Any]) -> None:
        self.name = name
        self._optimizer = optimizer
        self._modules = modules

    def capture(self, step: int) -> Captured:
        """See `Entry.capture`; empty state stays empty. Raises StateError where state lies elsewhere (TR7)."""
        self._refuse_hidden_state()
        names = self._names()
        items: list[Item] = []
        shapes: dict[Path, Any] = {}
        for parameter, state in self._optimizer.state.items():
            if not state:  # somebody looked at a defaultdict
                continue
            if id(parameter) not in names:
                raise StateError(f"{self.name}: it keeps state of something that is none of its parameters")
            found = nest((self.name, STATE, names[id(parameter)]), state, everywhere=False)
            items += found.items
            shapes.update(found.shapes)
        for place, group in enumerate(self._optimizer.param_groups):
            named = {**group, PARAMS: [names[id(parameter)] for parameter in group[PARAMS]]}
            found = nest((self.name, GROUPS, place), named, everywhere=False)
            items += [_listed(item) for item in found.items]
            shapes.update(found.shapes)
        return Captured(items, shapes)

    def slots(self, saved: Saved) -> Slots:
        """See `Entry.slots`: like its parameter where it has the parameter's size, plain otherwise."""
        parameters = self._parameters()
        found: dict[Path, Slot] = {}
        spare: set[Path] = set()
        for path, item in saved.items.items():
            if path[1] != STATE:
                found[path] = Slot(
                    None if item.shape is None else torch.empty(item.shape, dtype=item.dtype, device="cpu")
                )
            elif path[2] in parameters:
                found[path] = Slot(_like(*parameters[path[2]], path, saved))
            else:
                spare.add(path)
        own = {name for group in self.groups() for name in group}
        for place, group in enumerate(saved.groups or ()):
            spare.update((self.name, GROUPS, place, name) for name in group if name not in own)
        return Slots(found, frozenset(spare), self._lost_from_groups(saved))

    def restore(self, loaded: Mapping[Path, Any], saved: Saved) -> None:
        """Put loaded values (by path) into the live optimizer: its state as a whole, its groups' hyper-parameters in place."""
        parameters = self._parameters()
        self._optimizer.state.clear()
        for name in dict.fromkeys(path[2] for path in loaded if path[1] == STATE):
            state = rebuilt((self.name, STATE, name), loaded, saved)
            if state:
                self._optimizer.state[parameters[name][0]] = state
        for place, group in enumerate(self._optimizer.param_groups):
            _assign(group, rebuilt((self.name, GROUPS, place), loaded, saved))

    def check_has_state(self, saved: Mapping[Path, SavedItem]) -> None:
        """B21: raises LoadError for a checkpoint without any state of an optimizer that keeps some."""
        plain_sgd = isinstance(self._optimizer, torch.optim.SGD) and not any(
            group["momentum"] for group in self._optimizer.param_groups
        )
        if not plain_sgd and not any(path[:2] == (self.name, STATE) for path in saved):
            raise LoadError(
                f"{self.name}: the checkpoint holds no state of it ({self.name}.{STATE}.*): moments would start at zero"
            )

    def groups(self) -> list[list[str]]:
        """The names of this rank's parameters by group."""
        names = self._names()
        return [[names[id(parameter)] for parameter in group[PARAMS]] for group in self._optimizer.param_groups]

    def _lost_from_groups(self, saved: Saved) -> tuple[str, ...]:
        """What is wrong with this rank's groups. Whether all of the checkpoint's parameters are there is for all ranks to say."""
        live = self.groups()
        told = [set(group) for group in saved.groups]
        lost = sorted(
            name for place, group in enumerate(live) for name in group if place >= len(told) or name not in told[place]
        )
        if not lost:
            return ()
        return (
            f"{self.name}: the checkpoint's parameter groups are not this optimizer's "
            f"({[len(group) for group in told]} parameters a group there, {[len(group) for group in live]} here; "
            f"not in their group there: {', '.join(lost[:10])})",
        )

    def _names(self) -> dict[int, str]:
        """id(parameter) -> name: canonical where all are of one module, else with the module's name in front."""
        found = {
            module_name: parameter_names(module, what=module_name) for module_name, module in self._modules.items()
        }
        owners = [
            self._owner(parameter, found) for group in self._optimizer.param_groups for parameter in group[PARAMS]
        ]
        alone = len({module_name for _, module_name in owners}) == 1
        return {
            key: found[module_name][key] if alone else f"{module_name}.{found[module_name][key]}"
            for key, module_name in owners
        }

    def _owner(self, parameter: Any, found: Mapping[str, dict[int, str]]) -> tuple[int, str]:
        for module_name, names in found.items():
            if id(parameter) in names:
                return id(parameter), module_name
        raise StateError(
            f"{self.name}: it optimizes a parameter of shape {tuple(parameter.shape)} that is in no module given to the "
            "Checkpointer: give the model too, as it is when training, and make the optimizer after wrapping the model"
        )

    def _parameters(self) -> dict[str, tuple[Any, dict[str, Any]]]:
        """name -> (parameter, its group)."""
        names = self._names()
        return {names[id(p)]: (p, group) for group in self._optimizer.param_groups for p in group[PARAMS]}

    def _refuse_hidden_state(self) -> None:
        own = {id(parameter) for group in self._optimizer.param_groups for parameter in group[PARAMS]}
        for name, value in vars(self._optimizer).items():
            if name not in _OWN_ATTRIBUTES and any(id(tensor) not in own for tensor in _tensors_in(value)):
                raise StateError(
                    f"{self.name}: this {type(self._optimizer).__name__} keeps tensors in its attribute `{name}`, outside of its `state`, "
                    "where they would be lost: give it state_dict and load_state_dict of its own, or keep them in `state`"
                )


def has_own_format(optimizer: Any) -> bool:
    """Whether an optimizer writes or reads its state in a way of its own: then it is saved as any object is."""
    return _overrides(optimizer, "state_dict") or _overrides(optimizer, "load_state_dict")


def _overrides(optimizer: Any, method: str) -> bool:
    return next(kind for kind in type(optimizer).__mro__ if method in vars(kind)) is not torch.optim.Optimizer


def problem_of(name: str, optimizer: Any, others: list[Any]) -> str:
    """TR7: why this optimizer's state cannot be saved through it; empty: it can. `others`: what else is in the state."""
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
        return (
            f"{name}: a ZeroRedundancyOptimizer keeps its state on other ranks, and no resume would get it back: shard with "
            "torch.distributed.fsdp.fully_shard and give an ordinary optimizer"
        )
    if _overrides(optimizer, "state_dict"):
        return ""
    inner = [
        attribute
        for attribute, value in vars(optimizer).items()
        for found in (value if isinstance(value, (list, tuple)) else [value])
        if isinstance(found, torch.optim.Optimizer) and not any(found is other for other in others)
    ]
    if not inner:
        return ""
    return (
        f"{name}: this {type(optimizer).__name__} keeps an optimizer in its attribute `{inner[0]}`, whose state would be lost: give that "
        f"one to the Checkpointer, too, under a name of its own"
    )


def _listed(item: Item) -> Item:
    is_list = item.path[3:] == (PARAMS,)
    return Item(item.path, item.value, Sharing.LISTED if is_list else item.sharing, everywhere=False)


def _tensors_in(value: Any, depth: int = 3) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors_in(item, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(item, depth - 1)


def _like(parameter: Any, group: dict[str, Any], path: Path, saved: Saved) -> Any:
    item = saved.items[path]
    if item.shape is None:
        return None
    if path[3:] == ("step",):  # torch keeps it on the CPU unless it must not
        on_device = group.get("capturable") or group.get("fused")
        return torch.empty(item.shape, dtype=item.dtype, device=parameter.device if on_device else "cpu")
    if tuple(parameter.shape) == item.shape:
        return torch.zeros_like(parameter, dtype=item.dtype, requires_grad=False)
    told = dict(tree.traits_of(saved.shapes.get(path[:3]))).get(path[3:], {})
    if "placements" in told:
        return tensors.blank(item, told, None, saved.meshes)
    return torch.empty(item.shape, dtype=item.dtype, device=parameter.device)


def _assign(group: dict[str, Any], saved: dict[str, Any]) -> None:
    for key, value in saved.items():
        if key == PARAMS:
            continue
        if isinstance(group.get(key), torch.Tensor):
            group[key].copy_(torch.as_tensor(value))
        else:
            group[key] = value
