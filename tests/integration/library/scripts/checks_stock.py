"""TR8: what `complete` says of a stock checkpoint is what the library can do with it, whichever Python and torch wrote it."""

import io
import resource
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import everstep
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from everstep.dcp_engine import DcpEngine
from everstep.dcp_files import LoadPlanner, Reader, _MetadataUnpickler
from everstep_protocol import dcp_names
from everstep_protocol.complete import inspect
from everstep_protocol.dcp_metadata import parse_file_lengths
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import Shard, init_from_local_shards

DATA = Path("/src/tests/data/stock_checkpoints")
FOLDERS = sorted(DATA.glob("py*"))
sys.path[:0] = [str(DATA), "/src/tests"]

import make  # noqa: E402 - beside the data
from store_support import metadata_mutations as mutations  # noqa: E402

MOST_BYTES = 1 << 30


def check_a_run_goes_on_from_a_stock_checkpoint_of_any_python_and_torch(folder: Path) -> None:
    assert len(FOLDERS) >= 11
    for place in FOLDERS:
        shutil.copytree(place / "step_3", folder / place.name / "step_3")
        model, progress = torch.nn.Linear(3, 2), {"best": None}
        steps = everstep.Checkpointer({"model": model, "progress": progress}, directory=folder / place.name).steps(5)
        assert next(steps) == 3, place.name
        assert progress == make.PROGRESS, place.name
        for found, expected in zip(model.parameters(), make.make_model().parameters(), strict=True):
            assert torch.equal(found, expected), place.name
        assert list(steps) == [4], place.name


def check_the_path_it_was_saved_under_does_not_matter(folder: Path) -> None:
    for place in FOLDERS:
        for name in ("absolute", "empty", "text", "none"):
            directory = folder / place.name / name / "step_3"
            shutil.copytree(place / "step_3", directory)
            shutil.copy(place / name, directory / ".metadata")
            assert inspect(directory, job_uids=frozenset()).state == "complete", directory
            assert problem_of_loading(directory) == "", directory


def check_what_complete_refuses_is_not_loaded_either(folder: Path) -> None:
    refused = sorted(DATA.glob("refused-*/*"))
    assert refused
    for place in refused:
        assert inspect(place / "step_3", job_uids=frozenset()).state == "refused"
        assert "its .metadata cannot be read" in problem_of_loading(place / "step_3"), place


def check_both_readers_agree_about_every_mutation(folder: Path) -> None:
    """Also the unpickler alone, which is all that looks at a checkpoint of our own."""
    for name in ("py3.11.2-torch2.6.0", "py3.13.0-torch2.15.0"):
        raw = (DATA / name / "absolute").read_bytes()
        cases = [(what, mutations.before(raw, code), True) for what, code in mutations.HARMLESS.items()]
        cases += [(what, mutations.before(raw, code), False) for what, code in mutations.HARMFUL.items()]
        cases += [(what, mutated, None) for what, mutated in mutations.mutations(raw)]
        num_accepted = 0
        for what, mutated, expected in cases:
            told = problem_of(lambda mutated=mutated: parse_file_lengths(mutated))
            (folder / ".metadata").write_bytes(mutated)
            met = problem_of(lambda: plan_to_load(folder))
            assert (told == "") == (met == ""), (name, what, told, met)
            assert expected in (None, told == ""), (name, what, told)
            num_accepted += told == ""
        assert num_accepted > len(mutations.HARMLESS) + 100, "else this says nothing"


def check_the_unpickler_alone_calls_nothing_that_is_not_admitted(folder: Path) -> None:
    raw = (DATA / "py3.11.2-torch2.6.0" / "absolute").read_bytes()
    for what in ("function of os", "another class of pathlib", "dtype that there is not"):
        told = problem_of(lambda what=what: unpickle(mutations.before(raw, mutations.HARMFUL[what])))
        assert "DCP never writes" in told, (what, told)
    got = mutations.named("builtins", "getattr"), mutations.RECORD, mutations.text("__init__")
    told = problem_of(lambda: unpickle(mutations.before(raw, mutations.called(*got))))
    assert told.startswith("KeyError"), told


def check_a_dtype_of_a_newer_torch_is_told(folder: Path) -> None:
    for name in dcp_names.DTYPE_BYTES:
        if not hasattr(torch, name):
            raw = (DATA / "py3.12.1-torch2.6.0" / "absolute").read_bytes()
            told = problem_of(
                lambda name=name, raw=raw: unpickle(mutations.before(raw, mutations.named("torch", name)))
            )
            assert f"a tensor of torch.{name}, which torch {torch.__version__} does not have" in told, told


