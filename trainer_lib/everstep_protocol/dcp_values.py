"""What a `.metadata` is read into: inert stand-ins, and for each name of `dcp_names` the one use of it that DCP makes.

Whatever passes here, the library can then unpickle with torch's own classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everstep_protocol import dcp_names
from everstep_protocol.dcp_names import Kind

MAX_INTEGER = 2**63 - 1


class InvalidMetadata(ValueError):
    """A `.metadata` that is not what stock DCP writes, or that names something it must not; the text is a sentence for people."""


class Name:
    """A class, function or dtype that was named; nothing behind it."""

    __slots__ = ("kind", "name")

    def __init__(self, name: str, kind: Kind) -> None:
        self.name = name
        self.kind = kind


class Opaque:
    """What a function made that nobody needs: a path, a layout, a memory format."""

    __slots__ = ("kind",)

    def __init__(self, kind: Kind) -> None:
        self.kind = kind


class Record:
    """What a class would have made; `attributes` is None until it is given them."""

    __slots__ = ("attributes", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.attributes: dict[str, Any] | None = None

    def set_state(self, state: Any) -> None:
        """Give it its attributes, once: it may be a key already."""
        if self.attributes is not None:
            raise TypeError("not a new object")
        self.attributes = _tensor_properties(state) if self.name == "TensorProperties" else _attributes(state)

    def attribute(self, key: str) -> Any:
        """Its value, None where there is none."""
        return (self.attributes or {}).get(key)


class Dict:
    """A dict as pairs: hashing a key that a stranger built may take for ever."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: list[tuple[Any, Any]] = []


def is_size(value: Any) -> bool:
    """Whether this is a torch.Size or a tuple like one."""
    return type(value) is tuple and all(type(number) is int and 0 <= number <= MAX_INTEGER for number in value)


def name_of(module: Any, name: Any) -> Name:
    """What a pickle names, if the table has it."""
    if type(module) is not str or type(name) is not str:
        raise InvalidMetadata(".metadata names a class by something that is no text")
    kind = dcp_names.kind_of(module, name)
    if kind is None:
        raise InvalidMetadata(
            f".metadata names {f'{module[:80]}.{name[:80]}'!r}, which DCP does not write; it was not loaded"
        )
    return Name(name, kind)


def result_of(kind: Kind, arguments: tuple[Any, ...]) -> Any:
    """What a call gives, where it is the call that DCP writes."""
    if kind not in _CALLS or not _CALLS[kind](*arguments):
        raise InvalidMetadata(f".metadata calls {kind.name} with what DCP does not write")
    return arguments[0] if kind is Kind.SIZE else Opaque(Kind.MEMORY_FORMAT if kind is Kind.MEMBER else kind)


def _is_member(owner: Any, name: Any) -> bool:
    is_enum = isinstance(owner, Name) and owner.kind is Kind.MEMORY_FORMAT
    return is_enum and type(name) is str and name in dcp_names.MEMORY_FORMATS


_CALLS: dict[Kind, Callable[..., bool]] = {
    Kind.SIZE: is_size,
    Kind.LAYOUT: lambda name: type(name) is str and name in dcp_names.LAYOUTS,
    Kind.MEMORY_FORMAT: lambda value: type(value) is int and value in dcp_names.MEMORY_FORMATS.values(),
    Kind.MEMBER: _is_member,
    Kind.PATH: lambda *parts: all(type(part) is str for part in parts),
}


def key_of(key: Any) -> Any:
    """A dict's key, if it is one that unpicklers can hash without running long."""
    if type(key) in (str, int):
        return key
    if isinstance(key, Record) and key.name == "MetadataIndex":
        offset = key.attribute("offset")
        if type(key.attribute("fqn")) is str and (offset is None or is_size(offset)):
            return key
    raise InvalidMetadata(".metadata has a dict with keys that DCP does not write")


def _attributes(state: Any) -> dict[str, Any]:
    pairs = dict_of(state).items
    if not all(type(key) is str for key, _ in pairs):
        raise TypeError("not attributes")
    return dict(pairs)


def _tensor_properties(state: Any) -> dict[str, Any]:
    """The attributes of a TensorProperties, whose state is a tuple; torch 2.15 adds strides to it, later ones may add more."""
    if type(state) is not tuple:
        raise TypeError("not a tensor's properties")
    dtype, layout, requires_grad, memory_format, pin_memory, *_ = state
    fits = (
        isinstance(dtype, Name)
        and dtype.kind is Kind.DTYPE
        and _is_made(layout, Kind.LAYOUT)
        and _is_made(memory_format, Kind.MEMORY_FORMAT)
        and type(requires_grad) is type(pin_memory) is bool
    )
    if not fits:
        raise TypeError("not a tensor's properties")
    return {"dtype": dtype.name}


def _is_made(value: Any, kind: Kind) -> bool:
    return isinstance(value, Opaque) and value.kind is kind


def dict_of(value: Any) -> Dict:
    """The value, which must be a dict."""
    if not isinstance(value, Dict):
        raise TypeError("not a dict")
    return value
