"""Schedulers of every kind with the optimizer that they steer, and a GradScaler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from things import Change, Thing, only
from things_optimizers import Small
from torch import optim
from torch.optim import lr_scheduler as rates
from training import Training, batch, descend

RATES: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: rates.StepLR(o, 2),
    "MultiStepLR": lambda o: rates.MultiStepLR(o, [1, 3]),
    "ConstantLR": rates.ConstantLR,
    "LinearLR": rates.LinearLR,
    "ExponentialLR": lambda o: rates.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: rates.PolynomialLR(o, 10),
    "CosineAnnealingLR": lambda o: rates.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: rates.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: rates.OneCycleLR(o, 0.1, total_steps=20),
    "CyclicLR": lambda o: rates.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "CyclicLR by a function": lambda o: rates.CyclicLR(o, 0.01, 0.1, step_size_up=3, scale_fn=lambda x: 0.5),
    "LambdaLR": lambda o: rates.LambdaLR(o, lambda step: 0.9**step),
    "LambdaLR by an object": lambda o: rates.LambdaLR(o, Warmup()),
    "MultiplicativeLR": lambda o: rates.MultiplicativeLR(o, lambda step: 0.9),
    "SequentialLR": lambda o: rates.SequentialLR(o, [rates.LinearLR(o), rates.CosineAnnealingLR(o, 5)], [2]),
    "ChainedScheduler": lambda o: rates.ChainedScheduler([rates.LinearLR(o), rates.ExponentialLR(o, 0.9)], optimizer=o),
    "ReduceLROnPlateau": lambda o: rates.ReduceLROnPlateau(o, patience=0),
    "SWALR": lambda o: optim.swa_utils.SWALR(o, 0.01, anneal_epochs=3),
}


class Warmup:
    """A rate with a memory."""

    def __init__(self) -> None:
        self.steps = 3

    def __call__(self, step: int) -> float:
        return min(1.0, (1 + step) / self.steps)


def _scheduled(make_rate: Callable[[Any], Any]) -> Callable[[], Training]:
    def make() -> Training:
        model = Small()
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        rate = make_rate(optimizer)

        def advance(step: int) -> None:
            descend(model, step, optimizer)
            rate.step(*([float(step % 2)] if isinstance(rate, rates.ReduceLROnPlateau) else []))

        return Training({"model": model, "optimizer": optimizer, "scheduler": rate}, advance)

    return make


def _scaled() -> Training:
    model = Small()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

    def advance(step: int) -> None:
        optimizer.zero_grad()
        scaler.scale(model(batch(step)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    return Training({"model": model, "optimizer": optimizer, "scaler": scaler}, advance)


def schedule_things() -> list[Thing]:
    """All of this module."""
    as_it_is = only("said by an object's state", nothing=Change(lambda part: None))
    return [
        *(
            Thing(
                name, _scheduled(make), key="scheduler", changes=as_it_is, is_free=name == "SWALR"
            )  # torch 2.6: a function
            for name, make in RATES.items()
        ),
        Thing("GradScaler", _scaled, key="scaler", changes=as_it_is),
    ]
