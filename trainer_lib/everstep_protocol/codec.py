"""Frozen dataclasses to JSON and back: camelCase names, strict types, every problem reported at once with its path."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

JSON = Any  # what json.loads gives


class InvalidDocument(ValueError):
    """A document that is not what its type says; `problems` holds a line for each wrong field, with its path."""

    def __init__(self, what: str, problems: list[str]) -> None:
        super().__init__(f"{what}: " + "; ".join(problems))
        self.problems = problems


def to_json(value: Any) -> JSON:
    """The JSON form of a dataclass, list, dict or scalar."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {camel(f.name): to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    return value


def from_json(kind: type[T], document: JSON) -> T:
    """The dataclass of `kind` that `document` describes. Unknown keys are ignored: newer writers may add some.

    Raises InvalidDocument with all problems.
    """
    problems: list[str] = []
    value = _decode(kind, document, "", problems)
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
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode(kind: Any, document: JSON, path: str, problems: list[str]) -> Any:
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(typing.cast(type, kind), document, path, problems)
    if origin in (typing.Union, types.UnionType):
        return _decode_optional(kind, document, path, problems)
    if origin is tuple:
        return _decode_tuple(kind, document, path, problems)
    if origin is dict:
        return _decode_dict(kind, document, path, problems)
    if origin is typing.Literal:
        options = typing.get_args(kind)
        return _expect(
            document in options and not isinstance(document, bool), document, f"one of {options}", path, problems
        )
    if kind is Any:
        return document
    if kind is float:
        return _decode_float(document, path, problems)
    fits = isinstance(document, kind) and (kind is bool or not isinstance(document, bool))
    return _expect(fits, document, kind.__name__, path, problems)


def _decode_float(document: JSON, path: str, problems: list[str]) -> Any:
    """Finite ones only: neither JSON nor any of our limits knows the others, which Python's reader lets through."""
    is_number = isinstance(document, (int, float)) and not isinstance(document, bool)
    fits = is_number and -sys.float_info.max <= document <= sys.float_info.max
    return float(document) if fits else _expect(False, document, "finite number", path, problems)


def _decode_dataclass(kind: type, document: JSON, path: str, problems: list[str]) -> Any:
    if not isinstance(document, dict):
        return _expect(False, document, "object", path, problems)
    before = len(problems)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        key = camel(field.name)
        where = f"{path}.{key}" if path else key
        if key in document:
            values[field.name] = _decode(_hints(kind)[field.name], document[key], where, problems)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            problems.append(f"{where}: missing")
    return kind(**values) if len(problems) == before else None


def _decode_optional(kind: Any, document: JSON, path: str, problems: list[str]) -> Any:
    options = [option for option in typing.get_args(kind) if option is not type(None)]
    if document is None:
        return None
    if len(options) != 1:
        raise TypeError(f"{kind}: only X | None is supported")
    return _decode(options[0], document, path, problems)


def _decode_tuple(kind: Any, document: JSON, path: str, problems: list[str]) -> Any:
    if not isinstance(document, list):
        return _expect(False, document, "list", path, problems)
    args = typing.get_args(kind)
    if args[-1] is Ellipsis:
        args = (args[0],) * len(document)
    elif len(args) != len(document):
        return _expect(False, document, f"list of {len(args)}", path, problems)
    return tuple(
        _decode(arg, item, f"{path}[{i}]", problems) for i, (arg, item) in enumerate(zip(args, document, strict=True))
    )


def _decode_dict(kind: Any, document: JSON, path: str, problems: list[str]) -> Any:
    if not isinstance(document, dict):
        return _expect(False, document, "object", path, problems)
    value_kind = typing.get_args(kind)[1]
    return {key: _decode(value_kind, item, f"{path}.{key}", problems) for key, item in document.items()}


def _expect(fits: bool, document: JSON, expected: str, path: str, problems: list[str]) -> Any:
    if not fits:
        problems.append(f"{path or 'document'}: expected {expected}, got {document!r:.60}")
        return None
    return document
