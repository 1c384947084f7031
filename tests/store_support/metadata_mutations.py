"""Makes `.metadata` pickles that differ a little from good ones, for both of their readers: what one accepts the other must read."""

import pickletools
import struct
from collections.abc import Iterator

METADATA_MODULE = "torch.distributed.checkpoint.metadata"


def named(module: str, name: str) -> bytes:
    """Code that pushes a class, function or dtype."""
    return f"c{module}\n{name}\n".encode()


def text(value: str) -> bytes:
    """Code that pushes a string."""
    raw = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def called(function: bytes, *arguments: bytes) -> bytes:
    """Code that pushes what a call gives."""
    return function + b"(" + b"".join(arguments) + b"tR"


def built(record: bytes, **attributes: bytes) -> bytes:
    """Code that pushes an object with attributes."""
    return record + b")\x81}(" + b"".join(text(key) + value for key, value in attributes.items()) + b"ub"


ONE, SEVEN, MINUS_ONE = b"K\x01", b"K\x07", b"J\xff\xff\xff\xff"
SIZE = named("torch", "Size")
LAYOUT = named("torch.serialization", "_get_layout")
FORMAT = named(METADATA_MODULE, "_MEM_FORMAT_ENCODING")
RECORD = named(METADATA_MODULE, "StorageMeta")
INDEX = named(METADATA_MODULE, "MetadataIndex")
PROPERTIES = named(METADATA_MODULE, "TensorProperties")
GETATTR = named("builtins", "getattr")
DTYPE = named("torch", "float32")
CONTIGUOUS = text("TORCH_CONTIGUOUS_FORMAT")
STRIDED, AS_IT_IS, FALSE = called(LAYOUT, text("torch.strided")), called(FORMAT, b"K\x02"), b"\x89"
FIVE = DTYPE + STRIDED + FALSE + AS_IT_IS + FALSE


def with_properties(*parts: bytes) -> bytes:
    """Code that pushes a TensorProperties of this state."""
    return PROPERTIES + b")\x81(" + b"".join(parts) + b"tb"


