"""Loading ahead, with torch's own DataLoader and from shards: the same samples, whatever was prefetched, saved or left."""

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import everstep
import torch
from ranks import run_ranks
from torch.utils.data import DataLoader

LENGTH = 101
WORKERS: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}  # each of another kind imports torch
WAYS: tuple[dict[str, Any], ...] = ({"num_workers": 0}, WORKERS)
Steps = dict[int, list[int]]  # step -> the samples that count, in the order in which a rank got them


class Numbers:
    """Sample i is a tensor that holds i."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def sampler_of(global_batch: int = 8, **more: Any) -> everstep.data.ElasticSampler:
    return everstep.data.ElasticSampler(LENGTH, global_batch=global_batch, **more)


def counted(batches: Iterator[tuple[Any, float]]) -> list[int]:
    return [int(sample) for batch, weight in batches if weight for sample in batch]


def failure(kind: type[Exception], call: Callable[[], Any]) -> Any:
    """What `call` raises."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def together(by_rank: list[Steps]) -> Steps:
    return {step: list(itertools.chain(*(steps[step] for steps in by_rank))) for step in by_rank[0]}


def undisturbed(until: int) -> Steps:
    sampler = sampler_of(rank=0, world=1)
    return {
        step: [index for indices, _ in sampler.micro_batch_indices(step) for index in indices] for step in range(until)
    }


def train(folder: Path, until: int, source: Any, of_step: Callable[[int], Any], *, leave: int | None = None) -> Steps:
    """Train with saves after each third step; in step `leave` the loop is left as if by a failure."""
    found: Steps = {}
    for step in everstep.Checkpointer({"source": source}, directory=folder, every=3).steps(until=until):
        if step == leave:
            next(iter(of_step(step)))
            break
        found[step] = counted(of_step(step))
    return found


def assert_exact_through_worlds(folder: Path, run: Callable[..., Steps], expected: Steps) -> None:
    """2, then 3, then 1 ranks; the first two are left behind their last save, which is what the next one begins at."""
    first = together(run_ranks(2, run, folder, 20, leave=5))
    assert first == {step: expected[step] for step in range(5)}
    second = together(run_ranks(3, run, folder, 20, leave=10))
    assert second == {step: expected[step] for step in range(3, 10)}
    third = together(run_ranks(1, run, folder, 20))
    assert min(third) in (6, 9), "the save after step 9 may have been skipped: the one before was not finished"
    assert third == {step: expected[step] for step in range(min(third), 20)}


def check_a_loader_is_exact_through_changes_of_world(folder: Path) -> None:
    def run(way: dict[str, Any], *args: Any, **more: Any) -> Steps:
        sampler = sampler_of()
        with sampler.loader(Numbers(), micro_batch=2, **way) as loader:
            return train(*args, source=sampler, of_step=loader.micro_batches, **more)

    for way in WAYS:
        assert_exact_through_worlds(folder / str(way["num_workers"]), functools.partial(run, way), undisturbed(20))


def check_a_plain_dataloader_that_prefetches_is_exact(folder: Path) -> None:
    """TR10: the sampler is asked for steps long before they are trained; what is saved is the step that was."""

    def run(*args: Any, **more: Any) -> Steps:
        sampler = sampler_of()
        batches: Any = None

        def of_step(step: int) -> Any:
            nonlocal batches
            if batches is None:
                walk = (indices for now in itertools.count(step) for indices, _ in sampler.micro_batch_indices(now))
                batches = iter(DataLoader(Numbers(), batch_sampler=walk, prefetch_factor=3, **WORKERS))
            return [(next(batches), 1.0)]

        return train(*args, source=sampler, of_step=of_step, **more)

    assert_exact_through_worlds(folder, run, undisturbed(20))


def check_a_stream_is_exact_through_changes_of_world(folder: Path) -> None:
    """Also with shards of unequal lengths, empty ones, a rank with fewer lanes and ranks with none."""
    lengths = [11, 0, 4, 7, 1, 3, 9, 2, 5]

    def read(shard: int, offset: int) -> Iterator[torch.Tensor]:
        return (torch.tensor(100 * shard + place) for place in range(offset, lengths[shard]))

    def stream_of(lanes: int, **more: Any) -> everstep.data.ElasticStream:
        return everstep.data.ElasticStream(
            range(9), read, global_batch=8, lanes=lanes, micro_batch=3, prefetch=5, **more
        )

    def run(lanes: int, *args: Any, **more: Any) -> Steps:
        stream = stream_of(lanes)
        return train(*args, source=stream, of_step=stream.micro_batches, **more)

    for lanes in (4, 2, 1):
        alone = stream_of(lanes, rank=0, world=1)
        expected = {step: counted(alone.micro_batches(step)) for step in range(20)}
        alone.close()
        assert_exact_through_worlds(folder / str(lanes), functools.partial(run, lanes), expected)


def check_batches_and_weights_are_the_samplers(folder: Path) -> None:
    """Padding included; whatever loads, and with a collate_fn of one's own."""
    for (rank, world), micro_batch in itertools.product(((0, 1), (2, 3), (4, 5)), (None, 1, 3)):
        sampler = sampler_of(4, rank=rank, world=world, micro_batch=micro_batch)
        plain = [list(sampler.micro_batches(step, Numbers(), collate=list)) for step in range(4)]
        for way in WAYS:
            with sampler.loader(Numbers(), collate_fn=list, **way) as loader:
                assert [list(loader.micro_batches(step)) for step in range(4)] == plain
    with sampler_of(rank=0, world=1).loader(Numbers(), micro_batch=3) as loader:
        batches = [batch for batch, _ in loader.micro_batches(0)]
    assert [type(batch) for batch in batches] == [torch.Tensor] * 3
    assert [len(batch) for batch in batches] == [3, 3, 2]


def check_any_step_in_any_order_and_left_in_its_middle(folder: Path) -> None:
    sampler, expected = sampler_of(rank=0, world=1), undisturbed(20)
    for options in (*WAYS, {**WORKERS, "persistent_workers": True}):
        with sampler.loader(Numbers(), micro_batch=3, **options) as loader:
            for step in (4, 5, 5, 2, 3, 15, 16):
                assert counted(loader.micro_batches(step)) == expected[step], (options, step)
            at_the_start = sampler.state_dict_at(0)
            sampler.load_state_dict({**at_the_start, "step": 17})  # the next step, at another position
            assert counted(loader.micro_batches(17)) == expected[0]
            sampler.load_state_dict(at_the_start)
            for step in range(17, 20):
                for batch, _ in loader.micro_batches(step):
                    assert batch.tolist() == expected[step][:3]
                    break
            assert counted(loader.micro_batches(19)) == expected[19]
            left = loader.micro_batches(3)
            next(left)
            sampler.load_state_dict({**sampler.state_dict(), "step": 100, "samples_consumed": 16})
            assert counted(loader.micro_batches(100)) == expected[2]
            error = failure(RuntimeError, functools.partial(next, left))
            assert "micro_batches(3) cannot go on" in str(error)
            loader.close()
            assert counted(loader.micro_batches(101)) == expected[3]
            sampler.load_state_dict(at_the_start)
