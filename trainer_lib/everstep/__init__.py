"""Everstep for training scripts: exact data at any world size, checkpoints that cost the loop little, resumption by itself.

    sampler = everstep.data.ElasticSampler(len(dataset), global_batch=64)
    checkpointer = everstep.Checkpointer({"model": model, "optimizer": optimizer, "sampler": sampler})
    for step in checkpointer.steps(until=10_000): ...

Importing this package imports no torch: the launcher, which lives in it too, must run where there is none.
Order of reading: `checkpointer`, `run`, `data` (with `sampling`; `loader`; `stream` with `lanes`), `saving`, `restoring`, `state`,
`engine` (with `dcp_engine`), `places`, `folder` (with `folder_runs` and `folder_lock`).
"""

from __future__ import annotations

TYPE_CHECKING = (
    False  # not from typing: every process below a launcher imports this (`start`), and typing takes milliseconds
)
if TYPE_CHECKING:
    from typing import Any

    from everstep import data
    from everstep.checkpointer import Checkpointer

__all__ = ["Checkpointer", "data"]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "Checkpointer":
        return importlib.import_module("everstep.checkpointer").Checkpointer
    if name == "data":
        return importlib.import_module("everstep.data")
    raise AttributeError(f"module 'everstep' has no attribute {name!r}")
