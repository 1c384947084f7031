"""Parts that train: models, optimizers and schedulers as one script has them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from boxes import zeroed
from deep import kept
from things import OTHER, Part, rank
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

_WRAPPED_BY = ("module", "_orig_mod", "_checkpoint_wrapped_module")


def inner(model: Any) -> Any:
    """The script's own model inside of DDP, compile and checkpoint wrappers."""
    for attribute in _WRAPPED_BY:
        if type(model).__module__.startswith("torch.") and isinstance(getattr(model, attribute, None), nn.Module):
            return inner(getattr(model, attribute))
    return model


class Training(Part):
    """Named entries, and one way to do a step with them. `parts`: everything that must come back, if more than the entries."""

    goes_on = True

    def __init__(
        self, entries: Mapping[str, Any], advance: Callable[[int], None], *, parts: Mapping[str, Any] | None = None
    ) -> None:
        self.entries = entries
        self._advance = advance
        self._parts = dict(parts or entries)

    def step(self, step: int) -> None:
        """See `Part.step`."""
        self._advance(step)

    def look(self) -> Any:
        """See `Part.look`."""
        return {name: _look_at(part) for name, part in self._parts.items()}

    def forget(self, start: str) -> None:
        """See `Part.forget`: with OTHER, all floating-point weights and buffers are other ones than the seed made."""
        if start == OTHER:
            for part in self._parts.values():
                if isinstance(part, nn.Module):
                    _zero(part)

    @property
    def model(self) -> Any:
        """The script's own model."""
        return inner(self.entries["model"])

    @property
    def optimizer(self) -> Any:
        """The script's optimizer."""
        return self.entries["optimizer"]

    def remember(self) -> Any:
        """See `Part.remember`."""
        return [*self._remember_models(), *self._remember_optimizers()]

    def _remember_models(self) -> Any:
        for model in (part for part in self._parts.values() if isinstance(part, nn.Module)):
            for module in model.modules():
                yield module._parameters, dict(module._parameters)
                yield module._buffers, dict(module._buffers)
            for tensor in [*model.parameters(), *model.buffers()]:
                yield tensor, tensor.detach().clone()

    def _remember_optimizers(self) -> Any:
        for optimizer in (part for part in self._parts.values() if isinstance(part, torch.optim.Optimizer)):
            yield optimizer.state, dict(optimizer.state)
            for container in [*optimizer.param_groups, *optimizer.state.values()]:
                yield container, dict(container)

    def repair(self, memory: Any) -> None:
        """See `Part.repair`."""
        for live, old in memory:
            if isinstance(live, torch.Tensor):
                with torch.no_grad():
                    live.copy_(old)
            else:
                live.clear()
                live.update(old)


def _zero(model: Any) -> None:
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.device.type != "meta" and tensor.layout is torch.strided:
            zeroed(tensor)


def _look_at(part: Any) -> Any:
    if isinstance(part, nn.Module):
        return {name: kept(value) for name, value in inner(part).state_dict().items()}
    if isinstance(part, torch.optim.Optimizer):
        told = kept(part.state_dict())
        if "state" in told:  # empty ones are made by a look
            told["state"] = {key: state for key, state in told["state"].items() if state}
        return told
    return kept(part.state_dict())


def batch(step: int, *, size: int = 6, by_rank: bool = False) -> torch.Tensor:
    """The data of a step: the same on every rank, or the rank's own."""
    seed = 1000 * step + (rank() if by_rank else 0)
    return torch.randn(4, size, generator=torch.Generator().manual_seed(seed))


def loss_of(model: Any, step: int, *, size: int = 6, by_rank: bool = False) -> torch.Tensor:
    """The loss of a step."""
    loss: torch.Tensor = model(batch(step, size=size, by_rank=by_rank)).square().mean()
    return loss


def descend(model: Any, step: int, optimizer: Any = None, **more: Any) -> None:
    """One step, by plain SGD that needs no state if there is no optimizer."""
    chosen = optimizer or torch.optim.SGD(model.parameters(), lr=0.05)

    def closure() -> torch.Tensor:
        chosen.zero_grad()
        loss = loss_of(model, step, **more)
        loss.backward()
        return loss

    chosen.step(closure) if isinstance(chosen, torch.optim.LBFGS) else (closure(), chosen.step())


def descend_by_hand(model: Any, step: int, optimizer: Any = None) -> None:
    """One step with made-up gradients, for models that cannot compute any here; the same in any world."""
    chosen = optimizer or torch.optim.SGD(model.parameters(), lr=0.05)
    for number, parameter in enumerate(model.parameters()):
        whole = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1000 * step + number))
        is_sharded = isinstance(parameter, DTensor)
        parameter.grad = distribute_tensor(whole, parameter.device_mesh, parameter.placements) if is_sharded else whole
    chosen.step()
    chosen.zero_grad()
