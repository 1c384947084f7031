"""Tensors: which can be saved, copies that share nothing, fingerprints, and where a saved one is loaded to (B12, TR6)."""

from __future__ import annotations

import ctypes
import functools
import io
import pickle
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.planner_helpers import _create_chunk_list
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor import empty as empty_dtensor

from everstep.engine import SavedItem
from everstep.errors import LoadError

_KINDS = (torch.Tensor, torch.nn.Parameter, DTensor)
_ARRAY_KINDS = "biufc"  # kinds of NumPy dtypes that torch has, too

Traits = Mapping[str, Any]  # what a tensor is beside shape, dtype and contents, where it is not a plain one on the CPU


def is_tensor(value: Any) -> bool:
    """Whether a value is saved as a tensor: one of torch's, or a NumPy array of numbers."""
    return isinstance(value, torch.Tensor) or is_array(value)


def is_array(value: Any) -> bool:
    """Whether a value is a NumPy array that a tensor can hold exactly."""
    numpy = sys.modules.get("numpy")
    return (
        numpy is not None
        and type(value) is numpy.ndarray
        and value.dtype.kind in _ARRAY_KINDS
        and value.dtype.isnative
        and hasattr(torch, value.dtype.name.replace("bool_", "bool"))
    )


def problem_of(tensor: Any) -> str:
    """Why a tensor cannot be saved; empty if it can."""
    if type(tensor) not in _KINDS:
        return f"a {type(tensor).__name__}, which is no plain tensor, parameter or DTensor"
    if tensor.is_meta:
        return "a tensor without data (device `meta`)"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return f"a {'nested' if tensor.is_nested else str(tensor.layout).removeprefix('torch.')} tensor: only strided ones can be saved"
    if tensor.is_quantized:
        return "a quantized tensor: save its int_repr(), scale and zero point"
    if not _can_be_stored(tensor.dtype):
        return f"a tensor of {tensor.dtype}, which torch cannot store: view it as torch.uint8"
    if isinstance(tensor, DTensor) and any(placement.is_partial() for placement in tensor.placements):
        return "a DTensor with partial sums: redistribute it first"
    return ""


@functools.cache
def _can_be_stored(dtype: Any) -> bool:
    """Some dtypes (torch.uint4, bits) are little more than names; DCP asks for the limits of what is neither float nor bool."""
    try:
        if not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool):
            torch.iinfo(dtype)
        buffer = io.BytesIO()
        torch.save(torch.empty(1, dtype=dtype), buffer)
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
        torch.empty(1, dtype=dtype).copy_(torch.empty(1, dtype=dtype))
    except (RuntimeError, NotImplementedError, TypeError, AttributeError, KeyError, pickle.UnpicklingError):
        return False
    return True


def frozen(value: Any) -> Any:
    """A copy on the CPU that shares nothing with the original and is no view of anything."""
    tensor = torch.from_numpy(_without_negative_strides(value)) if is_array(value) else value
    return tensor.detach().resolve_conj().resolve_neg().to("cpu", copy=True)


def _without_negative_strides(array: Any) -> Any:
    return array.copy() if any(stride < 0 for stride in array.strides) or not array.flags.writeable else array


def live(value: Any) -> Any:
    """A value as a tensor that shares its memory where it can: for looking at."""
    return torch.from_numpy(_without_negative_strides(value)) if is_array(value) else value.detach()


def is_sharded(tensor: Any) -> bool:
    """Whether each rank holds a part of it."""
    return isinstance(tensor, DTensor) and not all(isinstance(placement, Replicate) for placement in tensor.placements)


def num_own_bytes(value: Any, world: int) -> int:
    """About what a rank writes of a value: its part of a sharded tensor, an equal share of one that all have."""
    if isinstance(value, DTensor):
        value, world = value.to_local(), 1
    return int(value.numel() * value.element_size()) // world if isinstance(value, torch.Tensor) else 0


def described(tensor: Any) -> str:
    """`torch.float32 [3, 2]`."""
    return f"{tensor.dtype} {list(tensor.shape)}"


def fingerprints(tensor: Any) -> dict[str, str]:
    """Of each part that other ranks may hold as well: where it lies -> its contents in short. Empty: this rank's part is its alone."""
    if not isinstance(tensor, DTensor):
        return {"": _fingerprint(tensor)}
    replicated = [isinstance(placement, Replicate) for placement in tensor.placements]
    if all(replicated):
        return {"": _fingerprint(tensor.to_local())}
    if not any(replicated):
        return {}
    chunks = _create_chunk_list(tensor)
    return {str(tuple(chunks[0].offsets)): _fingerprint(tensor.to_local())} if chunks else {}


