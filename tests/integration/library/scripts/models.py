"""Small models and optimizers for the checks."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

NEW_TORCH = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
ODD_SHAPES = ((7, 3), (2,), (1, 3), (5,))


class OddShapes(nn.Module):
    """Parameters whose sizes no world divides, a scalar and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        for place, shape in enumerate(ODD_SHAPES):
            self.register_parameter(f"p{place}", nn.Parameter(torch.randn(shape, generator=generator)))
        self.scalar = nn.Parameter(torch.randn((), generator=generator))
        self.register_buffer("seen", torch.tensor(5))


def sharded_odd_shapes() -> OddShapes:
    """All but the scalar as DTensors sharded over all ranks; also where FSDP2 cannot train."""
    model = OddShapes()
    if not dist.is_initialized():
        return model
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for name, parameter in list(model.named_parameters()):
        if parameter.dim() > 0:
            model.register_parameter(name, nn.Parameter(distribute_tensor(parameter.detach(), mesh)))
    return model


def step_by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    """One optimizer step with made-up gradients, the same at any world size."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        whole = torch.randn(parameter.shape, generator=generator)
        if isinstance(parameter, DTensor):
            parameter.grad = distribute_tensor(whole, parameter.device_mesh, parameter.placements)
        else:
            parameter.grad = whole
    optimizer.step()
    optimizer.zero_grad()


def whole(value: Any) -> Any:
    """A tensor in full, whatever its sharding."""
    return value.full_tensor().detach().clone() if isinstance(value, DTensor) else value.detach().clone()


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Every parameter, buffer and optimizer tensor in full."""
    found = {name: whole(value) for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        found.update({f"{name}.{key}": whole(value) for key, value in optimizer.state[parameter].items()})
    return found


def assert_equal(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Bit by bit."""
    assert list(left) == list(right), (list(left), list(right))
    for key, value in left.items():
        assert value.dtype == right[key].dtype, key
        assert torch.equal(value, right[key]), (key, value, right[key])


def newest(folder: Path) -> Path:
    """The newest committed checkpoint of a local folder."""
    return max((path for path in folder.glob("step_*") if "tmp" not in path.name), key=lambda path: int(path.name[5:]))
