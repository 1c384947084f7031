"""Reads which files a DCP directory needs out of its `.metadata`, a pickle, without ever unpickling it (FIELD_CASES B29).

A small stack machine of our own runs the few opcodes that picklers write, over inert stand-ins: it imports, calls and hashes
nothing, its memo is a dict, and its memory is bounded. Classes are admitted by name; the list is all that
stock torch 2.6 to 2.14 writes (Python 3.13 pickles paths under `pathlib._local`).
"""

from __future__ import annotations

import os
import pickletools
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

MAX_BYTES = 32 * 1024 * 1024
MAX_OBJECTS = 2_000_000  # a byte of pickle can make an object of 150
MAX_OFFSET = 2**63 - 1

_METADATA_MODULE = "torch.distributed.checkpoint.metadata"
_FILESYSTEM_MODULE = "torch.distributed.checkpoint.filesystem"
_ADMITTED = frozenset(
    {
        (_METADATA_MODULE, "Metadata"),
        (_METADATA_MODULE, "MetadataIndex"),
        (_METADATA_MODULE, "TensorStorageMetadata"),
        (_METADATA_MODULE, "ChunkStorageMetadata"),
        (_METADATA_MODULE, "BytesStorageMetadata"),
        (_METADATA_MODULE, "TensorProperties"),
        (_METADATA_MODULE, "StorageMeta"),
        (_METADATA_MODULE, "_MEM_FORMAT_ENCODING"),
        (_FILESYSTEM_MODULE, "_StorageInfo"),
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),
    }
)
_DTYPE_NAMES = """
float16 float32 float64 half float double bfloat16 complex32 complex64 complex128 chalf cfloat cdouble
uint8 uint16 uint32 uint64 int8 int16 int32 int64 short int long bool qint8 quint8 qint32 quint4x2 quint2x4
uint1 uint2 uint3 uint4 uint5 uint6 uint7 int1 int2 int3 int4 int5 int6 int7 bits1x8 bits2x4 bits4x2 bits8 bits16
float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2
"""
_DTYPES = frozenset(_DTYPE_NAMES.split())


class InvalidMetadata(ValueError):
    """A `.metadata` that is not what stock DCP writes, or that names something it must not; the text is a sentence for people."""


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
    top = _Machine().run(raw)
    if not (isinstance(top, _Object) and top.name == "Metadata"):
        raise InvalidMetadata(".metadata does not hold a torch.distributed.checkpoint Metadata")
    storage = top.attribute("storage_data")
    if not isinstance(storage, _Dict) or not storage.items:
        raise InvalidMetadata(".metadata names no data")
    lengths: dict[str, int] = {}
    for _, info in storage.items:
        name, end = _place(info)
        lengths[name] = max(end, lengths.get(name, 0))
    return lengths


def _place(info: Any) -> tuple[str, int]:
    """(file, end in bytes) of one `_StorageInfo`."""
    if not (isinstance(info, _Object) and info.name == "_StorageInfo"):
        raise InvalidMetadata(".metadata has an item without a place in a file")
    name, offset, length = (info.attribute(key) for key in ("relative_path", "offset", "length"))
    if type(name) is not str or not is_plain_name(name):
        raise InvalidMetadata(".metadata names a file outside its directory")
    if not all(type(number) is int and 0 <= number <= MAX_OFFSET for number in (offset, length)):
        raise InvalidMetadata(f".metadata has no sound offset and length for an item in {name}")
    return name, offset + length


def is_plain_name(name: str) -> bool:
    """Whether this is the name of a file in a directory: no folder, no `..`, nothing that a path could hide in."""
    return name == PurePosixPath(name).name and name not in ("", ".", "..") and "\0" not in name and len(name) <= 255


class _Class:
    """A class or function that was named; nothing behind it."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class _Object:
    """What a class would have made."""

    __slots__ = ("name", "state")

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: Any = None

    def attribute(self, key: str) -> Any:
        """Its value, None where there is none."""
        if not isinstance(self.state, _Dict):
            return None
        return next((value for name, value in self.state.items if type(name) is str and name == key), None)


class _Dict:
    """A dict as pairs: hashing a key that a stranger built may take for ever."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: list[tuple[Any, Any]] = []


_MARK = object()


