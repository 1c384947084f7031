"""Plain containers of a script, alone or behind an object's `state_dict`, with one value that happenings change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from deep import kept
from things import EMPTY, Part


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
