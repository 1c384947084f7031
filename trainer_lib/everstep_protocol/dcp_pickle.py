"""Runs a `.metadata`, which is a pickle, without ever unpickling it (FIELD_CASES B29).

A small stack machine of our own runs the few opcodes that picklers write, over the inert stand-ins of `dcp_values`: it imports, calls
and hashes nothing of the file's, its memo is a dict, and its memory is bounded.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

from everstep_protocol.dcp_names import Kind
from everstep_protocol.dcp_values import Dict, InvalidMetadata, Name, Record, dict_of, key_of, name_of, result_of

MAX_OBJECTS = 2_000_000  # a byte of pickle can make an object of 150
_MAX_PROTOCOL = 5


def load(raw: bytes) -> Any:
    """What the pickle describes: Record, Dict, Name, Opaque, list, tuple (a torch.Size too), str, bytes, int, float, bool or None.

    Raises InvalidMetadata.
    """
    return _Machine(raw).run()


_MARK = object()


class _Machine:
    """The stack machine. Every fault in its program is an InvalidMetadata."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._num_objects = 0

    def run(self) -> Any:
        """What the pickle describes."""
        try:
            for opcode, argument, position in pickletools.genops(self._raw):
                if opcode.name == "STOP":
                    return self._pop()
                self._step(opcode.name, argument, position or 0)
        except InvalidMetadata:
            raise
        except (ValueError, IndexError, KeyError, OverflowError, TypeError, AttributeError) as error:
            raise InvalidMetadata(f".metadata is cut off or damaged ({type(error).__name__})") from error
        raise InvalidMetadata(".metadata is cut off")

    def _step(self, name: str, argument: Any, position: int) -> None:
        if name in _PUSH_ARGUMENT:
            self._stack.append(argument)
        elif name in _PUSH:
            self._count_object()
            self._stack.append(_PUSH[name]())
        elif name in _DO:
            _DO[name](self, argument)
        elif name == "GLOBAL":
            self._global(argument, position)
        elif name == "FRAME":
            if position + 9 + argument > len(self._raw):
                raise IndexError("frame")
        elif name != "PROTO" or argument > _MAX_PROTOCOL:
            raise InvalidMetadata(f".metadata holds the pickle instruction {name}, which DCP does not write")

    def _count_object(self) -> None:
        self._num_objects += 1
        if self._num_objects > MAX_OBJECTS:
            raise InvalidMetadata(f".metadata describes more than {MAX_OBJECTS} objects")

    def _top(self) -> Any:
        if self._stack[-1] is _MARK:
            raise IndexError("mark")
        return self._stack[-1]

    def _pop(self) -> Any:
        self._top()
        return self._stack.pop()

    def _put(self, argument: int | None) -> None:
        index = len(self._memo) if argument is None else argument
        if index > len(self._memo):  # picklers count; an unpickler's memo is as large as the largest index
            raise IndexError("memo")
        self._memo[index] = self._top()

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
        self._stack.append(tuple([self._pop() for _ in range(count)][::-1]))

    def _append(self, _: Any) -> None:
        item = self._pop()
        _list(self._top()).append(item)

    def _appends(self, _: Any) -> None:
        items = self._pop_to_mark()
        _list(self._top()).extend(items)

    def _set_item(self, _: Any) -> None:
        value, key = self._pop(), self._pop()
        dict_of(self._top()).items.append((key_of(key), value))

    def _set_items(self, _: Any) -> None:
        flat = self._pop_to_mark()
        dict_of(self._top()).items.extend(zip(map(key_of, flat[::2]), flat[1::2], strict=True))

    def _global(self, argument: str, position: int) -> None:
        module, _, name = argument.partition(" ")
        if not self._raw.startswith(f"{module}\n{name}\n".encode(), position + 1):
            raise ValueError("escapes")  # which `pickletools` undoes and unpicklers do not
        self._stack.append(name_of(module, name))

    def _stack_global(self, _: Any) -> None:
        name, module = self._pop(), self._pop()
        self._stack.append(name_of(module, name))

    def _new(self, _: Any) -> None:
        arguments, maker = self._pop(), self._pop()
        if arguments != () or not isinstance(maker, Name) or maker.kind is not Kind.RECORD:
            raise TypeError("not a class")
        self._count_object()
        self._stack.append(Record(maker.name))

    def _reduce(self, _: Any) -> None:
        arguments, maker = self._pop(), self._pop()
        if not isinstance(maker, Name) or type(arguments) is not tuple:
            raise TypeError("not a function")
        self._count_object()
        self._stack.append(result_of(maker.kind, arguments))

    def _build(self, _: Any) -> None:
        state, target = self._pop(), self._top()
        if not isinstance(target, Record):
            raise TypeError("not an object")
        target.set_state(state)


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError("not a list")
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
    "EMPTY_DICT": Dict,
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
    "STACK_GLOBAL": _Machine._stack_global,
    "NEWOBJ": _Machine._new,
    "REDUCE": _Machine._reduce,
    "BUILD": _Machine._build,
}