_PATH_NAMES = ("Path", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath", "PureWindowsPath")
_PATH_PARTS = ((), ("",), ("/data/ckpt",), ("/", "data", "ckpt"), ("C:\\", "ckpt"))

# Code that leaves something behind that nobody looks at: good, because DCP and pickle write the like.
HARMLESS = {
    **{
        f"{module}.{name}{parts}": called(named(module, name), *map(text, parts))
        for module in ("pathlib", "pathlib._local")
        for name in _PATH_NAMES
        for parts in _PATH_PARTS
    },
    "size": called(SIZE, b"(K\x01K\x02t"),
    "size of a scalar": called(SIZE, b")"),
    "member by value": called(FORMAT, b"K\x02"),
    "member by name": called(GETATTR, FORMAT, CONTIGUOUS),
    "member by name, protocol 2": called(named("__builtin__", "getattr"), FORMAT, CONTIGUOUS),
    "attributes": built(RECORD, anything=b"]", modules=b"]"),
    "properties": with_properties(FIVE),
    "properties and strides": with_properties(FIVE, b"K\x01\x85"),
    "properties, strides and what comes next": with_properties(FIVE, b"N", ONE),
    "dict with text and numbers": b"}(" + text("a") + ONE + ONE + b"Nu",
    "dict with an index": b"}" + built(INDEX, fqn=text("a")) + b"Ns",
}

# The same, but for one thing.
HARMFUL = {
    "path of a number": called(named("pathlib", "PosixPath"), ONE),
    "path made like an object": named("pathlib", "PosixPath") + b")\x81",
    "path with attributes": called(named("pathlib", "PosixPath")) + b"}b",
    "another class of pathlib": called(named("pathlib", "_NormalAccessor")),
    "size without numbers": called(SIZE, text("ab")),
    "size of text": called(SIZE, text("a") + b"\x85"),
    "size of two": called(SIZE, b")", b")"),
    "size below zero": called(SIZE, MINUS_ONE + b"\x85"),
    "size made like an object": SIZE + b")\x81",
    "sparse layout": called(LAYOUT, text("torch.sparse_coo")),
    "unknown layout": called(LAYOUT, text("torch.nowhere")),
    "layout of a number": called(LAYOUT, ONE),
    "unknown member": called(FORMAT, SEVEN),
    "member by unknown name": called(GETATTR, FORMAT, text("__class__")),
    "getattr of a function": called(GETATTR, LAYOUT, text("cache")),
    "getattr of a class": called(GETATTR, RECORD, text("__init__")),
    "getattr alone": called(GETATTR),
    "dtype called": called(DTYPE),
    "dtype that there is not": named("torch", "float99"),
    "record called": called(RECORD),
    "record with arguments": RECORD + b"K\x01\x85\x81",
    "attributes twice": built(RECORD, a=ONE) + b"}b",
    "attributes that are no text": RECORD + b")\x81}" + ONE + b"Nsb",
    "attributes that are a list": RECORD + b")\x81]b",
    "getattr of another class": called(GETATTR, RECORD, CONTIGUOUS),
    "four properties": with_properties(DTYPE, STRIDED, FALSE, AS_IT_IS),
    "properties as a dict": PROPERTIES + b")\x81}b",
    "properties as a list": PROPERTIES + b")\x81](" + FIVE + b"eb",
    "properties with a class for a dtype": with_properties(SIZE, STRIDED, FALSE, AS_IT_IS, FALSE),
    "properties with text for a dtype": with_properties(text("x"), STRIDED, FALSE, AS_IT_IS, FALSE),
    "properties without a layout": with_properties(DTYPE, b"N", FALSE, AS_IT_IS, FALSE),
    "properties with a layout twice": with_properties(DTYPE, STRIDED, FALSE, STRIDED, FALSE),
    "properties with a number for a truth": with_properties(DTYPE, STRIDED, ONE, AS_IT_IS, ONE),
    "dict with a list as key": b"}]Ns",
    "dict with a tuple as key": b"})Ns",
    "dict with an index without a key": b"}" + INDEX + b")\x81Ns",
    "dict with an index at a list": b"}" + built(INDEX, fqn=text("a"), offset=b"]") + b"Ns",
    "mark in a tuple": b"(\x85",
    "mark remembered": b"(q\x00",
    "memo out of order": b"Nr\xff\xff\xff\x7f",
    "escaped name": b"ctorch\nSiz\\x65\n",
    "later protocol": b"\x80\x06",
    "frame beyond the end": b"\x95" + struct.pack("<Q", 2**40),
    "popped": b"N0",
    "function of os": called(named("os", "getcwd")),
}


def before(raw: bytes, code: bytes) -> bytes:
    """The pickle with code in front that leaves its result on the stack, under the pickle's own."""
    assert raw[:1] == b"\x80"
    return raw[:2] + code + raw[2:]


def mutations(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """(what was done, the pickle): each instruction left out, doubled, and exchanged for each of a few others."""
    pieces = list(_pieces(raw))
    texts = {piece for name, piece in pieces if name.endswith("BINUNICODE")} | {text("../a"), b"N", ONE}
    for place, (name, piece) in enumerate(pieces):
        ahead, behind = (b"".join(part for _, part in some) for some in (pieces[:place], pieces[place + 1 :]))
        yield f"{place} {name} left out", ahead + behind
        yield f"{place} {name} twice", ahead + piece + piece + behind
        others = texts if name.endswith("BINUNICODE") else () if name == "MEMOIZE" else _OTHERS
        yield from (
            (f"{place} {name} is {other!r}", ahead + other + behind) for other in sorted(others) if other != piece
        )


_OTHERS = (b"N", b"K\x00", b"\x88", b"]", b"}", b")", b"\x85", b"\x81", b"R", b"b", b"a", b"s", DTYPE, SIZE, text("a"))


def _pieces(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of each instruction; without frames, whose lengths no longer hold."""
    found = [(opcode.name, position or 0) for opcode, _, position in pickletools.genops(raw)]
    ends = [position for _, position in found[1:]] + [len(raw)]
    return ((name, raw[start:end]) for (name, start), end in zip(found, ends, strict=True) if name != "FRAME")
