"""Values that torch's weights-only loader does not read, as trees of tagged tuples that it reads, and back.

One line a kind, in `_CODECS`: what is written of a value behind its tag, and how the value is made of that.
"""

from __future__ import annotations

import collections
import copy
import datetime
import decimal
import fractions
import importlib
import io
import pathlib
import sys
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any

import torch

_LARGEST_INT_BITS = 2000  # weights-only pickles hold integers of up to 255 bytes
_ATOMS = (type(None), bool, float, str, bytes, torch.dtype, torch.device, torch.Size)
_FACTORIES: dict[str, Any] = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, set, tuple)}
_SIMPLE_NUMPY = "biufcSUmM"  # kinds of dtype that are described by their name and their bytes


class Unsavable(Exception):
    """A value that could not be loaded again; the text says what it is."""


def is_atom(value: Any) -> bool:
    """Whether torch's weights-only loader reads it as it is: not b"", which is pickled as a call, nor very long integers."""
    kind = type(value)
    if kind is int:
        return bool(value.bit_length() <= _LARGEST_INT_BITS)
    return kind in _ATOMS and value != b""


def tree(value: Any) -> Any:
    """Raises Unsavable, RecursionError."""
    if is_atom(value):
        return value
    kind = type(value)
    if kind in _TAGS:
        tag = _TAGS[kind]
        return (tag, *_CODECS[tag][0](value))
    return _tree_of_numpy(value) or _tree_of_path(value) or _tree_of_admitted(value)


def value_of(told: Any) -> Any:
    """The value of a tree."""
    if type(told) is not tuple:
        return told
    return _CODECS[told[0]][1](*told[1:])


