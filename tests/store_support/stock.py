"""Makes what stock `dcp.save` writes, without torch: classes of our own under its names are pickled."""

import contextlib
import enum
import pickle
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

METADATA_MODULE = "torch.distributed.checkpoint.metadata"
FILESYSTEM_MODULE = "torch.distributed.checkpoint.filesystem"


@dataclass(frozen=True)
class MetadataIndex:
    fqn: str
    offset: Any = None
    index: int | None = None


@dataclass
class ChunkStorageMetadata:
    offsets: Any
    sizes: Any


class _MEM_FORMAT_ENCODING(enum.Enum):  # noqa: N801 - torch's name
    TORCH_CONTIGUOUS_FORMAT = 0


@dataclass
class TensorProperties:
    dtype: Any

    def __getstate__(self) -> Any:
        return (self.dtype, _Layout(), False, _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT, False)

    def __setstate__(self, state: Any) -> None:
        self.dtype = state[0]


@dataclass
class TensorStorageMetadata:
    properties: Any
    size: Any
    chunks: list[Any]


@dataclass
class BytesStorageMetadata:
    pass


@dataclass
class StorageMeta:
    checkpoint_id: Any = None
    save_id: str | None = "5f2f"
    load_id: str | None = None
    modules: list[str] = field(default_factory=list)


@dataclass
class Metadata:
    state_dict_metadata: dict[str, Any]
    planner_data: Any = None
    storage_data: Any = None
    storage_meta: Any = None
    version: str | None = "1.0.0"


@dataclass
class _StorageInfo:
    relative_path: Any
    offset: Any
    length: Any
    transform_descriptors: Any = None

    def __getstate__(self) -> Any:
        return {key: value for key, value in self.__dict__.items() if value is not None}


class Size(tuple):  # type: ignore[type-arg]
    def __reduce__(self) -> Any:
        return (Size, (tuple(self),))


class PosixPath:
    def __reduce__(self) -> Any:
        return (PosixPath, PurePosixPath("/checkpoints/step_1").parts)

    def __init__(self, *parts: str) -> None:
        pass


class _DType:
    __module__ = "torch"

    def __reduce__(self) -> str:
        return "float32"


class _Layout:
    def __reduce__(self) -> Any:
        return (_get_layout, ("torch.strided",))


def _get_layout(name: str) -> Any:
    return name


FLOAT32 = _DType()
_HOMES = {
    METADATA_MODULE: [
        MetadataIndex,
        ChunkStorageMetadata,
        _MEM_FORMAT_ENCODING,
        TensorProperties,
        TensorStorageMetadata,
        BytesStorageMetadata,
        StorageMeta,
        Metadata,
    ],
    FILESYSTEM_MODULE: [_StorageInfo],
    "torch": [Size],
    "torch.serialization": [_get_layout],
    "pathlib._local": [PosixPath],
}


@contextlib.contextmanager
def _torch_names() -> Iterator[None]:
    """For as long as something is pickled, the names of torch lead to our classes."""
    names = [*_HOMES, "torch.distributed", "torch.distributed.checkpoint"]
    before = {name: sys.modules.get(name) for name in names}
    for name in names:
        sys.modules[name] = types.ModuleType(name)
    sys.modules["torch"].float32 = FLOAT32  # type: ignore[attr-defined]
    for name, things in _HOMES.items():
        for thing in things:
            thing.__module__ = name
            setattr(sys.modules[name], thing.__name__, thing)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def metadata_bytes(places: list[tuple[Any, Any, Any]], *, protocol: int = pickle.HIGHEST_PROTOCOL) -> bytes:
    """A `.metadata` whose items lie at these (file, offset, length); the last is no tensor, as in every stock file."""
    tensors = {f"model.l{i}.weight": _tensor() for i in range(len(places) - 1)}
    indices = [MetadataIndex(name, Size((0, 0)), 0) for name in tensors] + [MetadataIndex("step")]
    metadata = Metadata(
        state_dict_metadata={**tensors, "step": BytesStorageMetadata()},
        planner_data={name: tuple(name.split(".")) for name in (*tensors, "step")},
        storage_data={index: _StorageInfo(*place) for index, place in zip(indices, places, strict=True)},
        storage_meta=StorageMeta(PosixPath()),
    )
    return dumps(metadata, protocol=protocol)


def dumps(value: Any, *, protocol: int = pickle.HIGHEST_PROTOCOL) -> bytes:
    """Pickle a value under torch's names."""
    with _torch_names():
        return pickle.dumps(value, protocol=protocol)


def _tensor() -> TensorStorageMetadata:
    return TensorStorageMetadata(
        TensorProperties(FLOAT32), Size((1, 1)), [ChunkStorageMetadata(Size((0, 0)), Size((1, 1)))]
    )


def make_stock_checkpoint(directory: Path, *, world: int = 2, num_bytes: int = 1000) -> Path:
    """A directory as `dcp.save` of `world` ranks leaves it."""
    directory.mkdir(parents=True)
    places: list[tuple[Any, Any, Any]] = []
    for rank in range(world):
        name = f"__{rank}_0.distcp"
        (directory / name).write_bytes(bytes([rank]) * num_bytes)
        places += [(name, 0, num_bytes // 2), (name, num_bytes // 2, num_bytes - num_bytes // 2)]
    (directory / ".metadata").write_bytes(metadata_bytes(places))
    return directory
