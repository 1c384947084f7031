"""What can never be loaded again, or lies elsewhere: refused wherever it appears, by name."""

from __future__ import annotations

import collections
import enum
import functools
import io
import random
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
import torch
from boxes import Box, HeldBox, ListBox
from happenings import BOX_CHANGES, value_thing
from things import CHANGES_TYPE, GETS_KEYS, NOTHING, Change, Impossible, Part, Thing, only
from torch import nn

SEEN_ALREADY = Impossible("refused at the start")


class Colour(enum.Enum):
    """A script's own."""

    RED = 1


class Level(enum.IntEnum):
    """An int by heart."""

    LOW = 1


class Flags(enum.Flag):
    """Several at once."""

    A = 1
    B = 2


class Pair(NamedTuple):
    """A tuple with names."""

    left: int
    right: float


@dataclass
class Record:
    """A script's own."""

    loss: float = 0.5


class OwnDict(dict):  # type: ignore[type-arg]
    """A dict with more to it."""


class OwnList(list):  # type: ignore[type-arg]
    """A list with more to it."""


class OwnInt(int):
    """An int with more to it."""


class OwnFloat(float):
    """A float with more to it."""


class OwnStr(str):
    """A str with more to it."""


class OwnTensor(torch.Tensor):
    """A tensor with more to it."""


class Plain:
    """Neither plain nor with a state of its own."""


def _of_itself() -> Any:
    value: list[Any] = [1]
    value.append(value)
    return value


def _dict_of_itself() -> Any:
    value: dict[str, Any] = {"a": torch.ones(1)}
    value["self"] = value
    return value


def _numbers() -> Any:
    yield 1


def _own_tensor() -> Any:
    return torch.ones(2).as_subclass(OwnTensor)