def check_the_table_has_every_dtype_of_this_torch(folder: Path) -> None:
    dtypes = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
    assert set(dtypes) <= set(dcp_names.DTYPE_BYTES)
    for name, dtype in dtypes.items():
        assert dcp_names.DTYPE_BYTES[name] in (0, dtype.itemsize), name


def check_the_table_has_every_memory_format_and_layout(folder: Path) -> None:
    """Of layouts only what dcp.save can save."""
    encoding = dcp.metadata._MEM_FORMAT_ENCODING
    assert {member.name: member.value for member in encoding} == dcp_names.MEMORY_FORMATS
    layouts = sorted({str(value) for value in vars(torch).values() if isinstance(value, torch.layout)})
    assert "torch.sparse_coo" in layouts
    for place, to_sparse in enumerate((torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_csc)):
        directory = folder / f"step_{place}"
        assert problem_of(lambda t=to_sparse, d=directory: save({"a": t(torch.eye(4))}, d)), to_sparse
    assert set(layouts) >= dcp_names.LAYOUTS


def check_what_stock_writes_here_is_complete_and_loads(folder: Path) -> None:
    """Sharded as FSDP1 does it, odd views, other layouts in memory, many dtypes, keys that are no plain words."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    part = torch.arange(12.0).reshape(3, 4)
    shards = [Shard(part + place, ShardMetadata([place, 0], [3, 4], "rank:0/cpu")) for place in (0, 3)]
    states: dict[str, Any] = {
        "sharded": init_from_local_shards(shards, [6, 4]),
        "views": [part.T, torch.zeros(1).expand(1000), torch.arange(100)[10:20], torch.zeros(0), torch.tensor(1.0)],
        "channels": torch.zeros(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "parameter": torch.nn.Parameter(part),
        "keys": {1: part, ("a", 2): part, "": part, "é\ud800": 1},
        "dtypes": {str(dtype): torch.zeros(300).to(dtype) for dtype in savable_dtypes()},
    }
    for place, (name, state) in enumerate(states.items()):
        directory = folder / f"step_{place}"
        save({name: state}, directory)
        verdict = inspect(directory, job_uids=frozenset())
        assert (verdict.state, verdict.reason) == ("complete", ""), (name, verdict)
        assert problem_of_loading(directory) == "", name
    dist.destroy_process_group()


def savable_dtypes() -> list[torch.dtype]:
    """Those that a tensor can be turned into."""
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    found = [dtype for dtype in dtypes if problem_of(lambda dtype=dtype: torch.zeros(3).to(dtype)) == ""]
    assert len(found) >= 15
    return found


def save(state: dict[str, Any], directory: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, storage_writer=dcp.FileSystemWriter(directory))


def problem_of_loading(directory: Path) -> str:
    """Load all that is there, as the engine does; empty where that works."""
    return problem_of(
        lambda: dcp.load(destinations(directory), storage_reader=Reader(directory), planner=LoadPlanner())
    )


def destinations(directory: Path) -> dict[str, Any]:
    saved = DcpEngine(None, sync_files=False).catalogue(directory)
    return {
        key: None if item.shape is None else torch.empty(item.shape, dtype=item.dtype) for key, item in saved.items()
    }


def plan_to_load(directory: Path) -> None:
    """All of loading but the data: the mutations do not change that."""
    unpickle((directory / ".metadata").read_bytes())
    state = destinations(directory)
    metadata = Reader(directory).read_metadata()
    planner = LoadPlanner()
    planner.set_up_planner(state, metadata, is_coordinator=True)
    for item in planner.create_local_plan().items:
        assert (directory / metadata.storage_data[item.storage_index].relative_path).parent == directory


def unpickle(raw: bytes) -> Any:
    with bounded_memory():
        return _MetadataUnpickler(io.BytesIO(raw)).load()


@contextmanager
def bounded_memory() -> Iterator[None]:
    """A far index in a pickle's memo makes Python ask for many GB: here that is a MemoryError, and nobody else's memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MOST_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def problem_of(call: Callable[[], Any]) -> str:
    """What it raises."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - CheckpointException is one
        return f"{type(error).__name__}: {error}"
    return ""
