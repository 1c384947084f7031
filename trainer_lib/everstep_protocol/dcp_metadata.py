"""Reads which files a DCP directory needs out of its `.metadata`, and refuses one that `dcp.load` could not read.

What stock torch 2.6 and newer write is admitted (`dcp_names`, `dcp_values`), and nothing of it is run (`dcp_pickle`). The library asks
here too before it unpickles: there is one opinion of what can be read.
"""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path, PurePosixPath
from typing import Any

from everstep_protocol import dcp_names, dcp_pickle
from everstep_protocol.dcp_values import MAX_INTEGER, Dict, InvalidMetadata, Record, is_size

__all__ = ["InvalidMetadata", "is_plain_name", "parse_file_lengths", "read_file_lengths", "read_regular_file"]

MAX_BYTES = 32 * 1024 * 1024

_Index = tuple[str, Any]  # a key, and the offset of a tensor's chunk
_Place = tuple[str, int, int]  # file, offset, length


def read_file_lengths(path: Path) -> dict[str, int]:
    """For each file that this `.metadata` names: how many bytes it must have at least (the largest offset + length of its items).

    Raises InvalidMetadata: not a regular file, over MAX_BYTES, not a DCP metadata pickle. OSError: it cannot be read.
    """
    return parse_file_lengths(read_regular_file(path, limit_bytes=MAX_BYTES))


def read_regular_file(path: Path, *, limit_bytes: int) -> bytes:
    """The content of a regular file, no symbolic link followed. Raises InvalidMetadata for another kind of file or a longer one."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise InvalidMetadata(f"{path.name} is not a regular file")
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        if os.fstat(file.fileno()).st_size > limit_bytes:
            raise InvalidMetadata(f"{path.name} is larger than {limit_bytes} bytes")
        return file.read(limit_bytes)


def parse_file_lengths(raw: bytes) -> dict[str, int]:
    """As `read_file_lengths`, from the pickle's bytes."""
    metadata = dcp_pickle.load(raw)
    if not _is_record(metadata, "Metadata"):
        raise InvalidMetadata(".metadata does not hold a torch.distributed.checkpoint Metadata")
    places = {_index(index): _place(info) for index, info in _pairs(metadata, "storage_data")}
    if not places:
        raise InvalidMetadata(".metadata names no data")
    for key, item in _pairs(metadata, "state_dict_metadata"):
        if type(key) is not str:
            raise InvalidMetadata(".metadata has an item whose key is no text")
        _check_item(key, item, places)
    _check_paths(metadata.attribute("planner_data"))
    lengths: dict[str, int] = {}
    for name, offset, length in places.values():
        lengths[name] = max(offset + length, lengths.get(name, 0))
    return lengths


def _is_record(value: Any, name: str) -> bool:
    return isinstance(value, Record) and value.name == name


def _pairs(metadata: Record, attribute: str) -> list[tuple[Any, Any]]:
    value = metadata.attribute(attribute)
    if not isinstance(value, Dict):
        raise InvalidMetadata(f".metadata has no {attribute}")
    return value.items


def _index(index: Any) -> _Index:
    if not _is_record(index, "MetadataIndex"):
        raise InvalidMetadata(".metadata has a place that belongs to no item")
    return index.attribute("fqn"), index.attribute("offset")


def _place(info: Any) -> _Place:
    if not _is_record(info, "_StorageInfo"):
        raise InvalidMetadata(".metadata has an item without a place in a file")
    name, offset, length = (info.attribute(key) for key in ("relative_path", "offset", "length"))
    if type(name) is not str or not is_plain_name(name):
        raise InvalidMetadata(".metadata names a file outside its directory")
    if not all(type(number) is int and 0 <= number <= MAX_INTEGER for number in (offset, length)):
        raise InvalidMetadata(f".metadata has no sound offset and length for an item in {name}")
    if info.attribute("transform_descriptors") is not None:
        raise InvalidMetadata(
            f"{name} was written through a stream extension (compression): save it without `_extensions`"
        )
    return name, offset, length


def is_plain_name(name: str) -> bool:
    """Whether this is the name of a file in a directory: no folder, no `..`, nothing that a path could hide in."""
    if name != PurePosixPath(name).name or name in ("", ".", "..") or "\0" in name:
        return False
    try:
        return len(os.fsencode(name)) <= 255
    except UnicodeEncodeError:
        return False


def _check_item(key: str, item: Any, places: dict[_Index, _Place]) -> None:
    """Raises InvalidMetadata for an item that `dcp.load` would stumble over."""
    if _is_record(item, "BytesStorageMetadata"):
        if (key, None) not in places:
            raise InvalidMetadata(f".metadata has no place for {key}")
    elif _is_record(item, "TensorStorageMetadata"):
        _check_tensor(key, item, places)
    else:
        raise InvalidMetadata(f".metadata does not say whether {key} is a tensor")


def _check_tensor(key: str, tensor: Record, places: dict[_Index, _Place]) -> None:
    size, properties, chunks = (tensor.attribute(name) for name in ("size", "properties", "chunks"))
    dtype = properties.attribute("dtype") if _is_record(properties, "TensorProperties") else None
    if not is_size(size) or dtype is None or type(chunks) is not list:
        raise InvalidMetadata(f".metadata has no sound size, properties and chunks for {key}")
    num_elements = 0
    for chunk in chunks:
        offsets, sizes = _chunk(key, chunk, size)
        if (key, offsets) not in places:
            raise InvalidMetadata(f".metadata has no place for the chunk of {key} at {list(offsets)}")
        name, _, length = places[key, offsets]
        if length <= math.prod(sizes) * dcp_names.DTYPE_BYTES[dtype]:  # what `dcp.load` reads begins with a header
            raise InvalidMetadata(f"{name} holds {key} in another format than dcp.load reads (safetensors?)")
        num_elements += math.prod(sizes)
    if num_elements != math.prod(size):
        raise InvalidMetadata(f".metadata has {num_elements} elements of {key}, which has {math.prod(size)}")


def _chunk(key: str, chunk: Any, size: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(offsets, sizes) of a chunk that lies within its tensor."""
    if _is_record(chunk, "ChunkStorageMetadata"):
        offsets, sizes = chunk.attribute("offsets"), chunk.attribute("sizes")
        if is_size(offsets) and is_size(sizes) and _lies_within(offsets, sizes, size):
            return offsets, sizes
    raise InvalidMetadata(f".metadata has a chunk of {key} that does not lie within it")


def _lies_within(offsets: tuple[int, ...], sizes: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    ends = [offset + length for offset, length in zip(offsets, sizes, strict=False)]
    return len(offsets) == len(sizes) == len(whole) and all(
        end <= limit for end, limit in zip(ends, whole, strict=True)
    )


def _check_paths(paths: Any) -> None:
    """Raises InvalidMetadata where the keys' paths in the nested state are not as DCP's own planner writes them."""
    if paths is None:
        return
    known = isinstance(paths, Dict) and all(
        type(key) is str and type(path) is tuple and all(type(part) in (str, int) for part in path)
        for key, path in paths.items
    )
    if not known:
        raise InvalidMetadata(".metadata has planner_data of another planner than DCP's own")
