"""Random streams: saved per rank, restored per rank; where the world has changed, equal ones stay equal and different ones different."""

from __future__ import annotations

import hashlib
import importlib
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

Streams = dict[str, Any]  # kind of generator -> its state in plain values and tensors


def snapshot() -> Streams:
    """This process's streams: torch, Python, NumPy if it is loaded, the current CUDA device if it is in use."""
    state: Streams = {"torch": torch.get_rng_state(), "python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        kind, keys, position, has_gauss, cached = numpy.random.get_state(legacy=True)
        state["numpy"] = (str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached))
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def digests(state: Streams) -> dict[str, str]:
    """Each stream in short: equal for equal ones."""
    return {kind: _material(value).hexdigest() for kind, value in state.items()}


def restore(state: Streams) -> None:
    """Continue the streams where `snapshot` left them; those that it does not hold stay."""
    for kind, value in state.items():
        _RESTORE[kind](value)


def derive(ancestor: Streams, numbers: Mapping[str, int], *, step: int, world: int) -> None:
    """Give this process streams that depend on the saved rank 0's, the step, the world and the stream's number, on nothing else."""
    for kind, value in ancestor.items():
        material = _material(value)
        material.update(f"everstep-rng:{kind}:{step}:{world}:{numbers.get(kind, 0)}".encode())
        _SEED[kind](int.from_bytes(material.digest()[:8], "little"))


def _material(value: Any) -> Any:
    return hashlib.sha256(bytes(value.tolist()) if isinstance(value, torch.Tensor) else repr(value).encode())


def _restore_numpy(value: Any) -> None:
    numpy = importlib.import_module("numpy")
    kind, keys, *rest = value
    numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), *rest))


def _restore_cuda(value: Any) -> None:
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(value)


def _seed_torch(seed: int) -> None:
    torch.default_generator.manual_seed(seed % (1 << 63))


def _seed_numpy(seed: int) -> None:
    importlib.import_module("numpy").random.seed(seed % (1 << 32))


def _seed_cuda(seed: int) -> None:
    if torch.cuda.is_available():
        torch.cuda.manual_seed(seed % (1 << 63))


_RESTORE: dict[str, Callable[[Any], object]] = {
    "torch": torch.set_rng_state,
    "python": random.setstate,
    "numpy": _restore_numpy,
    "cuda": _restore_cuda,
}
_SEED: dict[str, Callable[[int], object]] = {
    "torch": _seed_torch,
    "python": random.seed,
    "numpy": _seed_numpy,
    "cuda": _seed_cuda,
}
