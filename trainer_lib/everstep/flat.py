"""Nested state as flat keys with paths, named as stock DCP names them, but without its losses.

Stock turns every dict into keys and so forgets int keys, empty dicts and types like Counter. Here a dict without tensors is only
taken apart where putting it together again gives the same; otherwise it is one opaque value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

Path = tuple[Any, ...]  # of str (dict keys) and int (list places)


def key_of(path: Path) -> str:
    """The flat key of a path: `optimizer.param_groups.0.lr`."""
    return ".".join(map(str, path))


def flatten(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """(path, leaf) of a nested value; a leaf is a tensor or a value that is stored whole."""
    if isinstance(value, Mapping) and _is_open(value):
        for key, item in value.items():
            yield from flatten(item, (*path, str(key)))
    elif isinstance(value, list) and any(isinstance(item, (Mapping, list)) or _holds_tensor(item) for item in value):
        for place, item in enumerate(value):
            yield from flatten(item, (*path, place))
    else:
        yield path, value


def unflatten(items: Mapping[Path, Any]) -> Any:
    """The nested value whose leaves are at these paths; a single empty path is the value itself."""
    if list(items) == [()]:
        return items[()]
    groups: dict[Any, dict[Path, Any]] = {}
    for path, value in items.items():
        groups.setdefault(path[0], {})[path[1:]] = value
    parts = {key: unflatten(group) for key, group in groups.items()}
    if parts and all(isinstance(key, int) for key in parts):
        return [parts[place] for place in sorted(parts)]
    return parts


def _is_open(value: Mapping[Any, Any]) -> bool:
    if _holds_tensor(value):
        return True
    return type(value) is dict and len(value) > 0 and all(isinstance(key, str) for key in value)


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_tensor(item) for item in value.values())
    if isinstance(value, list):
        return any(_holds_tensor(item) for item in value)
    return isinstance(value, torch.Tensor)
