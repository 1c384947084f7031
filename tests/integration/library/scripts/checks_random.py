"""Random streams where the world changes: ranks that drew alike go on alike, those that did not never do (TR9)."""

import random
import shutil
from pathlib import Path
from typing import Any

import everstep
import torch
import torch.distributed as dist
from everstep.state.agreement import classes
from ranks import run_ranks


def draw(folder: Path, until: int, torch_seeds: list[int], python_seeds: list[int]) -> tuple[Any, Any]:
    """What this rank draws in the last step from torch's stream and from Python's; seeded as a script does it at its start."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(torch_seeds[rank])
    random.seed(python_seeds[rank])
    drawn: tuple[Any, Any] = (None, None)
    for _ in everstep.Checkpointer({"progress": {}}, directory=folder).steps(until=until):
        drawn = torch.rand(2).tolist(), random.random()
    return drawn


def undisturbed(seed: int, step: int) -> list[float]:
    """What torch's stream gives in that step."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(2, generator=generator).tolist() for _ in range(step)][-1]


def check_streams_of_several_ranks_stay_equal_and_different_as_they_were(folder: Path) -> None:
    """Also those of more ranks than there were; however the script seeds this time."""
    run_ranks(3, draw, folder, 2, [7, 7, 7], [1, 1, 2])
    found = run_ranks(5, draw, folder, 3, [3, 4, 5, 6, 7], [8] * 5)
    assert [of_torch for of_torch, _ in found] == [undisturbed(7, 3)] * 5
    assert classes([of_python for _, of_python in found]) == [0, 0, 1, 2, 3]


def check_streams_of_one_rank_go_on_alike_where_the_script_seeds_alike(folder: Path) -> None:
    """One rank alone says nothing of others: the script does, as it seeds its ranks this time."""
    run_ranks(1, draw, folder / "first", 2, [7], [1])
    for name, torch_seeds, python_seeds in (("one", [3, 3], [4, 5]), ("other", [3, 4], [5, 5])):
        shutil.copytree(folder / "first", folder / name)
        found = run_ranks(2, draw, folder / name, 3, torch_seeds, python_seeds)
        of_torch, of_python = zip(*found, strict=True)
        assert classes([tuple(drawn) for drawn in of_torch]) == classes(torch_seeds)
        assert classes(list(of_python)) == classes(python_seeds)
        assert (of_torch[0] == undisturbed(7, 3)) is (torch_seeds == [3, 3])
