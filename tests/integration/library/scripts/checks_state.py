"""What is saved comes back: bit-exact at any world size, with right types, and never less than was saved."""

import collections
import copy
import random
import shutil
from pathlib import Path
from typing import Any

import everstep
import numpy
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from everstep.errors import LoadError
from models import OddShapes, assert_equal, everything, newest, sharded_odd_shapes, step_by_hand
from ranks import run_ranks, try_ranks
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict


def train(folder: Path, until: int, *, every: int = 100, model: Any = None, optimizer: Any = None, **more: Any) -> Any:
    """Train to `until` finished steps with gradients that depend on the step only; everything in full at the end."""
    model = model or sharded_odd_shapes()
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.1)
    checkpointer = everstep.Checkpointer(
        {"model": model, "optimizer": optimizer, **more}, directory=folder, every=every
    )
    for step in checkpointer.steps(until=until):
        step_by_hand(model, optimizer, step)
    assert checkpointer.step == until
    return everything(model, optimizer)


def check_reshards_bit_exact(folder: Path) -> None:
    """Saved by 2 ranks, loaded by 3, 1 and 5: parameters, buffers, AdamW's moments and counts (B19)."""
    saved = run_ranks(2, train, folder, 3)
    undisturbed = run_ranks(2, train, folder / "undisturbed", 5)
    for world in (3, 1, 5):
        for result in run_ranks(world, train, folder, 3):
            assert_equal(result, saved[0])
        shutil.copytree(folder, folder / f"on-{world}", ignore=shutil.ignore_patterns("on-*", "undisturbed"))
        for result in run_ranks(world, train, folder / f"on-{world}", 5):
            assert_equal(result, undisturbed[0])


def check_training_with_us_is_bit_equal_to_training_without(folder: Path) -> None:
    """No save changes anything, not even one after the very first step (ENGINE trap A)."""

    def without() -> Any:
        model = OddShapes()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for step in range(4):
            step_by_hand(model, optimizer, step)
        return everything(model, optimizer)

    (plain,) = run_ranks(1, without)
    (ours,) = run_ranks(1, lambda: train(folder, 4, every=1))
    assert_equal(plain, ours)


def check_restored_values_reach_the_objects_in_use(folder: Path) -> None:
    """B20: equal values, equal types, in the very dict that the script holds; the step counter too."""
    value = {
        "epoch": 3,
        "best": 0.25,
        "name": "run",
        "hist": [1, 2, 3],
        "cfg": {"a": None, "b": True, "empty": {}},
        "done": {1, 2},
        "pair": (1, "x"),
        "by_int": {1: "one", 2: "two"},
        "count": collections.Counter("aab"),
        "tensors": [torch.arange(3), {"x": torch.ones(2, dtype=torch.bfloat16)}],
    }

    def first() -> None:
        train(folder, 3, progress=copy.deepcopy(value), notes=[1, {"a": 2}])

    def second() -> Any:
        progress: dict[str, Any] = {"epoch": 0}
        notes: list[Any] = []
        train(folder, 3, progress=progress, notes=notes)
        return progress, notes

    run_ranks(1, first)
    ((progress, notes),) = run_ranks(1, second)
    tensors, expected = progress.pop("tensors"), value.pop("tensors")
    assert progress == value
    assert notes == [1, {"a": 2}]
    for key, item in value.items():
        assert type(progress[key]) is type(item), key
    assert torch.equal(tensors[0], expected[0])
    assert torch.equal(tensors[1]["x"], expected[1]["x"])
    (outcome,) = try_ranks(1, lambda: everstep.Checkpointer({"epoch": 3}))
    assert "put it into a dict" in outcome
    (outcome,) = try_ranks(1, lambda: train(folder / "bad", 1, progress={"odd": object()}))
    assert "progress.odd" in outcome


def check_schedulers_and_samplers(folder: Path) -> None:
    """Optimizer's learning rate, scheduler (with a Counter of int keys) and position continue as if nothing had happened (B30)."""

    def schedule(until: int, where: Path) -> Any:
        model = OddShapes()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4, 5], gamma=0.5)
        sampler = everstep.data.ElasticSampler(50, global_batch=8)
        state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "sampler": sampler}
        seen = []
        for step in everstep.Checkpointer(state, directory=where).steps(until=until):
            seen += [index for indices, _ in sampler.micro_batch_indices(step) for index in indices]
            step_by_hand(model, optimizer, step)
            scheduler.step()
        return everything(model, optimizer), optimizer.param_groups[0]["lr"], scheduler.state_dict(), seen

    (undisturbed,) = run_ranks(1, schedule, 6, folder / "a")
    (half,) = run_ranks(1, schedule, 3, folder / "b")
    (rest,) = run_ranks(1, schedule, 6, folder / "b")
    assert_equal(rest[0], undisturbed[0])
    assert rest[1:3] == undisturbed[1:3]
    assert half[3] + rest[3] == undisturbed[3]


