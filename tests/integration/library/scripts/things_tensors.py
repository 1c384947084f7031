"""Tensors of every kind in a script's dicts, lists and objects."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

import torch
from boxes import Box, HeldBox, HeldValue, ListBox, get
from happenings import LONG_CHANGES, SHORT_CHANGES, VALUE_CHANGES, becoming, value_thing
from things import (
    AT_RESUME,
    CHANGES_DTYPE,
    DIFFERS,
    GETS_KEYS,
    GROWS,
    LOSES_KEYS,
    REPLACED,
    TO_META,
    UNCOPYABLE,
    Impossible,
    Thing,
    world,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def _dtypes() -> dict[str, Any]:
    """Every dtype that a tensor can have and be copied with, by its name."""
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    named = {str(dtype).removeprefix("torch."): dtype for dtype in every}
    return {name: named[name] for name in sorted(named) if _can_be_copied(named[name])}


def _can_be_copied(dtype: torch.dtype) -> bool:
    try:
        _of_dtype(dtype).clone()
    except RuntimeError:  # quantized, or narrower than a byte: torch has no kernel
        return False
    return True


def _of_dtype(dtype: Any) -> Any:
    if dtype == torch.bool:
        return torch.tensor([True, False])
    return torch.arange(32, dtype=torch.uint8).view(dtype)


def _inference() -> Any:
    with torch.inference_mode():
        return torch.ones(2)


FORMS: dict[str, Callable[[], Any]] = {
    "0-dim tensor": lambda: torch.tensor(3.0),
    "tensor without elements": lambda: torch.empty(0, 3),
    "tensor with nan": lambda: torch.tensor([float("nan"), -0.0]),
    "transposed tensor": lambda: torch.arange(6.0).view(2, 3).t(),
    "channels_last tensor": lambda: torch.arange(48.0).view(1, 3, 4, 4).to(memory_format=torch.channels_last),
    "every other element": lambda: torch.arange(10.0)[::2],
    "expanded tensor": lambda: torch.ones(1).expand(4),
    "view of a large storage": lambda: torch.zeros(100_000)[7:10],
    "conjugate": lambda: torch.tensor([1 + 2j]).conj(),
    "negative view": lambda: torch.tensor([1 + 2j]).conj().imag,
    "leaf with requires_grad": lambda: torch.ones(2, requires_grad=True),
    "result with a graph": lambda: torch.ones(2, requires_grad=True) * 2,
    "inference tensor": _inference,
    "Parameter": lambda: nn.Parameter(torch.ones(2)),
}
NESTED: dict[str, Callable[[], Any]] = {
    "list of tensors": lambda: [torch.ones(2), 1, torch.tensor(True)],
    "tuple of tensors": lambda: (torch.ones(2), [torch.zeros(1), {"a": torch.ones(1)}]),
    "deque of tensors": lambda: collections.deque([torch.ones(2), 2], maxlen=4),
    "dict of tensors by int": lambda: {0: torch.ones(2), 1: {"a": torch.zeros(1), 2: None}},
    "dict of tensors by 1 and '1'": lambda: {1: torch.ones(1), "1": torch.zeros(2)},
    "dict of tensors by tuple, None and bytes": lambda: {(1, "a"): torch.ones(1), None: torch.ones(2), b"x": 1},
    "dict of tensors with dots": lambda: {"a.b": torch.ones(1), "a": {"c": torch.zeros(1)}},
    "OrderedDict of tensors": lambda: collections.OrderedDict([("b", torch.ones(1)), ("a", 2)]),
    "Counter of tensors": lambda: collections.Counter({"a": torch.ones(1), 2: 3}),
    "defaultdict of lists of tensors": lambda: collections.defaultdict(list, {3: [torch.ones(1)]}),
    "dict in a list in a tuple": lambda: ([{"a": (torch.ones(1), {1: torch.zeros(1)})}], {}),
    "empty places beside tensors": lambda: {"a": {}, "b": [], "c": (), "d": torch.ones(1), "e": None},
    "an optimizer's state_dict": lambda: _stepped().state_dict(),
}


def _stepped() -> Any:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    parameter.grad = torch.ones(3)
    optimizer.step()
    return optimizer


@functools.cache
def mesh() -> Any:
    """All ranks in a row."""
    return init_device_mesh("cpu", (world(),))


def sharded(tensor: Any, placement: Any = None) -> Any:
    """A DTensor; the tensor itself where the process is alone."""
    return tensor if world() == 1 else distribute_tensor(tensor, mesh(), [placement or Shard(0)])


class ShardedBox(Box):
    """Beside something that says over which ranks tensors are sharded now."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(make)
        self.entries = {**self.entries, "beside": sharded(torch.ones(4))}


