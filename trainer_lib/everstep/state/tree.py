"""Nested state as leaves under paths, named as stock DCP names them, but without its losses.

Stock turns every dict into string keys, and forgets ints, empty dicts and types like Counter. Here what holds no tensor is only
taken apart where putting it together again gives the same; and where a nest with tensors is anything but plain dicts with string
keys and lists, its shape is kept beside the leaves.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from typing import Any

from everstep.state import tagged, tensors, values
from everstep.state.tagged import Unsavable

Path = tuple[Any, ...]  # of str (dict keys) and int (places in a list)
Shape = Any  # None: a plain leaf, or plain dicts and lists; else nested lists of plain values

_DICTS = {"dict": dict, "OrderedDict": collections.OrderedDict, "Counter": collections.Counter}
_LISTS: dict[type, str] = {list: "list", tuple: "tuple", collections.deque: "deque"}


def key_of(path: Path) -> str:
    """The flat key of a path: `optimizer.param_groups.0.lr`."""
    return ".".join(map(str, path))


def flatten(value: Any, path: Path) -> tuple[list[tuple[Path, Any]], Shape]:
    """The leaves of a nested value, and its shape where that does not follow from their paths. Raises Unsavable, naming the key."""
    leaves: list[tuple[Path, Any]] = []
    try:
        shape, plain = _open(value, path, leaves)
    except RecursionError:
        raise Unsavable(f"{key_of(path)}: a {type(value).__name__} that holds itself") from None
    return leaves, None if plain else shape


def rebuild(leaves: Mapping[Path, Any], shape: Shape) -> Any:
    """The nested value whose leaves are at these paths."""
    return _closed_plain(leaves) if shape is None else _closed(leaves, shape, ())


def traits_of(shape: Shape, path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The traits of each tensor that has any, by path."""
    kind = shape[0] if isinstance(shape, list) else ""
    if kind == "tensor":
        yield path, shape[1]
    elif kind in _DICTS or kind.startswith("defaultdict"):
        for _, part, child in shape[1]:
            yield from traits_of(child, (*path, part))
    elif kind in ("list", "tuple", "deque"):
        for place, child in enumerate(shape[1]):
            yield from traits_of(child, (*path, place))


def assign(live: Any, loaded: Any) -> Any:
    """`loaded` in the dicts and lists that are in use, where they are of its kind: whoever holds them sees the new values."""
    if type(live) is not type(loaded):
        return loaded
    if isinstance(live, dict):
        merged = [(key, assign(live.get(key), value)) for key, value in loaded.items()]
        live.clear()
        for key, value in merged:
            live[key] = value
        return live
    if isinstance(live, list):
        pairs = zip(live + [None] * len(loaded), loaded, strict=False)
        live[:] = [assign(old, new) for old, new in pairs]
        return live
    return loaded


# ---------------------------------------------------------------------- taking apart


def _open(value: Any, path: Path, leaves: list[tuple[Path, Any]]) -> tuple[Shape, bool]:
    """(shape, whether it follows from the paths)."""
    if tensors.is_tensor(value):
        leaves.append((path, value))
        return _shape_of_tensor(value)
    if isinstance(value, Mapping) and _is_open_dict(value):
        return _open_dict(value, path, leaves)
    if isinstance(value, tuple(_LISTS)) and _is_open_list(value):
        return _open_list(value, path, leaves)
    leaves.append((path, value))
    return None, True


def _shape_of_tensor(value: Any) -> tuple[Shape, bool]:
    if tensors.is_array(value):
        return ["array"], False
    told = tensors.traits(value)
    return (["tensor", told], False) if told else (None, True)