class _Machine:
    """The stack machine. Every fault in its program is an InvalidMetadata."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._num_objects = 0

    def run(self, raw: bytes) -> Any:
        """What the pickle describes."""
        try:
            for opcode, argument, _ in pickletools.genops(raw):
                if opcode.name == "STOP":
                    return self._stack.pop()
                self._step(opcode.name, argument)
        except InvalidMetadata:
            raise
        except (ValueError, IndexError, KeyError, OverflowError, TypeError, AttributeError) as error:
            raise InvalidMetadata(f".metadata is cut off or damaged ({type(error).__name__})") from error
        raise InvalidMetadata(".metadata is cut off")

    def _step(self, name: str, argument: Any) -> None:
        if name in _PUSH_ARGUMENT:
            self._stack.append(argument)
        elif name in _PUSH:
            self._count_object()
            self._stack.append(_PUSH[name]())
        elif name in _DO:
            _DO[name](self, argument)
        elif name not in ("PROTO", "FRAME"):
            raise InvalidMetadata(f".metadata holds the pickle instruction {name}, which DCP does not write")

    def _count_object(self) -> None:
        self._num_objects += 1
        if self._num_objects > MAX_OBJECTS:
            raise InvalidMetadata(f".metadata describes more than {MAX_OBJECTS} objects")

    def _put(self, argument: int | None) -> None:
        self._memo[len(self._memo) if argument is None else argument] = self._stack[-1]

    def _get(self, argument: int) -> None:
        self._stack.append(self._memo[argument])

    def _pop_to_mark(self) -> list[Any]:
        start = next((i for i in range(len(self._stack) - 1, -1, -1) if self._stack[i] is _MARK), None)
        if start is None:
            raise IndexError("no mark")
        items = self._stack[start + 1 :]
        del self._stack[start:]
        return items

    def _tuple(self, _: Any) -> None:
        self._stack.append(tuple(self._pop_to_mark()))

    def _tuple_of(self, count: int) -> None:
        items = tuple(self._stack[-count:])
        if len(items) != count:
            raise IndexError(count)
        self._stack[-count:] = [items]

    def _append(self, _: Any) -> None:
        item = self._stack.pop()
        _list(self._stack[-1]).append(item)

    def _appends(self, _: Any) -> None:
        items = self._pop_to_mark()
        _list(self._stack[-1]).extend(items)

    def _set_item(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        _dict(self._stack[-1]).items.append((key, value))

    def _set_items(self, _: Any) -> None:
        flat = self._pop_to_mark()
        _dict(self._stack[-1]).items.extend(zip(flat[::2], flat[1::2], strict=True))

    def _global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._stack.append(_admitted(module, name))

    def _stack_global(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._stack.append(_admitted(module, name))

    def _make(self, _: Any) -> None:
        arguments, maker = self._stack.pop(), self._stack.pop()
        if not isinstance(maker, _Class) or not isinstance(arguments, tuple):
            raise TypeError("not a class")
        self._count_object()
        self._stack.append(_Object(maker.name))

    def _build(self, _: Any) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        if not isinstance(target, _Object):
            raise TypeError("not an object")
        target.state = state


def _admitted(module: Any, name: Any) -> _Class:
    if type(module) is not str or type(name) is not str:
        raise InvalidMetadata(".metadata names a class by something that is no text")
    if (module, name) in _ADMITTED or (module == "torch" and name in _DTYPES):
        return _Class(name)
    raise InvalidMetadata(f".metadata names {module[:80]!r} {name[:80]!r}, which DCP does not write; it was not loaded")


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError("not a list")
    return value


def _dict(value: Any) -> _Dict:
    if not isinstance(value, _Dict):
        raise TypeError("not a dict")
    return value


_ARGUMENT_NAMES = """
BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES
"""
_PUSH_ARGUMENT = frozenset(_ARGUMENT_NAMES.split())
_PUSH: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": _Dict,
    "MARK": lambda: _MARK,
}
_DO: dict[str, Callable[[_Machine, Any], None]] = {
    "BINPUT": _Machine._put,
    "LONG_BINPUT": _Machine._put,
    "MEMOIZE": _Machine._put,
    "BINGET": _Machine._get,
    "LONG_BINGET": _Machine._get,
    "TUPLE": _Machine._tuple,
    "TUPLE1": lambda machine, _: machine._tuple_of(1),
    "TUPLE2": lambda machine, _: machine._tuple_of(2),
    "TUPLE3": lambda machine, _: machine._tuple_of(3),
    "APPEND": _Machine._append,
    "APPENDS": _Machine._appends,
    "SETITEM": _Machine._set_item,
    "SETITEMS": _Machine._set_items,
    "GLOBAL": _Machine._global,
    "STACK_GLOBAL": _Machine._stack_global,
    "NEWOBJ": _Machine._make,
    "REDUCE": _Machine._make,
    "BUILD": _Machine._build,
}
