"""Models that no rank holds in full, with their optimizers: sharded, in parallel by tensors, in stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from deep import kept
from models import NEW_TORCH
from nets import Net, fully_sharded, sharded_by_hand, tensor_parallel
from things import Change, Part, Saved, Thing, only, rank, world
from torch import nn, optim
from training import Training, descend, descend_by_hand

NUM_LAYERS = 5
AS_IT_IS = only("said by AdamW and by models", nothing=Change(lambda part: None))


class Stage(nn.Module):
    """Every world-th layer of one model: what a rank of a pipeline holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict()
        for number in range(rank(), NUM_LAYERS, world()):
            torch.manual_seed(number)
            self.layers[str(number)] = nn.Linear(2, 2)


class Pipeline(Part):
    """A stage, and an optimizer for it; what comes back is compared by names, as each world numbers parameters otherwise."""

    goes_on = True

    def __init__(self, make_optimizer: Callable[[Any], Any] | None) -> None:
        self.model = Stage()
        self.optimizer = make_optimizer(self.model.parameters()) if make_optimizer else None
        self.entries = {"model": self.model} | ({"optimizer": self.optimizer} if self.optimizer else {})

    def step(self, step: int) -> None:
        """See `Part.step`; a layer's gradients do not depend on who holds it."""
        for name, parameter in self.model.named_parameters():
            seed = 1000 * step + sum(name.encode())
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
        (self.optimizer or optim.SGD(self.model.parameters(), lr=0.05)).step()

    def look(self) -> Any:
        """See `Part.look`."""
        found: dict[str, Any] = {}
        for name, parameter in self.model.named_parameters():
            found[name] = [kept(parameter), kept(dict(self.optimizer.state[parameter])) if self.optimizer else None]
        return found

    def forget(self, start: str) -> None:
        """See `Part.forget`."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.zero_()


def union_of_all(saved: Saved) -> Any:
    """For each name that this rank has, what its owner had."""
    everybody = {name: value for look in saved.looks for name, value in look.items()}
    return {name: everybody[name] for name in saved.fresh}


def _trained(wrap: Callable[[Any], Any], advance: Callable[..., None], make_optimizer: Callable[[Any], Any]) -> Any:
    def make() -> Training:
        model = wrap(Net())
        optimizer = make_optimizer(model.parameters())
        return Training({"model": model, "optimizer": optimizer}, lambda step: advance(model, step, optimizer))

    return make


def _adamw(parameters: Any) -> Any:
    return optim.AdamW(parameters, lr=0.05)


def _momentum(parameters: Any) -> Any:
    return optim.SGD(parameters, lr=0.05, momentum=0.9)


class _WithAverage(Training):
    def look(self) -> Any:
        """See `Part.look`."""
        return super().look() | {"ema": kept(self.entries["ema"])}


def _averaged(wrap: Callable[[Any], Any], advance: Callable[..., None]) -> Callable[[], Part]:
    """The moving average in a plain dict, of DTensors."""

    def make() -> Part:
        model = wrap(Net())
        optimizer = _adamw(model.parameters())
        ema: dict[str, Any] = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

        def average(step: int) -> None:
            advance(model, step, optimizer)
            for name, parameter in model.named_parameters():
                ema[name].lerp_(parameter.detach(), 0.5)

        parts = {"model": model, "optimizer": optimizer}
        return _WithAverage({**parts, "ema": ema}, average, parts=parts)

    return make


def sharded_things() -> list[Thing]:
    """All of this module."""
    kinds: dict[str, tuple[Any, Any]] = {
        "sharded by hand": (sharded_by_hand, descend_by_hand),
        "tensor parallel": (tensor_parallel, descend_by_hand),
    }
    if NEW_TORCH:
        kinds["FSDP2"] = (fully_sharded, descend)
    adamw = [
        Thing(f"{name} and AdamW", _trained(*kind, _adamw), key="optimizer", changes=AS_IT_IS)
        for name, kind in kinds.items()
    ]
    momentum = [
        Thing(f"{name} and momentum", _trained(*kind, _momentum), key="optimizer", changes=AS_IT_IS)
        for name, kind in kinds.items()
    ]
    averages = [
        Thing(f"average of {name}", _averaged(*kind), key="ema", changes=AS_IT_IS) for name, kind in kinds.items()
    ]
    stages = {"pipeline": None, "pipeline and AdamW": _adamw, "pipeline and momentum": _momentum}
    return [
        *adamw,
        *momentum,
        *averages,
        *(
            Thing(name, lambda optimizer=optimizer: Pipeline(optimizer), key="model", changes=AS_IT_IS, comes_back_as=union_of_all)
            for name, optimizer in stages.items()
        ),
    ]  # fmt: skip