def check_optimizer_state_is_never_silently_empty(folder: Path) -> None:
    """B21: also with gradients left over before loading; fewer entries than were saved, or none, are an error."""

    def with_leftover_gradients() -> Any:
        model = OddShapes()
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        return train(folder, 3, model=model)

    (saved,) = run_ranks(1, train, folder, 3)
    (again,) = run_ranks(1, with_leftover_gradients)
    assert_equal(again, saved)
    for which, told in (("p0.exp_avg", "were saved"), ("", "were saved")):
        broken = folder / f"broken{len(which)}"
        shutil.copytree(newest(folder), broken / "step_3")
        delete_keys(broken / "step_3", f"optimizer.state.{which}")
        (outcome,) = try_ranks(1, train, broken, 4)
        assert told in outcome, outcome
    delete_keys(broken / "step_3", "everstep")  # as if stock had written it
    (outcome,) = try_ranks(1, train, broken, 4)
    assert "moments would start at zero" in outcome, outcome
    stateless = folder / "sgd"
    (saved,) = run_ranks(1, lambda: train_sgd(stateless))
    (again,) = run_ranks(1, lambda: train_sgd(stateless))
    assert_equal(again, saved)


def train_sgd(folder: Path) -> Any:
    """An optimizer that keeps nothing: its empty state is right."""
    model = OddShapes()
    return train(folder, 3, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def delete_keys(directory: Path, prefix: str) -> None:
    """Make a checkpoint forget some keys."""
    import pickle

    metadata = pickle.loads((directory / ".metadata").read_bytes())
    keep = {key: value for key, value in metadata.state_dict_metadata.items() if not key.startswith(prefix)}
    assert len(keep) < len(metadata.state_dict_metadata)
    metadata.state_dict_metadata = keep
    metadata.storage_data = {index: info for index, info in metadata.storage_data.items() if index.fqn in keep}
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))


def check_a_checkpoint_that_does_not_fit_is_refused_before_anything_is_touched(folder: Path) -> None:
    """Shapes, dtypes, missing and unknown keys: all named at once; wrong step; a pickle that would run code (B29)."""
    run_ranks(1, train, folder, 3)

    class Other(OddShapes):
        def __init__(self) -> None:
            super().__init__()
            self.p0 = nn.Parameter(torch.zeros(7, 4))
            self.p1 = nn.Parameter(torch.zeros(2, dtype=torch.float64))
            self.extra = nn.Parameter(torch.zeros(1))

    def load_other() -> Any:
        model = Other()
        optimizer = torch.optim.AdamW([model.p2], lr=0.1)
        optimizer_before = copy.deepcopy(optimizer.state_dict())
        try:
            train(folder, 4, model=model, optimizer=optimizer)
        except LoadError as error:
            assert optimizer.state_dict() == optimizer_before
            assert not model.p0.any()
            return str(error)

    (told,) = run_ranks(1, load_other)
    for part in ("model.p0 is torch.float32 [7, 3]", "[7, 4] here", "model.p1", "model.extra is missing", "optimizer"):
        assert part in told, told
    shutil.copytree(newest(folder), folder / "renamed" / "step_9")
    (folder / "renamed" / "step_9" / "run.json").unlink()  # else that says which step it is, whatever the name
    (outcome,) = try_ranks(1, train, folder / "renamed", 10)
    assert "after step 3, not after step 9" in outcome, outcome
    (outcome,) = try_ranks(1, lambda: train(folder, 4, extra={"a": 1}))
    assert "extra: nothing of it is in the checkpoint" in outcome, outcome
    evil = newest(folder) / ".metadata"
    evil.write_bytes(b"cos\nsystem\n(S'touch /tmp/evil'\ntR.")
    (outcome,) = try_ranks(1, lambda: everstep_load(newest(folder)))
    assert "os.system" in outcome or "posix.system" in outcome, outcome
    assert not Path("/tmp/evil").exists()


