"""Frozen dataclasses to JSON and back: camelCase names, strict types, every problem reported at once with its path."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

JSON = Any  # what json.loads gives
Path = Any  # of a value in a document: None, or (path of what holds it, its key or index)
Decode = Callable[[JSON, Path, list[str]], Any]  # -> the value; what is wrong goes into the list

_SCALARS = frozenset({str, int, float, bool, type(None)})


class InvalidDocument(ValueError):
    """A document that is not what its type says; `problems` holds a line for each wrong field, with its path."""

    def __init__(self, what: str, problems: list[str]) -> None:
        super().__init__(f"{what}: " + "; ".join(problems))
        self.problems = problems


def to_json(value: Any) -> JSON:
    """The JSON form of a dataclass, list, dict or scalar."""
    kind: Any = type(value)
    if kind in _SCALARS:
        return value
    keys = _json_keys(kind)
    if keys is not None:
        return {key: to_json(getattr(value, name)) for key, name in keys}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    return value


@cache
def _json_keys(kind: type) -> tuple[tuple[str, str], ...] | None:
    """(key, name) of each field; None: no dataclass."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple((camel(field.name), field.name) for field in dataclasses.fields(kind))


def from_json(kind: type[T], document: JSON) -> T:
    """The dataclass of `kind` that `document` describes. Unknown keys are ignored: newer writers may add some.

    Raises InvalidDocument with all problems.
    """
    problems: list[str] = []
    value = _decoder(typing.cast(Any, kind))(document, None, problems)
    if problems:
        raise InvalidDocument(kind.__name__, problems)
    return typing.cast(T, value)


def loads(kind: type[T], text: str | bytes) -> T:
    """As `from_json`, from text. Raises InvalidDocument for text that is not JSON, too."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidDocument(kind.__name__, [f"not JSON: {error}"]) from error
    return from_json(kind, document)


def dumps(value: Any) -> str:
    """Canonical JSON text: sorted keys, no spaces, ASCII; equal values give equal text."""
    return json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(document: JSON) -> str:
    """SHA-256 (hex) of the canonical text of a JSON value."""
    return hashlib.sha256(dumps(document).encode()).hexdigest()


def sealed(value: T, id_field: str) -> T:
    """The dataclass with its id filled in: the digest of all its other fields."""
    return dataclasses.replace(value, **{id_field: _seal(value, id_field)})  # type: ignore[type-var]


def loads_sealed(kind: type[T], text: str | bytes, *, known_format: int, id_field: str) -> T:
    """As `loads`. Raises InvalidDocument for another format, too, and for an id that is not the digest of the rest."""
    value = loads(kind, text)
    document = to_json(value)
    if document["format"] != known_format:
        problem = f"format: {document['format']} is not known here (known: {known_format})"
        raise InvalidDocument(kind.__name__, [problem])
    if document[camel(id_field)] != _seal(value, id_field):
        raise InvalidDocument(kind.__name__, [f"{camel(id_field)}: is not the digest of the rest"])
    return value


def _seal(value: Any, id_field: str) -> str:
    document = to_json(value)
    del document[camel(id_field)]
    return digest(document)


@cache
def camel(name: str) -> str:
    """`job_uid` -> `jobUID`, `plan_id` -> `planID`, `committed_by` -> `committedBy`; digits stay: `xxh3_128`."""
    first, *rest = re.split(r"_(?=[a-z])", name)
    return first + "".join(part.upper() if part in ("uid", "id", "ip") else part.capitalize() for part in rest)


@cache
def _decoder(kind: Any) -> Decode:
    """How a type is read, found once: thousands of answers a minute are read in the operator."""
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass_decoder(typing.cast(type, kind))
    if origin in (typing.Union, types.UnionType):
        return _optional_decoder(kind)
    if origin is tuple:
        return _tuple_decoder(typing.get_args(kind))
    if origin is dict:
        return _dict_decoder(typing.get_args(kind)[1])
    if origin is typing.Literal:
        return _literal_decoder(typing.get_args(kind))
    if kind is Any:
        return lambda document, path, problems: document
    if kind is float:
        return _decode_float
    return _scalar_decoder(kind)


def _scalar_decoder(kind: Any) -> Decode:
    def decode(document: JSON, path: Path, problems: list[str]) -> Any:
        fits = isinstance(document, kind) and (kind is bool or not isinstance(document, bool))
        return document if fits else _wrong(document, kind.__name__, path, problems)

    return decode


def _literal_decoder(options: tuple[Any, ...]) -> Decode:
    def decode(document: JSON, path: Path, problems: list[str]) -> Any:
        fits = document in options and not isinstance(document, bool)
        return document if fits else _wrong(document, f"one of {options}", path, problems)

    return decode


def _decode_float(document: JSON, path: Path, problems: list[str]) -> Any:
    """Finite ones only: neither JSON nor any of our limits knows the others, which Python's reader lets through."""
    is_number = isinstance(document, (int, float)) and not isinstance(document, bool)
    fits = is_number and -sys.float_info.max <= document <= sys.float_info.max
    return float(document) if fits else _wrong(document, "finite number", path, problems)


def _dataclass_decoder(kind: type) -> Decode:
    hints = typing.get_type_hints(kind)
    fields = [
        (
            camel(field.name),
            field.name,
            _decoder(hints[field.name]),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
    ]

    def decode(document: JSON, path: Path, problems: list[str]) -> Any:
        if not isinstance(document, dict):
            return _wrong(document, "object", path, problems)
        before = len(problems)
        values: dict[str, Any] = {}
        for key, name, decode_field, is_required in fields:
            if key in document:
                values[name] = decode_field(document[key], (path, key), problems)
            elif is_required:
                problems.append(f"{_text_of((path, key))}: missing")
        return kind(**values) if len(problems) == before else None

    return decode


def _optional_decoder(kind: Any) -> Decode:
    options = [option for option in typing.get_args(kind) if option is not type(None)]
    if len(options) != 1:
        raise TypeError(f"{kind}: only X | None is supported")
    decode_value = _decoder(options[0])
    return lambda document, path, problems: None if document is None else decode_value(document, path, problems)


def _tuple_decoder(args: tuple[Any, ...]) -> Decode:
    is_any_length = args[-1] is Ellipsis
    decoders = [_decoder(arg) for arg in args if arg is not Ellipsis]

    def decode(document: JSON, path: Path, problems: list[str]) -> Any:
        if not isinstance(document, list):
            return _wrong(document, "list", path, problems)
        if not is_any_length and len(decoders) != len(document):
            return _wrong(document, f"list of {len(decoders)}", path, problems)
        each = decoders * len(document) if is_any_length else decoders
        return tuple(
            decode_item(item, (path, i), problems)
            for i, (decode_item, item) in enumerate(zip(each, document, strict=True))
        )

    return decode


def _dict_decoder(kind: Any) -> Decode:
    decode_value = _decoder(kind)

    def decode(document: JSON, path: Path, problems: list[str]) -> Any:
        if not isinstance(document, dict):
            return _wrong(document, "object", path, problems)
        return {key: decode_value(item, (path, key), problems) for key, item in document.items()}

    return decode


def _wrong(document: JSON, expected: str, path: Path, problems: list[str]) -> None:
    problems.append(f"{_text_of(path) or 'document'}: expected {expected}, got {document!r:.60}")


def _text_of(path: Path) -> str:
    """`members[3].ip`."""
    if path is None:
        return ""
    parent, key = path
    before = _text_of(parent)
    if isinstance(key, int):
        return f"{before}[{key}]"
    return f"{before}.{key}" if before else str(key)