NEVER: dict[str, Callable[[], Any]] = {
    "lambda": lambda: lambda: 1,
    "function": lambda: _numbers,
    "bound method": lambda: [].append,
    "partial": lambda: functools.partial(int, "3"),
    "open file": lambda: open("/dev/null"),  # noqa: PTH123, SIM115 - left open as scripts do
    "io.BytesIO": lambda: io.BytesIO(b"abc"),
    "lock": threading.Lock,
    "event": threading.Event,
    "generator": _numbers,
    "iterator": lambda: iter([1, 2]),
    "module": lambda: re,
    "own object": Plain,
    "memoryview": lambda: memoryview(b"ab"),
    "random.Random": lambda: random.Random(3),
    "np.random.Generator": lambda: numpy.random.default_rng(3),
    "np.random.RandomState": lambda: numpy.random.RandomState(3),
    "torch.Generator in a dict": torch.Generator,
    "array of objects": lambda: numpy.array([1, "x", None], dtype=object),
    "model in a dict": lambda: nn.Linear(1, 1),
    "optimizer in a dict": lambda: torch.optim.SGD([nn.Parameter(torch.ones(1))]),
    "defaultdict of a lambda": lambda: collections.defaultdict(lambda: 1),
    "deque of locks": lambda: collections.deque([threading.Lock()]),
    "dict deep in lists": lambda: [1, {"a": [{1: threading.Lock()}]}],
    "key of an own class": lambda: {Plain(): 1},
    "sparse tensor": lambda: torch.eye(3).to_sparse(),
    "sparse CSR tensor": lambda: torch.eye(3).to_sparse_csr(),
    "quantized tensor": lambda: torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8),
    "nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged tensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "meta tensor": lambda: torch.empty(3, device="meta"),
    "own tensor": _own_tensor,
    "sub-byte tensor": lambda: torch.zeros(4, dtype=torch.uint8).view(torch.uint1),
}
ENDLESS: dict[str, Callable[[], Any]] = {"list of itself": _of_itself, "dict of itself": _dict_of_itself}
FREE: dict[str, Callable[[], Any]] = {
    "names that a dot makes one": lambda: {"a.b": 1, "a": {"b": 2}},
    "names of tensors that a dot makes one": lambda: {"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}},
    "Enum": lambda: Colour.RED,
    "IntEnum": lambda: Level.LOW,
    "Flag": lambda: Flags.A | Flags.B,
    "namedtuple": lambda: Pair(1, 2.0),
    "dataclass": lambda: Record(0.25),
    "own dict": lambda: OwnDict(a=1),
    "own list": lambda: OwnList([1]),
    "own int": lambda: OwnInt(3),
    "own float": lambda: OwnFloat(0.5),
    "own str": lambda: OwnStr("x"),
    "exception": lambda: ValueError("no"),
    "re.Pattern": lambda: re.compile("a+"),
    "slice": lambda: slice(1, 2),
    "type": lambda: int,
    "Ellipsis": lambda: ...,
    "torch.layout": lambda: torch.strided,
    "torch.memory_format": lambda: torch.channels_last,
    "structured array": lambda: numpy.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "masked array": lambda: numpy.ma.masked_array([1, 2], mask=[True, False]),
}


def refused_things() -> list[Thing]:
    """All of this module."""
    held = ("lambda", "lock", "own object", "sparse tensor", "meta tensor")
    return [
        *(_never(name, make, Box) for name, make in NEVER.items()),
        *(_never(f"{name}, held", NEVER[name], HeldBox) for name in held),
        *(_never(f"{name}, in a list", NEVER[name], ListBox, key="box") for name in held),
        *(_never(name, make, Box, key="box") for name, make in ENDLESS.items()),
        *(value_thing(name, make, is_free=True) for name, make in FREE.items()),
        *(_entry(name, make) for name, make in _NO_ENTRIES.items()),
        Thing("object whose state_dict raises", _Broken, key="holder", is_savable=False, changes=_WHEN_SEEN_FIRST),
        Thing("object whose state_dict raises later", _Breakable, key="holder", changes=only(
            "said by an object that can be copied", cannot_be_copied=Change(_Breakable.change))),
    ]  # fmt: skip


_WHEN_SEEN_FIRST = only("refused at the start", nothing=Change(lambda part: None))


def _never(name: str, make: Callable[[], Any], part: Any, key: str = "") -> Thing:
    seen = (NOTHING, CHANGES_TYPE, GETS_KEYS)
    changes = {happening: change if happening in seen else SEEN_ALREADY for happening, change in BOX_CHANGES.items()}
    return Thing(name, lambda: part(make), key=key or f"{part.name}.value", is_savable=False, changes=changes)


# What no Checkpointer can restore into the variable that holds it.
_NO_ENTRIES: dict[str, Callable[[], Any]] = {
    "bare int": lambda: 3,
    "bare float": lambda: 0.5,
    "bare str": lambda: "x",
    "bare tuple": lambda: (1, 2),
    "bare None": lambda: None,
    "bare function": lambda: _numbers,
    "bare object": Plain,
}


class _Entry(Part):
    """Something that stands in the state by itself."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.entries = {"entry": make()}


def _entry(name: str, make: Callable[[], Any]) -> Thing:
    return Thing(name, lambda: _Entry(make), key="entry", is_savable=False, changes=_WHEN_SEEN_FIRST)


class _Raises:
    """A script's object whose state cannot be had."""

    def state_dict(self) -> Any:
        raise ValueError("out of order")

    def load_state_dict(self, state: Any) -> None:
        raise ValueError("out of order")


class _Broken(Part):
    def __init__(self) -> None:
        self.entries = {"holder": _Raises()}


class _Breakable(HeldBox):
    def __init__(self) -> None:
        super().__init__(lambda: 1)

    def change(self) -> None:
        self.holder.state_dict = _Raises().state_dict  # type: ignore[method-assign]

    def repair(self, memory: Any) -> None:
        """See `Part.repair`."""
        del self.holder.state_dict
