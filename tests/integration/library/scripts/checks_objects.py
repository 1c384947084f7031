"""What a script holds stays what it holds: its dicts and lists are filled, and what it had not made yet is of the kind that was saved."""

from pathlib import Path
from typing import Any

import everstep
import torch
from ranks import run_ranks, try_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor


def check_dicts_and_lists_inside_of_others_are_filled_too(folder: Path) -> None:
    def run(until: int) -> Any:
        inner: dict[str, Any] = {"best": 0, "average": torch.zeros(2)}
        first: list[Any] = [0, inner["average"]]
        progress, rows = {"inner": inner}, [first]
        for step in everstep.Checkpointer({"progress": progress, "rows": rows}, directory=folder).steps(until=until):
            inner["best"] = step
            first[0] = step
            inner["average"] += 1
        assert progress["inner"] is inner
        assert rows[0] is first
        return inner["best"], first[0], inner["average"].tolist()

    for until, best in ((3, 2), (3, 2), (4, 3)):
        assert run_ranks(1, run, until) == [(best, best, [best + 1.0] * 2)]


def check_a_tensor_that_is_not_made_yet_comes_back_as_the_kind_that_it_was(folder: Path) -> None:
    """Parameters, leaves that want a gradient, and how a DTensor lies over its mesh."""

    def run(progress: dict[str, Any]) -> Any:
        mesh = init_device_mesh("cpu", (2,))
        if progress:
            whole = torch.arange(12.0).view(3, 4)
            progress["by rows"] = distribute_tensor(whole, mesh, [Shard(0)])
            progress["by columns"] = distribute_tensor(whole, mesh, [Shard(1)])
            progress["whole"] = distribute_tensor(whole, mesh, [Replicate()])
        state = {"progress": progress, "beside": distribute_tensor(torch.ones(4), mesh, [Shard(0)])}
        list(everstep.Checkpointer(state, directory=folder).steps(until=1))
        return {name: kind(tensor) for name, tensor in progress.items()}

    made = {
        "plain": torch.ones(2),
        "leaf": torch.ones(2, requires_grad=True),
        "parameter": nn.Parameter(torch.ones(2)),
        "frozen": nn.Parameter(torch.ones(2), requires_grad=False),
    }
    saved = run_ranks(2, run, made)
    assert len({repr(each) for each in saved[0].values()}) == 7
    assert run_ranks(2, run, {}) == saved


def kind(tensor: Any) -> Any:
    """What shape and contents do not say."""
    return type(tensor).__name__, tensor.requires_grad, tensor.placements if isinstance(tensor, DTensor) else None


def check_another_thing_under_the_same_name_is_refused(folder: Path) -> None:
    def run(thing: Any) -> None:
        list(everstep.Checkpointer({"thing": thing}, directory=folder).steps(until=1))

    run_ranks(1, run, [1, {"a": 2}])
    things: dict[str, list[Any]] = {
        "thing: the checkpoint holds a list, not a dict": [{"a": 1}, {}],
        "thing: what the checkpoint holds under this name is another kind of thing": [torch.ones(1), torch.Generator()],
        "thing.weight is missing in the checkpoint": [nn.Linear(1, 1)],
    }
    for told, others in things.items():
        for thing in others:
            (outcome,) = try_ranks(1, run, thing)
            assert "LoadError" in outcome
            assert told in outcome, outcome


def check_an_optimizers_state_that_was_not_saved_is_gone(folder: Path) -> None:
    """A script may take a step before it resumes, to try something out: no moment of it stays."""

    def run(num_tried: int) -> int:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(num_tried):
            model(torch.ones(2)).sum().backward()
            optimizer.step()
        list(everstep.Checkpointer({"model": model, "optimizer": optimizer}, directory=folder).steps(until=1))
        return len(optimizer.state)

    assert run_ranks(1, run, 0) == [0]
    assert run_ranks(1, run, 1) == [0]


def check_a_rate_that_is_a_tensor_is_filled(folder: Path) -> None:
    """A scheduler, or a graph of CUDA's, holds it, too."""

    def run(first: float) -> float:
        model, rate = nn.Linear(2, 1), torch.tensor(first)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        list(everstep.Checkpointer({"model": model, "optimizer": optimizer}, directory=folder).steps(until=1))
        assert optimizer.param_groups[0]["lr"] is rate
        return rate.item()

    assert run_ranks(1, run, 0.5) == [0.5]
    assert run_ranks(1, run, 0.25) == [0.5]
