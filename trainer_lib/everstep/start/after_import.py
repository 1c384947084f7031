"""Calls a hook when a module has been imported, and never imports it."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # not from typing, which takes milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def install(hooks: Mapping[str, str]) -> None:
    """`hooks`: module -> `module:function`. Whatever goes wrong in a hook, the import has worked."""
    sys.meta_path.insert(0, _Finder(dict(hooks)))


class _Finder:
    """Finds nothing itself: lets others find, and has their loader call the hook when the module is whole."""

    def __init__(self, hooks: dict[str, str]) -> None:
        self._hooks = hooks

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """As the import system asks; None for all but the first import of a module that has a hook."""
        hook = self._hooks.pop(name, None)
        if hook is None:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        if spec is None:
            self._hooks[name] = hook
        elif hasattr(spec.loader, "exec_module"):
            _follow(spec.loader, hook)
        return spec


def _follow(loader: Any, hook: str) -> None:
    """The loader stays what it is: others ask it for source and resources."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        loader.exec_module = execute
        execute(module)
        _call(hook, module)

    try:
        loader.exec_module = exec_module
    except AttributeError:  # one of the interpreter's own, which cannot be changed
        return


def _call(hook: str, module: ModuleType) -> None:
    place, _, name = hook.partition(":")
    try:
        getattr(__import__(place, fromlist=[name]), name)(module)
    except Exception:
        if sys.flags.verbose:
            raise
