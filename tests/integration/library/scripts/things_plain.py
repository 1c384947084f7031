"""Plain values of a script: numbers, texts, paths, times, containers with keys of every kind, NumPy."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import pathlib
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from boxes import HeldBox, HeldValue, ListBox
from happenings import BOX_CHANGES, LONG_CHANGES, SHORT_CHANGES, VALUE_CHANGES, becoming, value_thing
from things import CHANGES_DTYPE, Thing, only, rank
from torch.serialization import add_safe_globals


@dataclass
class Admitted:
    """A class that this script has admitted to torch's weights-only loader."""

    number: int = 3


add_safe_globals([Admitted])

NUMBERS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "bool": lambda: True,
    "int": lambda: 3,
    "negative int": lambda: -1,
    "int of 64 bits": lambda: 2**63,
    "int of 200 bits": lambda: -(2**200),
    "int of 9000 bits": lambda: 3**5700,
    "float": lambda: 0.1,
    "negative zero": lambda: -0.0,
    "inf": lambda: float("-inf"),
    "nan": lambda: float("nan"),
    "smallest float": lambda: 5e-324,
    "complex": lambda: complex(-0.0, float("nan")),
    "Decimal": lambda: decimal.Decimal("1.10"),
    "Decimal nan": lambda: decimal.Decimal("NaN"),
    "Fraction": lambda: fractions.Fraction(1, 3),
}
TEXTS: dict[str, Callable[[], Any]] = {
    "empty str": lambda: "",
    "str": lambda: "zürich\n\0 \U0001f40d",
    "lone surrogate": lambda: "\ud800",
    "bytes": lambda: b"\0\xff",
    "bytearray": lambda: bytearray(b"ab"),
    "Path": lambda: pathlib.Path("/data/x y"),
    "PurePosixPath": lambda: pathlib.PurePosixPath("a/b"),
    "PureWindowsPath": lambda: pathlib.PureWindowsPath("c:\\a\\b"),
    "UUID": lambda: uuid.UUID(int=5),
}
TIMES: dict[str, Callable[[], Any]] = {
    "date": lambda: datetime.date(2024, 2, 29),
    "time": lambda: datetime.time(1, 2, 3, 4),
    "datetime": lambda: datetime.datetime(2024, 2, 29, 1, 2, 3, 4),
    "aware datetime": lambda: datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc, fold=1),
    "timedelta": lambda: datetime.timedelta(-1, 2, 3),
    "timezone": lambda: datetime.timezone(datetime.timedelta(hours=5, minutes=30), "IST"),
}
NUMPY: dict[str, Callable[[], Any]] = {
    "np.float64": lambda: numpy.float64(0.1),
    "np.float32": lambda: numpy.float32(0.1),
    "np.float16": lambda: numpy.float16(0.1),
    "np.int64": lambda: numpy.int64(-3),
    "np.uint8": lambda: numpy.uint8(3),
    "np.bool_": lambda: numpy.bool_(True),
    "np.complex64": lambda: numpy.complex64(1 - 2j),
    "np.str_": lambda: numpy.str_("ab"),
    "np.bytes_": lambda: numpy.bytes_(b"ab"),
    "np.datetime64": lambda: numpy.datetime64("2024-02-29T01:02"),
    "np.timedelta64": lambda: numpy.timedelta64(3, "h"),
}
ARRAYS: dict[str, Callable[[], Any]] = {
    "array": lambda: numpy.arange(6, dtype=numpy.float32).reshape(2, 3),
    "0-d array": lambda: numpy.array(0.1),
    "empty array": lambda: numpy.empty((0, 3)),
    "array of bool": lambda: numpy.array([True, False]),
    "array of str": lambda: numpy.array(["a", "bcd"]),
    "array of bytes": lambda: numpy.array([b"a", b"bcd"]),
    "array of datetime64": lambda: numpy.array(["2024-02-29", "NaT"], dtype="datetime64[D]"),
    "array of big-endian int": lambda: numpy.array([1, 2], dtype=">i4"),
    "array in Fortran order": lambda: numpy.asfortranarray(numpy.arange(6).reshape(2, 3)),
    "view of an array": lambda: numpy.arange(10)[::3],
}
CONTAINERS: dict[str, Callable[[], Any]] = {
    "empty list": list,
    "empty tuple": lambda: (),
    "empty dict": dict,
    "empty set": set,
    "list": lambda: [1, 2.0, "x", None],
    "list of lists": lambda: [[], [1], [[2, (3,)]]],
    "tuple": lambda: (1, "x", (2, [3, {"a": ()}])),
    "tuple of random streams": lambda: random.Random(3).getstate(),
    "set": lambda: {1, "x", (2, 3)},
    "set in another order on each rank": lambda: set([0, 8, 16, 24][:: 1 if rank() == 0 else -1]),
    "frozenset": lambda: frozenset({1, frozenset({2})}),
    "range": lambda: range(1, 10, 3),
    "OrderedDict": lambda: collections.OrderedDict([("b", 1), ("a", [2])]),
    "empty OrderedDict": collections.OrderedDict,
    "Counter": lambda: collections.Counter("aab"),
    "Counter of ints": lambda: collections.Counter({3: 2, "3": 1}),
    "deque": lambda: collections.deque([1, "x"]),
    "deque with maxlen": lambda: collections.deque([1, 2], maxlen=3),
    "empty deque with maxlen": lambda: collections.deque(maxlen=2),
    "defaultdict of int": lambda: collections.defaultdict(int, a=1),
    "defaultdict of list": lambda: collections.defaultdict(list, {1: [2]}),
    "defaultdict of float": lambda: collections.defaultdict(float, {None: 0.5}),
    "defaultdict of dict": lambda: collections.defaultdict(dict, a={"b": 1}),
    "defaultdict of set": lambda: collections.defaultdict(set, a={1}),
    "defaultdict of str": lambda: collections.defaultdict(str, a="b"),
    "defaultdict of None": lambda: collections.defaultdict(None, a=1),
    "nested 60 deep": lambda: _nested(60),
    "torch.Size": lambda: torch.Size([2, 3]),
    "torch.dtype": lambda: torch.bfloat16,
    "torch.device": lambda: torch.device("cpu"),
    "admitted dataclass": lambda: Admitted(5),
    "list of admitted": lambda: [Admitted(5), {"a": Admitted(6)}],
}
KEYS: dict[str, Callable[[], Any]] = {
    "dict of ints": lambda: {2: "two", 1: "one", -1: {0: {}}},
    "dict of floats": lambda: {0.5: 1, float("inf"): 2},
    "dict of bools and None": lambda: {True: 1, None: 2, False: {None: 3}},
    "dict of tuples": lambda: {(1, "a"): 1, (): 2},
    "dict of bytes": lambda: {b"a": 1, "a": 2},
    "dict of 1 and '1'": lambda: {1: "int", "1": "str"},
    "dict of names with dots": lambda: {"a.b": 1, "a": {"c": 2}, "": 3, ".": 4},
    "dict of dicts": lambda: {"a": {"b": {}, "c": {"d": [1, {"e": 2}]}}, "z": 1, "y": 2},
}