def everstep_load(directory: Path) -> None:
    """Read an index past the first judge of directories."""
    from everstep.dcp_engine import DcpEngine

    DcpEngine(None, sync_files=False).catalogue(directory)


def check_random_streams(folder: Path) -> None:
    """B24: in the same world each rank's own streams go on; in another one all are new and distinct."""

    def draw(until: int) -> list[Any]:
        if not any(folder.glob("step_*")):
            torch.manual_seed(100 + dist.get_rank())
            random.seed(200 + dist.get_rank())
            numpy.random.seed(300 + dist.get_rank())
        drawn = []
        for _ in everstep.Checkpointer({"progress": {}}, directory=folder).steps(until=until):
            drawn.append((torch.rand(2).tolist(), random.random(), numpy.random.rand(), numpy.random.randn()))
        return drawn

    def undisturbed() -> list[Any]:
        torch.manual_seed(100 + dist.get_rank())
        random.seed(200 + dist.get_rank())
        numpy.random.seed(300 + dist.get_rank())
        return [(torch.rand(2).tolist(), random.random(), numpy.random.rand(), numpy.random.randn()) for _ in range(5)]

    expected = run_ranks(2, undisturbed)
    first = run_ranks(2, draw, 3)
    shutil.copytree(folder, folder / "copy")
    second = run_ranks(2, draw, 5)
    assert [a + b for a, b in zip(first, second, strict=True)] == expected
    for name in ("step_5",):
        shutil.rmtree(folder / name)
    three = run_ranks(3, draw, 4)
    assert len({str(drawn) for drawn in [*three, *(rank[3:4] for rank in expected)]}) == 5
    shutil.rmtree(folder / "step_4")
    assert run_ranks(3, draw, 4) == three, "the new streams are deterministic"


class Checkpointed(nn.Module):
    """A model with a user's own module called `module`, and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.module = nn.Linear(4, 4)
        self.emb = nn.Embedding(4, 4)
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, x: Any) -> Any:
        return self.head(self.module(x))


def wrap(kind: str) -> nn.Module:
    """The same model in different wrappers."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model: nn.Module = Checkpointed()
    if "checkpoint" in kind:
        model.module = checkpoint_wrapper(model.module)
    if "inner-compile" in kind:
        model.module = torch.compile(model.module, backend="eager")
    if "ddp" in kind:
        model = nn.parallel.DistributedDataParallel(model)
    if kind.endswith("compile"):
        model = torch.compile(model, backend="eager")
    return model


