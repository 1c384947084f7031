"""Plain values: which can be saved, what is written of them so that torch's weights-only loader reads it, and the way back.

What that loader reads by itself is written as it is, so stock `dcp.load` gives it back as well. The rest (paths, times, NumPy
scalars, deques, ...) is written as a tree of tagged tuples. `freeze` copies, and refuses what could never be loaded again.
"""

from __future__ import annotations

import collections
import hashlib
from typing import Any

from everstep.state import tagged
from everstep.state.tagged import Unsavable, is_atom

_MARK = "everstep.value"  # the first of a tuple whose second is a tagged tree

REMEDY = (
    "only tensors, NumPy arrays, numbers, strings, bytes, paths, times and lists, tuples, dicts and sets of them can be saved; "
    "keep other things out of the state, or admit their class by torch.serialization.add_safe_globals"
)


def freeze(value: Any) -> Any:
    """What is written of `value`; shares nothing with it that can change. Raises Unsavable."""
    try:
        try:
            return _copied(value, {})
        except _NotNative:
            return (_MARK, tagged.tree(value))
    except RecursionError:
        raise Unsavable(f"a {type(value).__name__} that holds itself") from None


def thaw(stored: Any) -> Any:
    """The value of which `stored` was written."""
    return tagged.value_of(stored[1]) if _is_marked(stored) else stored


def digest(stored: Any) -> str:
    """Of what `freeze` gave: equal where values are equal in content and in every type, however sets and dicts order their items."""
    tree = stored[1] if _is_marked(stored) else tagged.tree(stored)
    return hashlib.blake2b(tagged.canonical(tree).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def shown(stored: Any) -> str:
    """What `freeze` gave, for a sentence: short."""
    text = repr(thaw(stored))
    return text if len(text) <= 40 else f"{text[:37]}..."


class _NotNative(Exception):
    """Needs the tagged tree."""


def _is_marked(stored: Any) -> bool:
    return type(stored) is tuple and len(stored) == 2 and type(stored[0]) is str and stored[0] == _MARK


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """A copy in the value's own types; lists that are one list stay one. Raises _NotNative."""
    if is_atom(value):
        return value
    kind = type(value)
    if id(value) in memo:
        return memo[id(value)]
    if kind is list:
        made = memo[id(value)] = []
        made.extend(_copied(item, memo) for item in value)
        return made
    if kind in (dict, collections.OrderedDict, collections.Counter):
        fresh = memo[id(value)] = kind()
        for key, item in value.items():
            fresh[_copied(key, memo)] = _copied(item, memo)
        return fresh
    if kind is set:
        return {_copied(item, memo) for item in value}
    if kind is tuple and not _is_marked(value):
        return tuple(_copied(item, memo) for item in value)
    raise _NotNative