class ShardedHeldBox(HeldBox):
    """The same behind an object."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(make)
        self.entries = {**self.entries, "beside": sharded(torch.ones(4))}


SHARDED: dict[str, Callable[[], Any]] = {
    "sharded tensor": lambda: sharded(torch.arange(21.0).view(7, 3)),
    "sharded in dimension 1": lambda: sharded(torch.arange(8.0).view(2, 4), Shard(1)),
    "fewer rows than ranks": lambda: sharded(torch.ones(1, 3)),
    "replicated DTensor": lambda: sharded(torch.arange(4.0), Replicate()),
    "dict of shards by int": lambda: {0: sharded(torch.ones(5)), "a": [sharded(torch.zeros(3, 2)), 1]},
}
_SHARDED_CHANGES = {
    GROWS: becoming(lambda part: sharded(torch.arange(27.0).view(9, 3))),
    CHANGES_DTYPE: becoming(lambda part: sharded(torch.arange(21, dtype=torch.float64).view(7, 3))),
    DIFFERS: Impossible("each rank has its own shard"),
}


def _other_dtype(part: Any) -> Any:
    value = get(part)
    return torch.ones(value.shape, dtype=torch.float64 if value.dtype != torch.float64 else torch.float32)


_TENSOR_CHANGES = {CHANGES_DTYPE: becoming(_other_dtype)}
_FULL = ("float32", "bfloat16", "int64", "complex64", "bool")
_OTHER_DTYPES = dict.fromkeys(
    (GROWS, CHANGES_DTYPE, GETS_KEYS, LOSES_KEYS, REPLACED, UNCOPYABLE, TO_META), Impossible("said by float32")
)


def _of_tensor(name: str) -> dict[str, Any]:
    if name == "tensor of float32":
        return _TENSOR_CHANGES
    is_rare = name.startswith("tensor of ") and not name.endswith(_FULL)
    return LONG_CHANGES | _TENSOR_CHANGES | (_OTHER_DTYPES if is_rare else {})


def tensor_things() -> list[Thing]:
    """All of this module."""
    dtypes = {f"tensor of {name}": (lambda dtype=dtype: _of_dtype(dtype)) for name, dtype in _dtypes().items()}
    shards = SHARDED.items()
    return [
        *(value_thing(name, make, changes=_of_tensor(name), is_free="bits" in name) for name, make in (dtypes | FORMS).items()),
        *(value_thing(name, make, changes=LONG_CHANGES) for name, make in NESTED.items()),
        *(value_thing(f"{name}, held", make, part=HeldBox, changes=SHORT_CHANGES) for name, make in (FORMS | NESTED).items()),
        *(Thing(f"{name}, in a list", lambda make=make: ListBox(make), key="box", changes=SHORT_CHANGES) for name, make in NESTED.items()),
        *(Thing(f"{name}, an object's whole state", lambda make=make: HeldValue(make), key="holder", changes=VALUE_CHANGES)
          for name, make in {**NESTED, "0-dim tensor": FORMS["0-dim tensor"]}.items()),
        *(value_thing(name, make, part=ShardedBox, changes=_SHARDED_CHANGES) for name, make in shards),
        *(value_thing(f"{name}, held", make, part=ShardedHeldBox, changes=SHORT_CHANGES | _SHARDED_CHANGES) for name, make in shards),
        value_thing("sharded tensor and nothing that is sharded now", SHARDED["sharded tensor"],
                    changes=_SHARDED_CHANGES | {LOSES_KEYS: Impossible("nothing sharded is left")}, in_worlds={(2, 3): AT_RESUME}),
    ]  # fmt: skip
