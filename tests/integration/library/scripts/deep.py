"""Deep equality: types, types and order of keys, dtypes and bits; what differs is told by its place."""

import collections
import copy
import datetime
import decimal
import io
import pickle
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch.distributed.tensor import DTensor


def kept(value: Any) -> Any:
    """A copy that nothing shares with the original; a sharded tensor in full, so that all ranks must ask for it together."""
    if isinstance(value, torch.Tensor):
        return _kept_tensor(value)
    if isinstance(value, dict):
        made = copy.copy(value)
        made.update({key: kept(item) for key, item in value.items()})
        return made
    if type(value) in (list, tuple):
        return type(value)(kept(item) for item in value)
    if isinstance(value, collections.deque):
        return collections.deque((kept(item) for item in value), value.maxlen)
    return copy.deepcopy(value)


def _kept_tensor(value: Any) -> torch.Tensor:
    with torch.no_grad():
        full = value.full_tensor() if isinstance(value, DTensor) else value
        made = torch.empty(full.shape, dtype=full.dtype)
        made.copy_(full.detach())
        return made


class _Pickler(pickle.Pickler):
    """Writes tensors and arrays of every dtype; their own ways fail for some."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is numpy.ndarray:
            return _array_of, (value.dtype, value.shape, value.tobytes())
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        return _tensor_of, (str(value.dtype).removeprefix("torch."), tuple(value.shape), bytes(_bits(value).tolist()))


def _tensor_of(dtype: str, shape: tuple[int, ...], data: bytes) -> torch.Tensor:
    made = torch.empty(shape, dtype=getattr(torch, dtype))
    if data:
        _bits(made).copy_(torch.tensor(list(data), dtype=torch.uint8))
    return made


def _array_of(dtype: Any, shape: tuple[int, ...], data: bytes) -> Any:
    return numpy.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def written(value: Any) -> bytes:
    """What `kept` gave, for another process."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def differences(expected: Any, found: Any, place: str = "") -> list[str]:
    """Where and how `found` is not `expected`; empty: equal in every respect."""
    return list(_differ(expected, found, place, _tensors_differ))


def rough_differences(expected: Any, found: Any, place: str = "") -> list[str]:
    """Like `differences`, but for floating-point numbers and tensors being close is enough."""
    return list(_differ(expected, found, place, _tensors_far_apart))


def _differ(expected: Any, found: Any, place: str, tensors: Callable[[Any, Any], str]) -> Iterator[str]:
    if isinstance(expected, torch.Tensor):
        problem = tensors(expected, found) if isinstance(found, torch.Tensor) else f"{_shown(found)}, not a tensor"
        if problem:
            yield f"{place}: {problem}"
    elif type(expected) is not type(found):
        yield f"{place}: {_shown(expected)} became {_shown(found)}"
    elif isinstance(expected, dict):
        yield from _dicts_differ(expected, found, place, tensors)
    elif isinstance(expected, (list, tuple, collections.deque)):
        yield from _sequences_differ(expected, found, place, tensors)
    elif tensors is _tensors_far_apart and isinstance(expected, float):
        if not numpy.isclose(expected, found, rtol=1e-4, atol=1e-6, equal_nan=True):
            yield f"{place}: {expected!r} became {found!r}"
    elif fingerprint(expected) != fingerprint(found):
        yield f"{place}: {_shown(expected)} became {_shown(found)}"


def _dicts_differ(expected: Any, found: Any, place: str, tensors: Callable[[Any, Any], str]) -> Iterator[str]:
    if [(type(key), fingerprint(key)) for key in expected] != [(type(key), fingerprint(key)) for key in found]:
        yield f"{place}: the keys {list(expected)} became {list(found)}"
        return
    if getattr(expected, "default_factory", None) is not getattr(found, "default_factory", None):
        yield f"{place}: default_factory {expected.default_factory} became {found.default_factory}"
    for key, item in expected.items():
        yield from _differ(item, found[key], f"{place}[{key!r}]", tensors)


def _sequences_differ(expected: Any, found: Any, place: str, tensors: Callable[[Any, Any], str]) -> Iterator[str]:
    if getattr(expected, "maxlen", None) != getattr(found, "maxlen", None):
        yield f"{place}: maxlen {expected.maxlen} became {found.maxlen}"
    if len(expected) != len(found):
        yield f"{place}: {len(expected)} items became {len(found)}"
        return
    for number, (left, right) in enumerate(zip(expected, found, strict=True)):
        yield from _differ(left, right, f"{place}[{number}]", tensors)


def _tensors_differ(expected: Any, found: Any) -> str:
    if problem := _frames_differ(expected, found):
        return problem
    return "" if torch.equal(_bits(expected), _bits(kept(found))) else f"{_shown(expected)} became {_shown(found)}"


def _tensors_far_apart(expected: Any, found: Any) -> str:
    if problem := _frames_differ(expected, found):
        return problem
    close = torch.allclose(expected.double(), kept(found).double(), rtol=1e-4, atol=1e-6, equal_nan=True)
    return "" if close else f"{_shown(expected)} became {_shown(found)}"


def _frames_differ(expected: Any, found: Any) -> str:
    frame, other = (expected.dtype, tuple(expected.shape)), (found.dtype, tuple(found.shape))
    return "" if frame == other else f"{frame} became {other}"


def _bits(tensor: Any) -> torch.Tensor:
    bits: torch.Tensor = tensor.contiguous().reshape(-1).view(torch.uint8)
    return bits


def fingerprint(value: Any) -> Any:
    """Something that is equal for two values of one type only where no difference between them can be seen."""
    if isinstance(value, complex) and not isinstance(value, numpy.generic):
        return struct.pack("dd", value.real, value.imag)
    if isinstance(value, float) and not isinstance(value, numpy.generic):
        return struct.pack("d", value)
    if isinstance(value, (numpy.generic, numpy.ndarray)):
        writeable = isinstance(value, numpy.generic) or value.flags.writeable
        return value.dtype.str, value.shape, value.tobytes(), writeable
    if isinstance(value, (set, frozenset)):
        return sorted(repr((type(item), fingerprint(item))) for item in value)
    if isinstance(value, tuple):
        return [(type(item), fingerprint(item)) for item in value]
    if isinstance(value, (datetime.datetime, datetime.time)):
        return repr(value)
    if isinstance(value, decimal.Decimal):
        return value.as_tuple()
    if isinstance(value, BaseException):
        return value.args
    return value


def _shown(value: Any) -> str:
    text = f"{type(value).__name__} {value!r}".replace("\n", " ")
    return text if len(text) <= 80 else f"{text[:77]}..."
