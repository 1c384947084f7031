"""Worker processes and threads that load: how they fail, what they draw from, how they end."""

import gc
import itertools
import multiprocessing
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from checks_loading import LENGTH, WAYS, WORKERS, Numbers, counted, failure, sampler_of, undisturbed
from ranks import try_ranks


class Dice(Numbers):
    """Sample i is i and what the process's random streams gave for it."""

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(()).item(), random.random()


class Broken(Numbers):
    """Fails for one index, as long as a file is there."""

    def __init__(self, marker: Path, error: Exception) -> None:
        self.marker, self.error = marker, error

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 40 and self.marker.exists():
            raise self.error
        return torch.tensor(index)


def check_failures_keep_their_type_and_say_which_samples(folder: Path) -> None:
    """And the step can be asked for again."""
    sampler, expected = sampler_of(rank=0, world=1), undisturbed(13)
    (broken,) = (step for step, indices in expected.items() if 40 in indices and indices.index(40) < LENGTH)
    place = expected[broken].index(40) // 2 * 2
    for way, error in itertools.product(WAYS, (ValueError("bad sample"), KeyError("lost"))):
        marker = folder / "broken"
        marker.touch()
        with sampler.loader(Broken(marker, error), micro_batch=2, **way) as loader:
            assert [counted(loader.micro_batches(step)) for step in range(broken)] == list(expected.values())[:broken]
            caught = failure(type(error), lambda: list(loader.micro_batches(broken)))
            assert str(error.args[0]) in str(caught)
            told = ", ".join(map(str, expected[broken][place : place + 2]))
            if sys.version_info >= (3, 11):
                assert caught.__notes__ == [f"while loading the samples with index {told} of step {broken}"]
            assert len(multiprocessing.active_children()) == way["num_workers"]
            marker.unlink()
            assert counted(loader.micro_batches(broken)) == expected[broken]
            assert len(multiprocessing.active_children()) == way["num_workers"]
        assert multiprocessing.active_children() == []


def check_loading_takes_nothing_out_of_the_trainings_random_streams(folder: Path) -> None:
    """With workers, whose own streams depend on seed, position and rank only. (A thread shares the process's streams.)"""

    def draws(step: int, rank: int = 0, **more: Any) -> Any:
        sampler = sampler_of(rank=rank, world=2, **more)
        sampler.load_state_dict({**sampler.state_dict(), "step": step, "samples_consumed": 8 * step})
        with sampler.loader(Dice(), collate_fn=list, **{**WORKERS, "num_workers": 1}) as loader:
            return [[sample[1:] for sample in batch] for batch, _ in loader.micro_batches(step)]

    torch.manual_seed(1)
    random.seed(1)
    before = torch.get_rng_state(), random.getstate()
    first = draws(3)
    for way in WAYS:
        with sampler_of(rank=0, world=1).loader(Numbers(), **way) as loader:
            list(loader.micro_batches(0))
            list(loader.micro_batches(9))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    torch.manual_seed(2)
    random.seed(2)
    assert draws(3) == first
    others = [draws(4), draws(3, rank=1), draws(3, seed=1)]
    assert len({str(found) for found in [first, *others]}) == 4


def check_workers_end_when_the_loader_does(folder: Path) -> None:
    for options in ({}, {"persistent_workers": True}):
        sampler = sampler_of(rank=0, world=1)
        loader = sampler.loader(Numbers(), **WORKERS, **options)
        for how in ("close", "reference"):
            batches = loader.micro_batches(0)
            next(batches)
            assert len(multiprocessing.active_children()) == 2
            if how == "close":
                loader.close()
            else:
                del loader, batches
                gc.collect()
            assert multiprocessing.active_children() == [], how


def check_workers_and_threads_end_with_the_process(folder: Path) -> None:
    """A script that closes nothing ends well, also where it ends by an exception, and leaves no process."""
    script = """
import os, sys, time
from pathlib import Path
import everstep

def tell(worker):
    (folder / str(os.getpid())).touch()

folder, status = Path(sys.argv[1]), int(sys.argv[2])
sampler = everstep.data.ElasticSampler(99, global_batch=4, micro_batch=2)
threaded = sampler.loader(range(99))
workers = sampler.loader(range(99), num_workers=2, worker_init_fn=tell, multiprocessing_context="fork")
stream = everstep.data.ElasticStream(["a"], lambda shard, offset: iter(range(offset, 999)), global_batch=4, lanes=1)
for batches in (workers.micro_batches(0), threaded.micro_batches(0), stream.micro_batches(0)):
    next(batches)
while len(list(folder.iterdir())) < 2:  # a worker that ends before it has begun would not be seen
    time.sleep(0.01)
if status:
    raise SystemExit(status)
"""
    for status in (0, 7):
        where = folder / str(status)
        where.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", script, str(where), str(status)], capture_output=True, text=True, timeout=55
        )
        assert (done.returncode, done.stderr) == (status, "")
        workers = [int(path.name) for path in where.iterdir()]
        assert len(workers) == 2
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def check_options_reach_the_dataloader_and_impossible_ones_are_refused(folder: Path) -> None:
    sampler = sampler_of(rank=0, world=1)
    with sampler.loader(Numbers(), num_workers=1, multiprocessing_context="spawn") as loader:
        assert counted(loader.micro_batches(0)) == undisturbed(1)[0]

    def mark(worker: int) -> None:
        os.environ["MARK"] = f"worker {worker}"

    def marked(samples: list[Any]) -> str:
        return os.environ["MARK"]

    with sampler.loader(
        Numbers(),
        worker_init_fn=mark,
        collate_fn=marked,
        prefetch_factor=5,
        timeout=50,
        **{**WORKERS, "num_workers": 1},
    ) as loader:
        assert [batch for batch, _ in loader.micro_batches(0)] == ["worker 0"]
    for options, told in (
        ({"batch_size": 4, "shuffle": True}, "batch_size, shuffle: the sampler decides"),
        ({"generator": torch.Generator()}, "generator: the sampler decides"),
        ({"persistent_workers": True}, "persistent_workers"),  # torch's own: there are no workers
        ({"colate_fn": list}, "colate_fn"),
        ({"micro_batch": 0, "prefetch_factor": 0}, "micro_batch=0, prefetch_factor=0"),
    ):
        (outcome,) = try_ranks(1, lambda options=options: sampler.loader(Numbers(), **options))
        assert told in outcome, outcome
    (outcome,) = try_ranks(1, lambda: sampler.loader(range(7)))
    assert "the dataset has 7 samples, the sampler deals out 101" in outcome
    (outcome,) = try_ranks(1, lambda: sampler.loader(iter([])))
    assert "everstep.data.ElasticStream" in outcome
