"""Canonical names: those of the user's own modules, whatever DDP, compile or checkpoint wrappers are around them.

Found by walking the module tree and stepping through wrappers by their type, never by editing strings: a user's module may be
called `module` or `_orig_mod` too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from everstep.errors import StateError

# Class name (of torch's own) -> the attribute that holds what it wraps.
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",  # torch.compile
    "CheckpointWrapper": "_checkpoint_wrapped_module",  # activation checkpointing
    "OffloadWrapper": "_checkpoint_wrapped_module",
}

# What keeps replicas around a member: DDP that broadcasts rank 0's buffers, a wrapper that leaves each rank its own, or nothing.
Wrapper = Literal["", "broadcast", "local"]


@dataclass(frozen=True)
class Member:
    """Something in a model under its canonical name. `owner`: the user's module in which it is (of a module: itself)."""

    name: str
    kind: Literal["parameter", "buffer", "extra state", "module"]
    value: Any
    owner: Any
    wrapper: Wrapper

    @property
    def is_persistent(self) -> bool:
        """Whether a buffer is part of the module's state."""
        return self.name.rpartition(".")[2] not in self.owner._non_persistent_buffers_set


def parameter_names(model: Any, *, what: str) -> dict[int, str]:
    """id(parameter) -> canonical name; a tied parameter has its first name. `what` names the model in errors."""
    names: dict[int, str] = {}
    for member in members(model, what=what):
        if member.kind == "parameter":
            names.setdefault(id(member.value), member.name)
    return names


def members(model: Any, *, what: str) -> Iterator[Member]:
    """All parameters, buffers, extra states and modules, each tied one under each of its names. Raises StateError for FSDP1."""
    return _walk(model, "", what, "")


def _walk(module: Any, prefix: str, what: str, wrapper: Wrapper) -> Iterator[Member]:
    while (attribute := _wrapped_attribute(module, what)) is not None:
        wrapper = _replication(module) or wrapper
        module = getattr(module, attribute)
    wrapper = _replication(module) or wrapper
    yield Member(prefix.rstrip("."), "module", module, module, wrapper)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield Member(prefix + name, "parameter", parameter, module, wrapper)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            yield Member(prefix + name, "buffer", buffer, module, wrapper)
    yield Member(f"{prefix}_extra_state", "extra state", None, module, "local" if wrapper else "")
    for name, child in module._modules.items():
        if child is not None:
            yield from _walk(child, f"{prefix}{name}.", what, wrapper)


def _replication(module: Any) -> Wrapper:
    names = {kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch.")}
    if "DistributedDataParallel" in names:
        return "broadcast" if getattr(module, "forward_sync_buffers", module.broadcast_buffers) else "local"
    return "local" if "FSDPModule" in names else ""


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