def check_keys_do_not_depend_on_wrappers_and_are_those_of_stock(folder: Path) -> None:
    """B23: names of model and optimizer are the same in every wrapping, and what stock get_*_state_dict would write."""

    def save(kind: str) -> Any:
        model = wrap(kind)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for step in everstep.Checkpointer({"model": model, "optimizer": optimizer}, directory=folder / kind).steps(
            until=1
        ):
            model(torch.ones(2, 4) * (step + 1)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        stock = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
        dcp.save(stock, checkpoint_id=str(folder / f"stock-{kind}" / "step_1"))

    kinds = ["plain", "ddp", "ddp-checkpoint", "ddp-compile", "checkpoint-inner-compile-ddp"]
    found = {}
    for kind in kinds:
        run_ranks(2, save, kind)
        ours, stock = keys(folder / kind / "step_1"), keys(folder / f"stock-{kind}" / "step_1")
        assert {key: path for key, path in ours.items() if key.split(".")[0] in ("model", "optimizer")} == stock, (
            ours,
            stock,
        )
        found[kind] = ours
    assert all(each == found["plain"] for each in found.values())

    def load(directory: Path, kind: str) -> Any:
        model = wrap(kind)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
        for _ in everstep.Checkpointer({"model": model, "optimizer": optimizer}, directory=directory).steps(until=1):
            raise AssertionError("nothing is left to do")
        inner = model._orig_mod if hasattr(model, "_orig_mod") else model
        inner = inner.module if isinstance(inner, nn.parallel.DistributedDataParallel) else inner
        assert inner.head.weight is inner.emb.weight
        assert optimizer.param_groups[0]["lr"] == 0.1
        return [p.detach() for p in model.parameters()], [
            tensor for p in optimizer.param_groups[0]["params"] for tensor in optimizer.state[p].values()
        ]

    (reference, *_) = run_ranks(2, load, folder / "plain", "plain")
    for source in ("stock-ddp", "checkpoint-inner-compile-ddp"):
        for kind in ("compile", "ddp-checkpoint"):
            (loaded, *_) = run_ranks(2, load, folder / source, kind)
            for left, right in zip(reference[0] + reference[1], loaded[0] + loaded[1], strict=True):
                assert torch.equal(left, right)


def keys(directory: Path) -> dict[str, Any]:
    """Flat keys and paths of a checkpoint, as stock DCP reads them."""
    metadata = dcp.FileSystemReader(str(directory)).read_metadata()
    return {key: tuple(metadata.planner_data[key]) for key in metadata.state_dict_metadata}


def check_stock_load_reads_what_we_wrote(folder: Path) -> None:
    """Plain `dcp.load`, without anything of ours, on another world."""
    (saved, *_) = run_ranks(2, train, folder, 3)

    def load() -> Any:
        model = sharded_odd_shapes()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
        state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
        dcp.load(state, checkpoint_id=str(folder / "step_3"))
        torch.distributed.checkpoint.state_dict.set_optimizer_state_dict(model, optimizer, state["optimizer"])
        return everything(model, optimizer)

    for result in run_ranks(3, load):
        assert_equal(result, saved)


def check_content_is_frozen_when_the_body_goes_on(folder: Path) -> None:
    """B12: tensors, counters and nested values change right after the save began, while a slow writer is at work."""
    from everstep import dcp_files

    def save() -> None:
        slow = dcp_files.Writer.write_data

        def write_data(self: Any, plan: Any, planner: Any) -> Any:
            import time

            time.sleep(0.5)
            return slow(self, plan, planner)

        dcp_files.Writer.write_data = write_data
        model, progress = OddShapes(), {"count": 0, "nested": {"list": [0]}}
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        checkpointer = everstep.Checkpointer(
            {"model": model, "optimizer": optimizer, "progress": progress}, directory=folder, every=1, keep_last=9
        )
        for step in checkpointer.steps(until=3):
            if step == 0:
                step_by_hand(model, optimizer, 0)
                progress["count"], progress["nested"]["list"][0] = 1, 1
                expected.update(everything(model, optimizer))
            else:  # the save of step 0 is still being written
                assert not (folder / "step_1").exists() or step == 2
                with torch.no_grad():
                    [p.fill_(7.0) for p in model.parameters()]
                    [state["exp_avg"].fill_(7.0) for state in optimizer.state.values()]
                progress["count"], progress["nested"]["list"][0] = 7, 7
        torch.save(expected, folder / "expected.pt")

    expected: dict[str, Any] = {}
    run_ranks(1, save)

    def load() -> Any:
        progress: dict[str, Any] = {}
        model = OddShapes()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        shutil.copytree(folder / "step_1", folder / "only" / "step_1")
        state = {"model": model, "optimizer": optimizer, "progress": progress}
        list(everstep.Checkpointer(state, directory=folder / "only").steps(until=1))
        return everything(model, optimizer), progress

    ((loaded, progress),) = run_ranks(1, load)
    assert_equal(loaded, torch.load(folder / "expected.pt"))
    assert progress == {"count": 1, "nested": {"list": [1]}}


def check_optimizers_over_two_models_and_foreign_parameters(folder: Path) -> None:
    def build() -> tuple[dict[str, Any], Any]:
        left, right = OddShapes(), OddShapes()
        both = torch.optim.AdamW([*left.parameters(), *right.parameters()], lr=0.1)
        return {"left": left, "right": right, "both": both}, both

    def run(until: int) -> Any:
        state, optimizer = build()
        for step in everstep.Checkpointer(state, directory=folder).steps(until=until):
            for model in (state["left"], state["right"]):
                for place, parameter in enumerate(model.parameters()):
                    parameter.grad = torch.full_like(parameter, float(step + place))
            optimizer.step()
        return [tensor.clone() for values in optimizer.state.values() for tensor in values.values()]

    (saved,) = run_ranks(1, run, 2)
    (again,) = run_ranks(1, run, 2)
    assert all(torch.equal(a, b) for a, b in zip(saved, again, strict=True))
    stranger = torch.optim.SGD([nn.Parameter(torch.zeros(3))])
    foreign = everstep.Checkpointer({"model": OddShapes(), "optimizer": stranger})
    (outcome,) = try_ranks(1, lambda: next(foreign.steps(until=1)))
    assert "StateError" in outcome
    assert "in no module" in outcome
