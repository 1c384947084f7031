"""The engine of today: stock `dcp.async_save` on a thread and `dcp.load`, over a gloo group of our own."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from everstep.dcp_files import LoadPlanner, Reader, SavePlanner, Writer, send_failures_safely
from everstep.engine import FlatState, SavedItem
from everstep.errors import LoadError, SaveError

# What stock DCP says about a process alone, about per-rank keys (`rng.<rank>`), and about itself (2.6).
_EXPECTED_WARNINGS = (
    "torch.distributed is .*unavailable or uninitialized",
    "Detected mismatched keys in state dict after all gather",
    "TypedStorage is deprecated",
)


class DcpEngine:
    """`group`: a process group that nothing else uses, with a CPU backend; None: this process is alone.

    `sync_files`: fsync what is written; not for memory.
    """

    def __init__(self, group: Any, *, sync_files: bool) -> None:
        self._group = group
        self._sync_files = sync_files
        send_failures_safely()
        for message in _EXPECTED_WARNINGS:
            warnings.filterwarnings("ignore", message=message)

    def save(self, state: FlatState, directory: Path) -> DcpSave:
        """See `Engine.save`."""
        writer = Writer(directory, sync_files=self._sync_files)
        future = dcp.async_save(
            freeze(state.values),
            storage_writer=writer,
            planner=SavePlanner(dict(state.paths)),
            process_group=self._group,
        )
        return DcpSave(future)

    def catalogue(self, directory: Path) -> Mapping[str, SavedItem]:
        """See `Engine.catalogue`."""
        try:
            metadata = Reader(directory).read_metadata()
        except Exception as error:
            raise LoadError(f"{directory}: its .metadata cannot be read: {error!r}") from error
        paths = metadata.planner_data or {}
        items = metadata.state_dict_metadata
        ordered = [key for key in paths if key in items] + [
            key for key in items if key not in paths
        ]  # as it was captured
        return {key: _saved_item(paths.get(key, (key,)), items[key]) for key in ordered}

    def load(self, state: FlatState, directory: Path) -> None:
        """See `Engine.load`."""
        try:
            dcp.load(
                state.values,
                storage_reader=Reader(directory),
                planner=LoadPlanner(),
                process_group=self._group,
            )
        except (Exception, CheckpointException) as error:  # the latter is a BaseException
            raise LoadError(f"{directory}: loading failed: {_told(error)}") from error


class DcpSave:
    """See `PendingSave`."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def wait(self) -> None:
        """See `PendingSave.wait`."""
        try:
            self._future.result()
        except (Exception, CheckpointException) as error:  # the latter is a BaseException
            raise SaveError(_told(error)) from error

    def on_done(self, call: Callable[[], None]) -> None:
        """See `PendingSave.on_done`."""
        self._future.add_done_callback(lambda _: call())


def freeze(values: Mapping[str, Any]) -> dict[str, Any]:
    """B12: a copy on the CPU that nothing shares with the original."""
    with torch.no_grad():
        return {key: _frozen(value) for key, value in values.items()}


def _frozen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    return copy.deepcopy(value)


def _saved_item(path: Any, item: Any) -> SavedItem:
    if isinstance(item, TensorStorageMetadata):
        return SavedItem(tuple(path), tuple(item.size), item.properties.dtype)
    return SavedItem(tuple(path), None, None)


def _told(error: BaseException) -> str:
    """DCP gathers the failures of all ranks: name each rank's own."""
    if not isinstance(error, CheckpointException):
        return repr(error)
    return "; ".join(f"rank {rank}: {failure[0]!r}" for rank, failure in sorted(error.failures.items()))
