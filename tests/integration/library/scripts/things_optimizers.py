"""Optimizers with their models: stock ones, those with a format of their own, those whose state lies elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy
import torch
from models import NEW_TORCH
from things import AT_RESUME, GROWS, REPLACED, Change, Part, Thing, only, rank
from torch import nn, optim
from training import Training, descend

STOCK: dict[str, Callable[[Any], Any]] = {
    "Adadelta": optim.Adadelta,
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.05),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.05),
    "Adam": lambda p: optim.Adam(p, lr=0.05),
    "Adam, amsgrad": lambda p: optim.Adam(p, lr=0.05, amsgrad=True),
    "AdamW, fused": lambda p: optim.AdamW(p, lr=0.05, fused=True),
    "AdamW, foreach": lambda p: optim.AdamW(p, lr=0.05, foreach=True),
    "AdamW, tensor as rate": lambda p: optim.AdamW(p, lr=torch.tensor(0.05)),
    "Adamax": lambda p: optim.Adamax(p, lr=0.05),
    "ASGD": lambda p: optim.ASGD(p, lr=0.05),
    "NAdam": lambda p: optim.NAdam(p, lr=0.05),
    "RAdam": lambda p: optim.RAdam(p, lr=0.05),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.05, centered=True, momentum=0.9),
    "Rprop": lambda p: optim.Rprop(p, lr=0.05),
    "SGD": lambda p: optim.SGD(p, lr=0.05),
    "SGD, momentum": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "LBFGS": lambda p: optim.LBFGS(p, lr=0.05, max_iter=3),
}


class Small(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


class SparseSmall(nn.Module):
    """Sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Embedding(8, 4, sparse=True)

    def forward(self, x: Any) -> Any:
        return self.layer(x.abs().long()[:, 0] % 8)


class Lookahead(optim.Optimizer):
    """Slow weights of its own, and another optimizer for the fast ones."""

    def __init__(self, fast: Any) -> None:
        super().__init__([p for group in fast.param_groups for p in group["params"]], {"alpha": 0.5})
        self.fast = fast

    def step(self, closure: Any = None) -> None:
        self.fast.step()
        for parameter in self.param_groups[0]["params"]:
            slow = self.state[parameter].setdefault("slow", parameter.detach().clone())
            slow.lerp_(parameter.detach(), 0.5)
            parameter.data.copy_(slow)


class Centred(optim.SGD):
    """Keeps a mean of all gradients beside its state."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.05, momentum=0.9)
        self.means = {"all": [torch.zeros(())]}


class OwnFormat(optim.Adam):
    """Says itself what its state is, with keys of two kinds."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.05)
        self.counts: dict[Any, Any] = {}

    def step(self, closure: Any = None) -> None:
        super().step()
        self.counts[1] = self.counts.get(1, 0) + 1
        self.counts["1"] = {len(self.counts): None}

    def state_dict(self) -> Any:
        return {"adam": super().state_dict(), "counts": self.counts}

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state["adam"])
        self.counts = state["counts"]


class Two:
    """Two optimizers in one object, as stock gives their states: with parameters' numbers as keys."""

    def __init__(self, model: Any) -> None:
        self.both = {"adam": optim.Adam([model.layer.weight], lr=0.1), 7: optim.SGD([model.layer.bias], momentum=0.9)}

    def zero_grad(self) -> None:
        """As an optimizer does."""
        for each in self.both.values():
            each.zero_grad()

    def step(self, closure: Any = None) -> None:
        """As an optimizer does."""
        for each in self.both.values():
            each.step()

    def state_dict(self) -> Any:
        return {name: each.state_dict() for name, each in self.both.items()}

    def load_state_dict(self, state: Any) -> None:
        for name, each in self.both.items():
            each.load_state_dict(state[name])


def _train(make_optimizer: Callable[[Any], Any], make_model: Callable[[], Any] = Small, advance: Any = descend) -> Any:
    def make() -> Training:
        model = make_model()
        optimizer = make_optimizer(model.parameters())
        return Training({"model": model, "optimizer": optimizer}, lambda step: advance(model, step, optimizer))

    return make


def _thing(name: str, make: Callable[[], Part], **more: Any) -> Thing:
    fields = {"key": "optimizer", "changes": _AS_IT_IS, **more}
    return Thing(name, make, **fields)


_AS_IT_IS = only("said by AdamW", nothing=Change(lambda part: None))
_NEVER = only("refused at the start", nothing=Change(lambda part: None))


# ---------------------------------------------------------------------- what may happen to an optimizer


def _group(**items: Any) -> Change:
    return Change(lambda part: part.optimizer.param_groups[0].update(items))


def _state(**items: Callable[[Any], Any]) -> Change:
    def make(part: Any) -> None:
        for state in part.optimizer.state.values():
            state.update({key: value(state) for key, value in items.items()})

    return Change(make)


def _add_group(part: Any) -> None:
    part.model.late = nn.Parameter(torch.ones(2))
    part.optimizer.add_param_group({"params": [part.model.late], "lr": 0.5})


def _get_keys(part: Any) -> None:
    part.optimizer.param_groups[0]["initial_lr"] = 0.5
    for state in part.optimizer.state.values():
        state["notes"] = [1, {2: torch.ones(2)}]