def _fingerprint(tensor: Any) -> str:
    """CRC-32 of the bytes: no proof against malice, enough against chance, and it lets other threads run meanwhile."""
    data = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
    size = data.numel() * data.element_size()
    octets = (ctypes.c_char * size).from_address(data.data_ptr()) if size else b""
    return f"{zlib.crc32(octets):08x}"


# ---------------------------------------------------------------------- where to load


def traits(tensor: Any) -> Traits:
    """What must be known beside shape and dtype to make such a tensor anew; empty for a plain one on the CPU."""
    found: dict[str, Any] = {}
    if is_array(tensor):
        return found
    if tensor.device.type != "cpu":
        found["device"] = tensor.device.type
    if isinstance(tensor, DTensor):
        found["placements"] = [_placement(placement) for placement in tensor.placements]
    if isinstance(tensor, torch.nn.Parameter):
        found["parameter"] = True
    if tensor.requires_grad and tensor.is_leaf:
        found["requires_grad"] = True
    return found


def fits(tensor: Any, item: SavedItem) -> bool:
    """Whether a saved tensor can be loaded straight into this one."""
    if not is_tensor(tensor):
        return False
    if is_array(tensor):
        return bool(tensor.flags.writeable) and _matches(live(tensor), item) and not _overlaps(live(tensor))
    return _matches(tensor, item) and not tensor.is_inference() and not _overlaps(tensor)


def _matches(tensor: Any, item: SavedItem) -> bool:
    return not problem_of(tensor) and (tuple(tensor.shape), tensor.dtype) == (item.shape, item.dtype)


def _overlaps(tensor: Any) -> bool:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return any(stride == 0 and size > 1 for stride, size in zip(local.stride(), local.shape, strict=True))


def blank(item: SavedItem, told: Traits, like: Any, meshes: Sequence[Any]) -> Any:
    """A tensor to load a saved one into: on the device and sharded like `like`, else as `told`. Raises LoadError."""
    if isinstance(like, DTensor) and len(item.shape or ()) == like.ndim:
        return empty_dtensor(item.shape, dtype=item.dtype, device_mesh=like.device_mesh, placements=like.placements)
    placements = told.get("placements")
    if placements is not None and not isinstance(like, torch.Tensor) and (meshes or _has_peers()):
        mesh = _mesh(placements, told, meshes)
        made = [_placement_of(*text) for text in placements]
        return empty_dtensor(item.shape, dtype=item.dtype, device_mesh=mesh, placements=made)
    device = like.device if isinstance(like, torch.Tensor) and not like.is_meta else _device(told.get("device", "cpu"))
    return torch.empty(item.shape, dtype=item.dtype, device=device)


def finished(tensor: Any, told: Traits) -> Any:
    """A loaded tensor made what it was: a parameter, or one that requires a gradient."""
    if told.get("parameter"):
        return torch.nn.Parameter(tensor, requires_grad=bool(told.get("requires_grad")))
    return tensor.requires_grad_() if told.get("requires_grad") else tensor


def _has_peers() -> bool:
    return bool(dist.is_initialized() and dist.get_world_size() > 1)


def _device(kind: str) -> Any:
    if kind == "cuda" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _mesh(placements: list[Any], told: Traits, meshes: Sequence[Any]) -> Any:
    kind = told.get("device", "cpu")
    found = [mesh for mesh in meshes if mesh.ndim == len(placements)]
    best = [mesh for mesh in found if mesh.device_type == kind] or found
    if not best:
        raise LoadError(
            "it was sharded over a device mesh, and nothing in the state is sharded over such a mesh now: shard the model first, "
            "or make this tensor before Checkpointer.steps()"
        )
    return best[0]


def _placement(placement: Any) -> list[Any]:
    kind = type(placement).__name__
    if kind == "Shard":
        return ["Shard", placement.dim]
    if kind == "_StridedShard":
        return ["_StridedShard", placement.dim, placement.split_factor]
    return ["Replicate"]


def _placement_of(kind: str, *parts: int) -> Any:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    if kind == "Shard":
        return Shard(*parts)
    return _StridedShard(parts[0], split_factor=parts[1]) if kind == "_StridedShard" else Replicate()
