"""Canonical parameter names: those of the user's own modules, whatever DDP, compile or checkpoint wrappers are around them.

Found by walking the module tree and stepping through wrappers by their type, never by editing strings: a user's module may be
called `module` or `_orig_mod` too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everstep.errors import StateError

# Class name (of torch's own) -> the attribute that holds what it wraps.
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",  # torch.compile
    "CheckpointWrapper": "_checkpoint_wrapped_module",  # activation checkpointing
    "OffloadWrapper": "_checkpoint_wrapped_module",
}


def parameter_names(model: Any, *, what: str) -> dict[int, str]:
    """id(parameter) -> canonical name; a tied parameter has its first name. `what` names the model in errors."""
    names: dict[int, str] = {}
    for name, parameter in _walk(model, "", what):
        names.setdefault(id(parameter), name)
    return names


def _walk(module: Any, prefix: str, what: str) -> Iterator[tuple[str, Any]]:
    module = _unwrapped(module, what)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield prefix + name, parameter
    for name, child in module._modules.items():
        if child is not None:
            yield from _walk(child, f"{prefix}{name}.", what)


def _unwrapped(module: Any, what: str) -> Any:
    while (attribute := _wrapped_attribute(module, what)) is not None:
        module = getattr(module, attribute)
    return module


def _wrapped_attribute(module: Any, what: str) -> str | None:
    for kind in type(module).__mro__:
        if not kind.__module__.startswith("torch."):
            continue
        if kind.__name__ == "FullyShardedDataParallel":
            raise StateError(
                f"`{what}` is wrapped in FullyShardedDataParallel (FSDP1), whose state is not supported: "
                "use torch.distributed.fsdp.fully_shard"
            )
        if kind.__name__ in _WRAPPERS:
            return _WRAPPERS[kind.__name__]
    return None
