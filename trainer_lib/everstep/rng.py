"""Random streams: saved per rank, restored per rank; where the world has changed, every rank gets a new stream of its own (B24)."""

from __future__ import annotations

import hashlib
import importlib
import random
import sys
from typing import Any

import torch


def snapshot() -> dict[str, Any]:
    """This process's streams: torch, Python, NumPy if it is loaded, the current CUDA device if it is in use. Plain values only."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        kind, keys, position, has_gauss, cached = numpy.random.get_state(legacy=True)
        state["numpy"] = (str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached))
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore(state: dict[str, Any]) -> None:
    """Continue this rank's own streams where `snapshot` left them."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if "numpy" in state:
        numpy = importlib.import_module("numpy")
        kind, keys, *rest = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), *rest))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def derive(ancestor: dict[str, Any], *, step: int, rank: int, world: int) -> None:
    """Give this rank a stream that depends on the saved rank 0's, the step, the world and the rank, and on nothing else."""
    material = hashlib.sha256(bytes(ancestor["torch"].tolist()))
    material.update(f"everstep-rng:{step}:{rank}:{world}".encode())
    seed = int.from_bytes(material.digest()[:8], "little")
    torch.manual_seed(seed % (1 << 63))
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        numpy.random.seed(seed % (1 << 32))
