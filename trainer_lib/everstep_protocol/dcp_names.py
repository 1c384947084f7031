"""What stock DCP names in a `.metadata`: the one table, for the reader that never unpickles and for the library that does.

It is all that torch 2.6 to 2.15 write in Python 3.10 to 3.14 (`tests/data/stock_checkpoints` holds a file of each).
"""

from __future__ import annotations

import enum


class Kind(enum.Enum):
    """What a name stands for, and so how a pickle uses it."""

    RECORD = "a class: made without arguments, then given its attributes"
    SIZE = "a function of one tuple of integers"
    LAYOUT = "a function of one name of LAYOUTS"
    MEMORY_FORMAT = "an enum: called with a value of MEMORY_FORMATS"
    MEMBER = "a function of the enum and a name of MEMORY_FORMATS"
    PATH = "a class called with any strings; which class and how many strings is the Python's own affair, and the path no use to us"
    DTYPE = "a thing that is never called"


METADATA_MODULE = "torch.distributed.checkpoint.metadata"
_FILESYSTEM_MODULE = "torch.distributed.checkpoint.filesystem"
_RECORDS = (
    "Metadata",
    "MetadataIndex",
    "TensorStorageMetadata",
    "ChunkStorageMetadata",
    "BytesStorageMetadata",
    "TensorProperties",
    "StorageMeta",
)
_PATH_MODULES = ("pathlib", "pathlib._local")  # the latter in Python 3.13
_PATH_CLASSES = ("Path", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath", "PureWindowsPath")
_GETATTR_MODULES = ("builtins", "__builtin__")  # the latter in pickle protocol 2

LAYOUTS = frozenset({"torch.strided"})
MEMORY_FORMATS = {"TORCH_CONTIGUOUS_FORMAT": 0, "TORCH_CHANNELS_LAST": 1, "TORCH_PRESERVE_FORMAT": 2}

# Bytes of an element -> names. 0: less than a byte, so that nothing can be said of a tensor's length.
_DTYPE_NAMES = {
    0: "quint4x2 quint2x4",
    1: """
        bool bit uint8 int8 qint8 quint8 bits8 bits1x8 bits2x4 bits4x2 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu
        float4_e2m1fn_x2 uint1 uint2 uint3 uint4 uint5 uint6 uint7 int1 int2 int3 int4 int5 int6 int7
    """,
    2: "float16 half bfloat16 int16 short uint16 bits16",
    4: "float32 float int32 int uint32 qint32 complex32 chalf bcomplex32",
    8: "float64 double int64 long uint64 complex64 cfloat",
    16: "complex128 cdouble",
}
DTYPE_BYTES = {name: num_bytes for num_bytes, names in _DTYPE_NAMES.items() for name in names.split()}

_KINDS = {
    **{(METADATA_MODULE, name): Kind.RECORD for name in _RECORDS},
    (_FILESYSTEM_MODULE, "_StorageInfo"): Kind.RECORD,
    ("torch", "Size"): Kind.SIZE,
    ("torch.serialization", "_get_layout"): Kind.LAYOUT,
    (METADATA_MODULE, "_MEM_FORMAT_ENCODING"): Kind.MEMORY_FORMAT,
    **{(module, "getattr"): Kind.MEMBER for module in _GETATTR_MODULES},  # how Python 3.11.0 to 3.11.3 pickle enums
    **{(module, name): Kind.PATH for module in _PATH_MODULES for name in _PATH_CLASSES},
    **{("torch", name): Kind.DTYPE for name in DTYPE_BYTES},
}


def kind_of(module: str, name: str) -> Kind | None:
    """What this name stands for; None: DCP does not write it."""
    return _KINDS.get((module, name))