def _lose_state(part: Any) -> None:
    del part.optimizer.state[part.model.layer.bias]


def _swap_groups(part: Any) -> None:
    first, second = part.optimizer.param_groups
    first["params"], second["params"] = second["params"], first["params"]


def _replace_all(part: Any) -> None:
    optimizer = part.optimizer
    optimizer.param_groups[0] = {**optimizer.param_groups[0], "lr": 0.02}
    for parameter, state in list(optimizer.state.items()):
        optimizer.state[parameter] = {key: value.clone() for key, value in state.items()}


def _look(part: Any) -> None:
    for parameter in part.model.parameters():
        part.optimizer.state[parameter]


def _differ_in_rate(part: Any) -> None:
    part.optimizer.param_groups[0]["lr"] = 0.05 + rank()


ADAMW_CHANGES = only(
    "AdamW cannot train with a moment of another dtype",
    nothing=Change(lambda part: None),
    grows=Change(_add_group),
    changes_type=_group(lr=numpy.float64(0.02)),
    gets_keys=Change(_get_keys),
    loses_keys=Change(_lose_state),
    differs_by_rank=Change(_differ_in_rate),
    is_replaced=Change(_replace_all),
    cannot_be_copied=_group(lock=threading.Lock()),
    goes_to_another_device=_state(exp_avg=lambda state: state["exp_avg"].to("meta")),
)
_LATER = {
    "rate becomes a tensor": only("said by AdamW", changes_type=_group(lr=torch.tensor(0.02))),
    "moments come to differ": only("said by AdamW", differs_by_rank=_state(exp_avg=lambda s: s["exp_avg"] + rank())),
    "steps come to differ": only("said by AdamW", differs_by_rank=_state(step=lambda s: s["step"] + rank())),
    "state that cannot be copied": only("said by AdamW", cannot_be_copied=_state(lock=lambda s: threading.Lock())),
}


def _adamw(parameters: Any) -> Any:
    return optim.AdamW(parameters, lr=0.05)


def _frozen_in_part() -> Small:
    model = Small()
    model.layer.bias.requires_grad_(False)
    return model


def _two_groups(parameters: Any) -> Any:
    weight, bias = parameters
    return optim.AdamW([{"params": [bias], "lr": 0.01, "name": "bias"}, {"params": [weight], "betas": (0.5, 0.9)}])


def _zero(parameters: Any) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(parameters, optimizer_class=optim.Adam, lr=0.05)


def _lookahead(*, inner_too: bool) -> Callable[[], Training]:
    def make() -> Training:
        model = Small()
        fast = optim.Adam(model.parameters(), lr=0.05)
        slow = Lookahead(fast)
        entries = {"model": model, "optimizer": slow} | ({"fast": fast} if inner_too else {})
        return Training(entries, lambda step: descend(model, step, slow))

    return make


def _two_in_an_object() -> Training:
    model = Small()
    both = Two(model)
    return Training({"model": model, "both": both}, lambda step: descend(model, step, both))


def optimizer_things() -> list[Thing]:
    """All of this module."""
    things = [
        *(_thing(name, _train(make)) for name, make in STOCK.items()),
        _thing("AdamW", _train(_adamw), changes=ADAMW_CHANGES, outcomes={GROWS: AT_RESUME}),
        *(_thing(f"AdamW, {name}", _train(_adamw), changes=changes) for name, changes in _LATER.items()),
        _thing("AdamW, two groups", _train(_two_groups)),
        _thing("AdamW, parameters change groups", _train(_two_groups), changes=only("said by AdamW", is_replaced=Change(_swap_groups)),
               outcomes={REPLACED: AT_RESUME}),
        _thing("AdamW, one parameter without state", _train(_adamw, _frozen_in_part)),
        _thing("AdamW, one parameter looked at", _train(_adamw, _frozen_in_part), changes=only("is a look", nothing=Change(_look))),
        _thing("AdamW, nothing done yet", _train(_adamw, advance=lambda model, step, optimizer: None)),
        _thing("SGD, momentum of another dtype", _train(lambda p: optim.SGD(p, momentum=0.9, foreach=False)), changes=only(
            "said by AdamW", changes_dtype=_state(momentum_buffer=lambda state: state["momentum_buffer"].double()))),
        _thing("SparseAdam", _train(lambda p: optim.SparseAdam(p, lr=0.05), SparseSmall)),
        _thing("optimizer with a format of its own", _train(OwnFormat)),
        _thing("optimizer around one that is not in the state", _lookahead(inner_too=False), changes=_NEVER, is_savable=False),
        _thing("optimizer around one that is in the state", _lookahead(inner_too=True)),
        _thing("optimizer with tensors beside its state", _train(Centred), changes=_NEVER, is_savable=False),
        _thing("ZeroRedundancyOptimizer", _train(_zero), changes=_NEVER, is_savable=False, saved_by=(2,)),
        _thing("two optimizers in an object", _two_in_an_object, key="both"),
    ]  # fmt: skip
    if NEW_TORCH:
        things.append(_thing("Muon", _train(lambda p: optim.Muon(p, lr=0.05), lambda: nn.Linear(6, 6, bias=False))))
    return things
