"""Plain containers of a script, alone or behind an object's `state_dict`, and what may happen to what lies in them."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch
from deep import kept
from things import (
    CHANGES_DTYPE,
    CHANGES_TYPE,
    DIFFERS,
    EMPTY,
    GETS_KEYS,
    GROWS,
    LOSES_KEYS,
    NOTHING,
    REPLACED,
    TO_META,
    UNCOPYABLE,
    Change,
    Impossible,
    Part,
    Thing,
    rank,
)


class Box(Part):
    """A dict with one value in the place "value"."""

    name = "box"

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.box: Any = {"value": make()}
        self.entries: Mapping[str, Any] = {self.name: self.box}

    def look(self) -> Any:
        """See `Part.look`."""
        return kept(self.box)

    def forget(self, start: str) -> None:
        """See `Part.forget`; the dict in use stays the same."""
        if start == EMPTY:
            self.box.clear()
        else:
            _blank(self.box)

    def places(self) -> dict[Any, Any]:
        """See `Part.places`."""
        return dict(_tensors_in(self.box, ()))

    def remember(self) -> Any:
        """See `Part.remember`."""
        return dict(self.box)

    def repair(self, memory: Any) -> None:
        """See `Part.repair`."""
        self.box.clear()
        self.box.update(memory)


class ListBox(Box):
    """The same in a list."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(make)
        self.box = [make(), {"deep": make()}]
        self.entries = {self.name: self.box}

    def remember(self) -> Any:
        """See `Part.remember`."""
        return list(self.box)

    def repair(self, memory: Any) -> None:
        """See `Part.repair`."""
        self.box[:] = memory


class Holder:
    """An object as scripts have them: it gives its state as it is, and takes whatever it gave."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


class HeldBox(Box):
    """The dict behind an object."""

    name = "holder"

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(make)
        self.holder = Holder(self.box)
        self.entries = {self.name: self.holder}

    def look(self) -> Any:
        """See `Part.look`."""
        return kept(self.holder.state)

    def places(self) -> dict[Any, Any]:
        """None: what becomes of its tensors is the object's own affair."""
        return {}


class HeldValue(HeldBox):
    """An object whose state is no dict but the bare value."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(make)
        self.holder.state = make()

    def forget(self, start: str) -> None:
        """See `Part.forget`."""
        self.holder.state = {} if start == EMPTY else self.make()

    def remember(self) -> Any:
        """See `Part.remember`."""
        return self.holder.state

    def repair(self, memory: Any) -> None:
        """See `Part.repair`."""
        self.holder.state = memory


def _tensors_in(value: Any, path: tuple[Any, ...]) -> Any:
    if isinstance(value, torch.Tensor):
        if not (value.is_inference() or is_overlapping(value)):
            yield path, value
    elif type(value) in (dict, list):
        for key, item in value.items() if type(value) is dict else enumerate(value):
            yield from _tensors_in(item, (*path, key))


def _blank(container: Any) -> None:
    """Zeros into every tensor, None for every other value."""
    for key, item in list(container.items() if type(container) is dict else enumerate(container)):
        if type(item) in (dict, list):
            _blank(item)
        else:
            container[key] = zeroed(item) if isinstance(item, torch.Tensor) else None


def zeroed(tensor: Any) -> Any:
    """The very tensor, full of zeros; where it cannot be written, another one of its kind."""
    if tensor.is_inference():
        with torch.inference_mode():
            return torch.zeros_like(tensor)
    if is_overlapping(tensor):
        return torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)
    with torch.no_grad():
        try:
            return tensor.zero_()
        except NotImplementedError:  # dtypes without arithmetic
            tensor.view(torch.uint8).zero_()
            return tensor


def is_overlapping(tensor: Any) -> bool:
    """Whether elements share their memory, as those of an expanded tensor do: then it cannot be filled."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


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


def put(part: Any, value: Any) -> None:
    """`value` where the box has its value."""
    if isinstance(part, HeldValue):
        part.holder.state = value
    elif type(part.box) is list:
        part.box[:1] = [value]
    else:
        part.box["value"] = value


def get(part: Any) -> Any:
    """What lies there."""
    if isinstance(part, HeldValue):
        return part.holder.state
    return part.box[0 if type(part.box) is list else "value"]


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