def _tree_of_numpy(value: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None or not (isinstance(value, numpy.generic) or type(value) is numpy.ndarray):
        return None
    if value.dtype.kind not in _SIMPLE_NUMPY:
        raise Unsavable(f"a NumPy array of {value.dtype}")
    kind = "numpy-array" if type(value) is numpy.ndarray else "numpy-scalar"
    return (kind, value.dtype.str, list(value.shape), _text(value.tobytes()))


def _numpy_array(dtype: str, shape: list[int], text: str) -> Any:
    numpy = importlib.import_module("numpy")
    return numpy.frombuffer(_octets(text), dtype=numpy.dtype(dtype)).reshape(shape).copy()


def _text(octets: bytes) -> str:
    return octets.decode("latin-1")


def _octets(text: str) -> bytes:
    return text.encode("latin-1")


def _tree_of_path(value: Any) -> Any:
    return ("path", type(value).__name__, str(value)) if type(value) in _PATHS.values() else None


def _tree_of_admitted(value: Any) -> Any:
    """A class that the script has admitted to the weights-only loader is pickled; anything else is refused."""
    if not torch.serialization.get_safe_globals():
        raise Unsavable(f"a {_kind_name(value)}")
    buffer = io.BytesIO()
    try:
        torch.save(copy.deepcopy(value), buffer)
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    except Exception as error:
        raise Unsavable(f"a {_kind_name(value)}") from error
    return ("admitted", _text(buffer.getvalue()))


def _kind_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _items(value: Any) -> tuple[list[Any]]:
    return ([tree(item) for item in value],)


def _pairs(value: Any) -> tuple[list[Any]]:
    return ([[tree(key), tree(item)] for key, item in value.items()],)


def _values(trees: list[Any]) -> list[Any]:
    return [value_of(each) for each in trees]


def _filled(made: Any, pairs: list[Any]) -> Any:
    for key, item in pairs:
        made[value_of(key)] = value_of(item)
    return made


def _default_dict(value: collections.defaultdict[Any, Any]) -> tuple[str, list[Any]]:
    return (factory_name(value), *_pairs(value))


def factory_name(value: collections.defaultdict[Any, Any]) -> str:
    """The name of a defaultdict's factory, empty for none. Raises Unsavable where it is no plain type."""
    factory = value.default_factory
    if factory is None:
        return ""
    name = getattr(factory, "__name__", "")
    if _FACTORIES.get(name) is not factory:
        raise Unsavable(f"a defaultdict whose factory is {factory!r}, not one of {', '.join(_FACTORIES)}")
    return name


def factory_of(name: str) -> Any:
    """See `factory_name`."""
    return _FACTORIES[name] if name else None


def _zone(value: zoneinfo.ZoneInfo) -> tuple[str]:
    if not value.key:
        raise Unsavable("a ZoneInfo without a key")
    return (value.key,)


def _zone_parts(value: datetime.timezone) -> tuple[Any, ...]:
    """Nothing for UTC, which is one object; else offset, and a name where it was given one."""
    if value is datetime.timezone.utc:
        return ()
    offset, name = value.utcoffset(None), value.tzname(None)
    return (tree(offset),) if name == datetime.timezone(offset).tzname(None) else (tree(offset), name)


def _time_parts(value: Any) -> tuple[str, int, Any]:
    naive = value.replace(tzinfo=None, fold=0)
    return (naive.isoformat(), value.fold, tree(value.tzinfo))


def _time_of(kind: Any) -> Callable[..., Any]:
    return lambda text, fold, zone: kind.fromisoformat(text).replace(fold=fold, tzinfo=value_of(zone))


_Codec = tuple[Callable[[Any], tuple[Any, ...]], Callable[..., Any]]
_CODECS: dict[str, _Codec] = {
    "int": (lambda value: (hex(value),), lambda text: int(text, 16)),
    "complex": (lambda value: (value.real, value.imag), complex),
    "bytes": (lambda value: (_text(value),), _octets),
    "bytearray": (lambda value: (_text(value),), lambda text: bytearray(_octets(text))),
    "range": (lambda value: (value.start, value.stop, value.step), range),
    "slice": (lambda value: _items((value.start, value.stop, value.step)), lambda parts: slice(*_values(parts))),
    "list": (_items, _values),
    "tuple": (_items, lambda trees: tuple(_values(trees))),
    "set": (_items, lambda trees: set(_values(trees))),
    "frozenset": (_items, lambda trees: frozenset(_values(trees))),
    "deque": (
        lambda value: (value.maxlen, *_items(value)),
        lambda maxlen, trees: collections.deque(_values(trees), maxlen),
    ),
    "dict": (_pairs, lambda pairs: _filled({}, pairs)),
    "OrderedDict": (_pairs, lambda pairs: _filled(collections.OrderedDict(), pairs)),
    "Counter": (_pairs, lambda pairs: _filled(collections.Counter(), pairs)),
    "defaultdict": (
        _default_dict,
        lambda name, pairs: _filled(collections.defaultdict(factory_of(name)), pairs),
    ),
    "date": (lambda value: (value.isoformat(),), datetime.date.fromisoformat),
    "datetime": (_time_parts, _time_of(datetime.datetime)),
    "time": (_time_parts, _time_of(datetime.time)),
    "timedelta": (lambda value: (value.days, value.seconds, value.microseconds), datetime.timedelta),
    "timezone": (
        _zone_parts,
        lambda *parts: datetime.timezone(*_values(list(parts))) if parts else datetime.timezone.utc,
    ),
    "zone": (_zone, zoneinfo.ZoneInfo),
    "decimal": (lambda value: (str(value),), decimal.Decimal),
    "fraction": (lambda value: _items((value.numerator, value.denominator)), lambda p: fractions.Fraction(*_values(p))),
    "uuid": (lambda value: (value.hex,), uuid.UUID),
    "path": (lambda value: (type(value).__name__, str(value)), lambda kind, text: _PATHS[kind](text)),
    "numpy-array": (lambda value: (), _numpy_array),
    "numpy-scalar": (lambda value: (), lambda *parts: _numpy_array(*parts)[()]),
    "admitted": (lambda value: (), lambda text: torch.load(io.BytesIO(_octets(text)), weights_only=True)),
}
_PATHS: dict[str, Any] = {
    kind.__name__: kind for kind in (pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path()))
}
_TAGS: dict[type, str] = {
    int: "int",
    complex: "complex",
    bytes: "bytes",
    bytearray: "bytearray",
    range: "range",
    slice: "slice",
    list: "list",
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    collections.deque: "deque",
    dict: "dict",
    collections.OrderedDict: "OrderedDict",
    collections.Counter: "Counter",
    collections.defaultdict: "defaultdict",
    datetime.date: "date",
    datetime.datetime: "datetime",
    datetime.time: "time",
    datetime.timedelta: "timedelta",
    datetime.timezone: "timezone",
    zoneinfo.ZoneInfo: "zone",
    decimal.Decimal: "decimal",
    fractions.Fraction: "fraction",
    uuid.UUID: "uuid",
}
_UNORDERED = ("set", "frozenset", "dict", "Counter", "defaultdict")  # an OrderedDict's order is part of it


def canonical(told: Any) -> str:
    """One text for equal trees, however sets and dicts order their items."""
    if type(told) is tuple and told and isinstance(told[0], str) and told[0] in _CODECS:
        parts = [canonical(part) for part in told[1:-1]]
        last = told[-1]
        if isinstance(last, list):
            items = [canonical(item) for item in last]
            parts.append(str(sorted(items) if told[0] in _UNORDERED else items))
        else:
            parts.append(canonical(last))
        return f"{told[0]}({', '.join(parts)})"
    if type(told) is list:
        return str([canonical(item) for item in told])
    return f"{type(told).__name__}:{told!r}"