def _open_dict(value: Any, path: Path, leaves: list[tuple[Path, Any]]) -> tuple[Shape, bool]:
    kind = _dict_kind(value, path)
    parts = _unique_parts(value)
    plain = kind == "dict" and all(type(key) is str and key == part for key, part in zip(value, parts, strict=True))
    children = []
    for (key, item), part in zip(value.items(), parts, strict=True):
        shape, is_plain = _open(item, (*path, part), leaves)
        plain = plain and is_plain
        children.append([_frozen_key(key, path), part, shape])
    return [kind, children], plain


def _open_list(value: Any, path: Path, leaves: list[tuple[Path, Any]]) -> tuple[Shape, bool]:
    kind = _LISTS.get(type(value))
    if kind is None:
        raise Unsavable(f"{key_of(path)}: a {type(value).__name__} that holds tensors: use a dict, list or tuple")
    children, plain = [], kind == "list"
    for place, item in enumerate(value):
        shape, is_plain = _open(item, (*path, place), leaves)
        plain = plain and is_plain
        children.append(shape)
    return [kind, children, *([value.maxlen] if kind == "deque" else [])], plain


def _dict_kind(value: Any, path: Path) -> str:
    if type(value) is collections.defaultdict:
        try:
            return f"defaultdict.{tagged.factory_name(value)}"
        except Unsavable as problem:
            raise Unsavable(f"{key_of(path)}: {problem}") from None
    if type(value) not in _DICTS.values():
        raise Unsavable(f"{key_of(path)}: a {type(value).__name__} that holds tensors: use a dict")
    return type(value).__name__


def _frozen_key(key: Any, path: Path) -> Any:
    try:
        return values.freeze(key)
    except Unsavable as problem:
        raise Unsavable(f"{key_of(path)}: a key that is {problem}") from None


def _unique_parts(value: Mapping[Any, Any]) -> list[str]:
    """One part of a path for each key: its text, told apart where two keys have one text (1 and "1")."""
    parts: list[str] = []
    taken = {key for key in value if type(key) is str}
    for key in value:
        part = str(key)
        if type(key) is not str:
            while part in taken:
                part += "~"
            taken.add(part)
        parts.append(part)
    return parts


def _is_open_dict(value: Mapping[Any, Any]) -> bool:
    if _holds_tensor(value):
        return True
    return type(value) is dict and len(value) > 0 and all(type(key) is str for key in value)


def _is_open_list(value: Any) -> bool:
    if type(value) is list and any(isinstance(item, (Mapping, list)) for item in value):
        return True
    return _holds_tensor(value)


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_tensor(item) for item in value.values())
    if isinstance(value, (list, tuple, collections.deque)):
        return any(_holds_tensor(item) for item in value)
    return tensors.is_tensor(value)


# ---------------------------------------------------------------------- putting together


def _closed_plain(leaves: Mapping[Path, Any]) -> Any:
    if list(leaves) == [()]:
        return leaves[()]
    groups: dict[Any, dict[Path, Any]] = {}
    for path, value in leaves.items():
        groups.setdefault(path[0], {})[path[1:]] = value
    parts = {key: _closed_plain(group) for key, group in groups.items()}
    if parts and all(isinstance(key, int) for key in parts):
        return [parts[place] for place in sorted(parts)]
    return parts


def _closed(leaves: Mapping[Path, Any], shape: Shape, path: Path) -> Any:
    kind = shape[0] if isinstance(shape, list) else ""
    if kind == "array":
        return leaves[path].numpy() if hasattr(leaves[path], "numpy") else leaves[path]
    if kind in ("list", "tuple", "deque"):
        items = [_closed(leaves, child, (*path, place)) for place, child in enumerate(shape[1])]
        return collections.deque(items, shape[2]) if kind == "deque" else {"list": list, "tuple": tuple}[kind](items)
    if kind in _DICTS or kind.startswith("defaultdict"):
        made = _DICTS[kind]() if kind in _DICTS else collections.defaultdict(tagged.factory_of(kind.partition(".")[2]))
        for key, part, child in shape[1]:
            made[values.thaw(key)] = _closed(leaves, child, (*path, part))
        return made
    return leaves[path]
