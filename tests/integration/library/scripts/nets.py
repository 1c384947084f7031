"""Small models, and all that may be wrapped around them; where the process is alone nothing is."""

from __future__ import annotations

from typing import Any

import torch
from things import world
from things_tensors import mesh, sharded
from torch import nn


class Net(nn.Module):
    """Two layers, and a buffer that nothing reads."""

    def __init__(self, *, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4) if norm else nn.Tanh(), nn.Linear(4, 1))
        self.register_buffer("seen", torch.ones(3))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def ddp(model: nn.Module, **more: Any) -> nn.Module:
    """In DDP where there are peers."""
    return nn.parallel.DistributedDataParallel(model, **more) if world() > 1 else model


def fully_sharded(model: nn.Module) -> nn.Module:
    """FSDP2 where there are peers."""
    from torch.distributed.fsdp import fully_shard

    if world() > 1:
        fully_shard(model, mesh=mesh())
    return model


def sharded_by_hand(model: nn.Module) -> nn.Module:
    """Parameters as DTensors: what FSDP2 makes, where it cannot train."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module.register_parameter(name, nn.Parameter(sharded(parameter.detach())))
    return model


def tensor_parallel(model: Any) -> nn.Module:
    """The first layer by columns, the last one by rows."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if world() > 1:
        parallelize_module(model, mesh(), {"layers.0": ColwiseParallel(), "layers.2": RowwiseParallel()})
    return model


class Tied(Net):
    """The first and the last layer share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        self.layers[2].weight = self.layers[0].weight


class WithExtraState(Net):
    """Keeps more than tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.extra: Any = {"value": 1, 2: [torch.ones(2), None], "2": {}}

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


class Growing(Net):
    """Takes a buffer of any length."""

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *more: Any) -> None:
        if f"{prefix}seen" in state_dict:
            self.seen = torch.zeros_like(state_dict[f"{prefix}seen"])
        super()._load_from_state_dict(state_dict, prefix, *more)