def _nested(depth: int) -> Any:
    value: Any = 1
    for number in range(depth):
        value = [value] if number % 2 else {"a": value}
    return value


def _become(name: str, first: Callable[[], Any], later: Callable[[], Any]) -> Thing:
    """A value that is of another type when it is saved."""
    change = becoming(lambda part: later())
    return value_thing(name, first, changes=only("said by the types it has", changes_type=change))


BECOMING = [
    _become("float that becomes np.float64", lambda: 0.5, lambda: numpy.float64(0.25)),
    _become("int that becomes a tensor", lambda: 3, lambda: torch.tensor(4)),
    _become("tensor that becomes a float", lambda: torch.ones(3), lambda: 0.5),
    _become("list that becomes a dict", lambda: [1, [2]], lambda: {"a": [1]}),
    _become("dict that becomes a list", lambda: {"a": [1]}, lambda: [1, {"a": 2}]),
    _become("dict of values that gets tensors", lambda: {1: 2}, lambda: {1: torch.ones(2), "1": 3}),
]


def _array_changes() -> dict[str, Any]:
    return LONG_CHANGES | {
        CHANGES_DTYPE: becoming(lambda part: numpy.ones(part.box["value"].shape, dtype=numpy.float16))
    }


def plain_things() -> list[Thing]:
    """All of this module."""
    every = NUMBERS | TEXTS | TIMES | NUMPY | CONTAINERS | KEYS
    full = {name: every[name] for name in ("None", "float", "str", "np.float64", "list", "dict of dicts")}
    long = {name: make for name, make in (CONTAINERS | KEYS).items() if name not in full}
    short = {name: make for name, make in every.items() if name not in full | long}
    held = {name: CONTAINERS[name] for name in ("empty dict", "list", "tuple", "Counter", "empty OrderedDict")} | KEYS
    bare = {name: (NUMBERS | CONTAINERS)[name] for name in ("None", "int", "list", "tuple", "Counter", "empty dict")}
    return [
        *(value_thing(name, make) for name, make in full.items()),
        *(value_thing(name, make, changes=LONG_CHANGES) for name, make in long.items()),
        *(value_thing(name, make, changes=SHORT_CHANGES) for name, make in short.items()),
        *(value_thing(name, make, changes=_array_changes()) for name, make in ARRAYS.items()),
        *(value_thing(f"{name}, held", make, part=HeldBox, changes=SHORT_CHANGES) for name, make in held.items()),
        *(_bare(name, make) for name, make in bare.items()),
        *(_in_a_list(name, make) for name, make in KEYS.items()),
        value_thing("float, held", lambda: 0.1, part=HeldBox),
        Thing("float, in a list", lambda: ListBox(lambda: 0.1), key="box", changes=BOX_CHANGES),
        *BECOMING,
    ]


def _bare(name: str, make: Callable[[], Any]) -> Thing:
    return Thing(f"{name}, an object's whole state", lambda: HeldValue(make), key="holder", changes=VALUE_CHANGES)


def _in_a_list(name: str, make: Callable[[], Any]) -> Thing:
    return Thing(f"{name}, in a list", lambda: ListBox(make), key="box", changes=SHORT_CHANGES)
