"""DCP's files: `.metadata` that any torch and Python can read, made durable; and read without running what a pickle says (B29)."""

from __future__ import annotations

import dataclasses
import io
import pickle
import traceback
from collections import ChainMap
from pathlib import Path
from typing import Any

import torch
from everstep_protocol import dcp_metadata, dcp_names, storage
from everstep_protocol.dcp_names import Kind
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint import utils as dcp_utils
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, StorageMeta, TensorProperties

from everstep.console import say
from everstep.durable import fsync_path
from everstep.engine import Agreement, KeyPath

_NUM_PROPERTIES = len(TensorProperties().__getstate__())


class Writer(FileSystemWriter):
    """Writes this rank's file, and as rank 0 `.metadata`, which holds no path: Python 3.13 pickles paths as no other can read."""

    def __init__(self, path: Path, *, sync_files: bool) -> None:
        # No copying ahead: the state is on the CPU, and torch would open a CUDA context on device 0 for it, on every rank.
        super().__init__(path, sync_files=sync_files, per_thread_copy_ahead=0)

    def storage_meta(self) -> StorageMeta:
        """Identity without a path."""
        return StorageMeta(save_id=self.save_id)

    def finish(self, metadata: Any, results: Any) -> None:
        """As stock, then on the disk for sure: torch before 2.14 fsyncs the file before it is written."""
        super().finish(metadata, results)
        if self.sync_files:
            fsync_path(Path(self.path) / storage.METADATA)
            fsync_path(Path(self.path))


class Reader(FileSystemReader):
    """Reads `.metadata` through an allow list; a failure is told at once, by the rank that met it, with file and key (B28)."""

    _at: Any = None

    def read_metadata(self) -> Any:
        """The index. Raises InvalidMetadata for what `complete` refuses, pickle.UnpicklingError for what this torch does not know.

        No arguments: where it takes any, torch 2.14 tries again with one when this fails, and leaves the collectives on that rank alone.
        """
        raw = (Path(self.path) / storage.METADATA).read_bytes()
        if not (Path(self.path) / storage.MANIFEST).exists():  # with one it is ours, and too large to look at twice
            dcp_metadata.parse_file_lengths(raw)
        metadata = _MetadataUnpickler(io.BytesIO(raw)).load()
        metadata.storage_meta = StorageMeta()
        return metadata

    def read_data(self, plan: Any, planner: Any) -> Any:
        """As stock."""
        try:
            return super().read_data(plan, planner)
        except BaseException as error:
            say(f"loading failed on this rank: {self._where()}: {error!r}")
            raise

    def _slice_file(self, file: Any, sinfo: Any) -> Any:
        self._at = sinfo
        return super()._slice_file(file, sinfo)

    def _where(self) -> str:
        if self._at is None:
            return str(self.path)
        keys = {index.fqn for index, info in self.storage_data.items() if info == self._at}
        return f"{Path(self.path) / self._at.relative_path}, key {', '.join(sorted(keys))}"


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        kind = dcp_names.kind_of(module, name)
        if kind is None:
            raise pickle.UnpicklingError(f"{storage.METADATA} names {module}.{name}, which DCP never writes")
        if kind is Kind.DTYPE and not isinstance(getattr(torch, name, None), torch.dtype):
            raise pickle.UnpicklingError(
                f"it holds a tensor of torch.{name}, which torch {torch.__version__} does not have"
            )
        if kind is Kind.PATH:
            return _no_path
        if kind is Kind.MEMBER:
            return _member
        return _TensorProperties if name == "TensorProperties" else super().find_class(module, name)


def _no_path(*_: str) -> None:
    """Where the checkpoint was written, which is no use to us."""


def _member(_: type, name: str) -> _MEM_FORMAT_ENCODING:
    """What `getattr` may be called for."""
    return _MEM_FORMAT_ENCODING[name]


class _TensorProperties(TensorProperties):
    """Also of a newer torch, which has more of them (2.15 added strides)."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        super().__setstate__(state[:_NUM_PROPERTIES])


class SavePlanner(DefaultSavePlanner):
    """Stock, for a state that is flat already; its paths go into `.metadata` as stock's would.

    What ranks must agree on travels with their plans: no collective more, and a disagreement fails the save on all of them.
    """

    def __init__(self, paths: dict[str, KeyPath], agreement: Agreement) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._paths = paths
        self._agreement = agreement

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        """As stock without flattening."""
        self.flatten_state_dict = False
        super().set_up_planner(state_dict, storage_meta, is_coordinator)

    def create_local_plan(self) -> Any:
        """As stock, with the paths and this rank's report."""
        plan = super().create_local_plan()
        return dataclasses.replace(plan, planner_data=(self._paths, self._agreement.report()))

    def create_global_plan(self, all_plans: Any) -> Any:
        """As stock, once the ranks agree."""
        self._agreement.settle([plan.planner_data[1] for plan in all_plans])
        plans = [dataclasses.replace(plan, planner_data=plan.planner_data[0]) for plan in all_plans]
        plans, metadata = super().create_global_plan(plans)
        paths = dict(ChainMap(*(plan.planner_data for plan in plans)))
        return plans, dataclasses.replace(metadata, planner_data=paths)


class LoadPlanner(DefaultLoadPlanner):
    """Stock, for flat keys; values are unpickled by torch's own allow list (`torch.serialization.add_safe_globals` widens it)."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        """Replace a value."""
        self.original_state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


def send_failures_safely() -> None:
    """Make DCP send any rank's failure to the others.

    It pickles the exception and its traceback. Torch 2.6 on Python 3.13 cannot (code objects), nor can any torch where the exception
    itself cannot be pickled: then the rank that failed leaves the collective and all others wait for it until they time out.
    """
    wrap = dcp_utils._wrap_exception
    if getattr(wrap, "is_safe", False):
        return

    def wrap_safely(error: BaseException) -> Any:
        wrapped = wrap(error)
        if _can_be_pickled(wrapped):
            return wrapped
        told = error if _can_be_pickled(error) else RuntimeError(repr(error))
        return told, traceback.StackSummary()

    wrap_safely.is_safe = True  # type: ignore[attr-defined]
    dcp_utils._wrap_exception = wrap_safely


def _can_be_pickled(value: Any) -> bool:
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # noqa: BLE001 - whatever pickling raises, there is a way without it
        return False
    return True
