"""An optimizer's state under canonical parameter names, in the nested form that stock `get_optimizer_state_dict` gives.

Taken from the live `optimizer.state`: torch's own function runs a step when there is none yet (Adam's count is then wrong), and
gives an empty state without a word when gradients are there but no state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from everstep import flat
from everstep.engine import SavedItem
from everstep.errors import LoadError, StateError
from everstep.flat import Path
from everstep.naming import parameter_names

STATE = "state"
GROUPS = "param_groups"
PARAMS = "params"


class OptimizerEntry:
    """One optimizer of the state; `modules` are the models given beside it, where its parameters' names come from."""

    def __init__(self, name: str, optimizer: Any, modules: Mapping[str, Any]) -> None:
        self.name = name
        self._optimizer = optimizer
        self._modules = modules

    def capture(self) -> Iterator[tuple[Path, Any]]:
        """Paths and live values; empty state stays empty."""
        names = self._names()
        for parameter, state in self._optimizer.state.items():
            yield from flat.flatten(state, (self.name, STATE, names[id(parameter)]))
        for place, group in enumerate(self._optimizer.param_groups):
            named = {**group, PARAMS: [names[id(parameter)] for parameter in group[PARAMS]]}
            yield from flat.flatten(named, (self.name, GROUPS, place))

    def destination(self, saved: Mapping[str, SavedItem]) -> Iterator[tuple[str, Any]]:
        """Where to load each saved key: like its parameter where it has the parameter's size, plain otherwise."""
        parameters = self._parameters()
        for key, item in saved.items():
            if item.path[1:2] != (STATE,):
                yield key, None if item.shape is None else torch.empty(item.shape, dtype=item.dtype)
                continue
            owner = parameters.get(_parameter_of(item.path))
            if owner is None:
                raise LoadError(
                    f"{key}: no parameter of that name is optimized here: the model or the optimizer's groups changed"
                )
            yield key, _like(*owner, item)

    def restore(self, loaded: Mapping[Path, Any]) -> None:
        """Put loaded values (by path) into the live optimizer: its state as a whole, its groups' hyper-parameters in place."""
        nested = flat.unflatten({path[1:]: value for path, value in loaded.items()})
        groups = nested.get(GROUPS, [])
        self._check_groups(groups)
        parameters = self._parameters()
        self._optimizer.state.clear()
        for name, state in nested.get(STATE, {}).items():
            self._optimizer.state[parameters[name][0]] = state
        for live, told in zip(self._optimizer.param_groups, groups, strict=True):
            _assign(live, told)

    def check_has_state(self, saved: Mapping[str, SavedItem]) -> None:
        """B21: raises LoadError for a checkpoint without any state of an optimizer that keeps some."""
        plain_sgd = isinstance(self._optimizer, torch.optim.SGD) and not any(
            group["momentum"] for group in self._optimizer.param_groups
        )
        if not plain_sgd and not any(key.startswith(f"{self.name}.{STATE}.") for key in saved):
            raise LoadError(
                f"{self.name}: the checkpoint holds no state of it ({self.name}.{STATE}.*): moments would start at zero"
            )

    def _check_groups(self, saved: list[dict[str, Any]]) -> None:
        names = self._names()
        live = [[names[id(parameter)] for parameter in group[PARAMS]] for group in self._optimizer.param_groups]
        told = [list(group[PARAMS]) for group in saved]
        if live != told:
            changed = sorted({name for group in live for name in group} ^ {name for group in told for name in group})
            raise LoadError(
                f"{self.name}: the checkpoint's parameter groups are not this optimizer's "
                f"({[len(group) for group in told]} parameters a group there, {[len(group) for group in live]} here; "
                f"only in one of them: {changed[:10] or 'none, their order differs'})"
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


def _parameter_of(path: Path) -> str:
    return str(path[2]) if len(path) > 3 else ""


def _like(parameter: Any, group: dict[str, Any], item: SavedItem) -> Any:
    if item.shape is None:
        return None
    if item.path[3:] == ("step",):  # torch keeps it on the CPU unless it must not
        on_device = group.get("capturable") or group.get("fused")
        return torch.empty(item.shape, dtype=item.dtype, device=parameter.device if on_device else "cpu")
    if tuple(parameter.shape) == item.shape:
        return torch.zeros_like(parameter, dtype=item.dtype, requires_grad=False)
    return torch.empty(item.shape, dtype=item.dtype, device=parameter.device)


def _assign(group: dict[str, Any], saved: dict[str, Any]) -> None:
    for key, value in saved.items():
        if key == PARAMS:
            continue
        if isinstance(group.get(key), torch.Tensor):
            group[key].copy_(torch.as_tensor(value))
        else:
            group[key] = value
