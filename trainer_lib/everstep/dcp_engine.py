"""The engine of today: stock `dcp.save` on a thread and `dcp.load`, over a gloo group of our own."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from everstep.dcp_files import LoadPlanner, Reader, SavePlanner, Writer, send_failures_safely
from everstep.engine import Agreement, FlatState, SavedItem
from everstep.errors import LoadError, SaveError, StateError
from everstep.world import World

# What stock DCP says about a process alone, about per-rank keys (`rng.<rank>`), and about itself (2.6).
_EXPECTED_WARNINGS = (
    "torch.distributed is .*unavailable or uninitialized",
    "Detected mismatched keys in state dict after all gather",
    "TypedStorage is deprecated",
)


class DcpEngine:
    """`world`: whose group for saving nothing else uses. `sync_files`: fsync what is written; not for memory."""

    def __init__(self, world: World, *, sync_files: bool) -> None:
        self._world = world
        self._sync_files = sync_files
        send_failures_safely()
        for message in _EXPECTED_WARNINGS:
            warnings.filterwarnings("ignore", message=message)

    def save(self, state: FlatState, directory: Path, agreement: Agreement) -> DcpSave:
        """See `Engine.save`."""
        writer = Writer(directory, sync_files=self._sync_files)
        planner = SavePlanner(dict(state.paths), agreement)
        world = self._world  # never the group itself: its last reference must not be this thread's (`World.leave`)
        return DcpSave(
            lambda: dcp.save(state.values, storage_writer=writer, planner=planner, process_group=world.saving)
        )

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
                process_group=self._world.saving,
            )
        except (Exception, CheckpointException) as error:  # the latter is a BaseException
            raise LoadError(f"{directory}: loading failed: {_told(error)}") from error


class DcpSave:
    """See `PendingSave`. On a thread of its own, which the interpreter waits for at its end: none is killed inside torch (TR13)."""

    def __init__(self, write: Callable[[], object]) -> None:
        self._error: SaveError | None = None
        self._calls: list[Callable[[], None]] = []
        self._done = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, args=(write,), name="everstep-save")
        self._thread.start()

    def wait(self) -> None:
        """See `PendingSave.wait`."""
        if not self.runs_here():
            self._thread.join()
        if self._error is not None:
            raise self._error

    def runs_here(self) -> bool:
        """See `PendingSave.runs_here`."""
        return threading.current_thread() is self._thread

    def on_done(self, call: Callable[[], None]) -> None:
        """See `PendingSave.on_done`."""
        with self._lock:
            if not self._done:
                self._calls.append(call)
                return
        call()

    def _run(self, write: Callable[[], object]) -> None:
        try:
            write()
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it; CheckpointException is one, too
            self._error = _as_save_error(error)
        with self._lock:
            self._done = True
            calls, self._calls = self._calls, []
        for call in calls:
            call()


def _as_save_error(error: BaseException) -> SaveError:
    """In words only: a traceback would keep the whole frozen state alive. Caused by a StateError where the state was refused."""
    told = SaveError(_told(error))
    told.__cause__ = StateError(str(told)) if _refusals(error) else None
    return told


def _saved_item(path: Any, item: Any) -> SavedItem:
    if isinstance(item, TensorStorageMetadata):
        return SavedItem(tuple(path), tuple(item.size), item.properties.dtype)
    return SavedItem(tuple(path), None, None)


def _told(error: BaseException) -> str:
    """DCP gathers the failures of all ranks: name each rank's own. What is wrong with the state is no rank's, and said as it is."""
    if not isinstance(error, CheckpointException):
        return repr(error)
    refusals = _refusals(error)
    if refusals:
        return "; ".join(dict.fromkeys(map(str, refusals)))
    return "; ".join(f"rank {rank}: {failure!r}" for rank, failure in _failures(error).items())


def _refusals(error: BaseException) -> list[StateError]:
    """What is wrong with the state, by rank, where nothing else has failed."""
    failures = list(_failures(error).values())
    refusals = [failure for failure in failures if isinstance(failure, StateError)]
    return refusals if refusals == failures else []


def _failures(error: BaseException) -> dict[int, BaseException]:
    """Each rank's own, of what DCP raises on all of them."""
    if not isinstance(error, CheckpointException):
        return {}
    return {rank: failure[0] for rank, failure in sorted(error.failures.items())}
