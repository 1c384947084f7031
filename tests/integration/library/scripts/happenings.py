"""What may happen to a value in a box: it grows, becomes another one, differs by rank, and more."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Any

import numpy
import torch
from boxes import Box, HeldValue, get, put
from deep import kept
from things import (
    CHANGES_DTYPE,
    CHANGES_TYPE,
    DIFFERS,
    GETS_KEYS,
    GROWS,
    LOSES_KEYS,
    NOTHING,
    REPLACED,
    TO_META,
    UNCOPYABLE,
    Change,
    Impossible,
    Thing,
    rank,
)

# ---------------------------------------------------------------------- values made from values


def varied(value: Any) -> Any:
    """A value of the same kind that is another one."""
    if isinstance(value, torch.Tensor):
        return _varied_tensor(value)
    if isinstance(value, (bool, numpy.bool_)):
        return type(value)(not value)
    if isinstance(value, (numpy.datetime64, numpy.timedelta64)):
        return value + 1
    if isinstance(value, (int, numpy.integer)):
        return type(value)(value + 1) if abs(int(value)) < 100 else type(value)(5)
    if isinstance(value, (float, complex, numpy.floating, numpy.complexfloating)):
        return type(value)(0.125) if value != 0.125 else type(value)(0.5)
    larger = grown(value)
    return larger if larger is not value else f"other than {type(value).__name__}"


def grown(value: Any) -> Any:
    """A value of the same kind with more in it; the value itself where that makes no sense."""
    if isinstance(value, torch.Tensor):
        return _grown_tensor(value)
    if isinstance(value, numpy.ndarray):
        return numpy.concatenate([value.reshape(-1), value.reshape(-1)]) if value.size else value
    if isinstance(value, numpy.generic):
        return value
    if isinstance(value, (str, bytes, bytearray)):
        return value + value[:0].join([value, value]) if value else type(value)(b"x" if value != "" else "x")
    if type(value) in (list, tuple):
        return value + type(value)(["more"])
    if isinstance(value, (set, frozenset)):
        return value | {"more"}
    if isinstance(value, collections.deque):
        return collections.deque([*value, "more"], value.maxlen)
    if isinstance(value, dict):
        return _grown_dict(value)
    return value


def _grown_dict(value: Any) -> Any:
    larger = value.copy()
    larger["more"] = 3
    return larger


def _raw(tensor: Any) -> torch.Tensor:
    raw: torch.Tensor = kept(tensor).reshape(-1).view(torch.uint8).clone()
    return raw


def _varied_tensor(tensor: Any) -> Any:
    if not tensor.numel():
        return torch.ones(1)
    raw = _raw(tensor)
    raw[0] ^= 1
    return raw.view(tensor.dtype).reshape(tensor.shape)


def _grown_tensor(tensor: Any) -> Any:
    if not tensor.numel():
        return torch.ones(1)
    raw = _raw(tensor)
    first, *rest = tensor.shape or (1,)
    return torch.cat([raw, raw]).view(tensor.dtype).reshape(2 * first, *rest)


# ---------------------------------------------------------------------- what may happen


def becoming(make: Callable[[Any], Any]) -> Change:
    """The value becomes another one, made from the part."""
    return Change(lambda part: put(part, make(part)))


def _grow(part: Any) -> None:
    before = get(part)
    put(part, grown(before))
    if get(part) is before:  # no container
        put(part, [before, part.make()])


def _start_with_none(part: Any) -> None:
    if not isinstance(part, HeldValue):
        part.box.clear()
    put(part, None)


def _lose(part: Any) -> None:
    del part.box[0 if type(part.box) is list else "value"]


def differ(part: Any) -> None:
    """Another value on all ranks but the first."""
    if rank() > 0:
        put(part, varied(get(part)))


def replace(part: Any) -> None:
    """An equal value in a new object."""
    put(part, part.make())


NO_DTYPE = Impossible("has no dtype")

BOX_CHANGES: dict[str, Change | Impossible] = {
    NOTHING: Change(lambda part: None),
    GROWS: Change(_grow),
    CHANGES_TYPE: Change(replace, prepare=_start_with_none),
    CHANGES_DTYPE: NO_DTYPE,
    GETS_KEYS: Change(replace, prepare=lambda part: part.box.clear()),
    LOSES_KEYS: Change(_lose),
    DIFFERS: Change(differ),
    REPLACED: Change(replace),
    UNCOPYABLE: becoming(lambda part: threading.Lock()),
    TO_META: becoming(lambda part: torch.empty(3, device="meta")),
}
NO_DICT = Impossible("is no dict")
# For kinds of values of which there are many: what depends on the value that is saved, not on the one before.
_BY_OTHERS = Impossible("said by other values in a dict")
LONG_CHANGES = BOX_CHANGES | dict.fromkeys((UNCOPYABLE, TO_META), _BY_OTHERS)
SHORT_CHANGES = LONG_CHANGES | dict.fromkeys((LOSES_KEYS, REPLACED), _BY_OTHERS)
VALUE_CHANGES = BOX_CHANGES | {GETS_KEYS: NO_DICT, LOSES_KEYS: NO_DICT}


def value_thing(name: str, make: Callable[[], Any], *, part: Any = Box, **more: Any) -> Thing:
    """A value in a dict."""
    changes = {**BOX_CHANGES, **more.pop("changes", {})}
    return Thing(name, lambda: part(make), key=f"{part.name}.value", changes=changes, **more)
