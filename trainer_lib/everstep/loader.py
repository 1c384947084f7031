"""Loading ahead of the training loop with torch's DataLoader: which samples come is decided here, how they are loaded is torch's."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from everstep.batches import tell_where
from everstep.prefetch import Batches, Prefetcher, StepCursor, on_same_device
from everstep.sampling import Schedule

if TYPE_CHECKING:
    from everstep.data import ElasticSampler

_OURS = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "generator", "in_order")
_TOLD_INDICES = 20


class Loader:
    """Micro batches of one step after the other, loaded ahead by `num_workers` processes; 0: on one thread of this process.

        loader = sampler.loader(dataset, micro_batch=8, num_workers=4)
        for step in checkpointer.steps(until=10_000):
            for batch, weight in loader.micro_batches(step): ...

    Exact, whatever is loaded ahead, and through any change of the world: which samples a step has, as by
    `ElasticSampler.micro_batches`. Not exact after a restart: what the dataset draws from random streams (augmentation), unless
    it seeds them by the sample's index. Worker processes get seeds of their own by (sampler's seed, position, rank), so that
    loading takes nothing out of the training's random stream; but they begin at each start of the loader, and hold for as long as
    it goes on. With num_workers=0 the dataset runs beside the training and shares its random streams: give a dataset that draws
    from them a worker.

    Ask for one step after the other. Any other step is loaded exactly too, but workers (if not persistent) and prefetching start
    anew, as they do when the world or the sampler's position has changed. A failure of the dataset is raised in
    `micro_batches` with its own type where torch can make one, and says which samples were being loaded.

    Workers end with `close` (or `with`), with the last reference to the loader, and with the process.
    """

    def __init__(
        self, sampler: ElasticSampler, dataset: Any, *, micro_batch: int | None, num_workers: int, **options: Any
    ) -> None:
        _refuse(dataset, sampler.length, options)
        self._sampler = sampler
        self._micro_batch = micro_batch
        self._threaded = num_workers == 0
        self._depth = int((options.pop("prefetch_factor", None) or 2) if self._threaded else 0)
        self._keeps_workers = bool(options.get("persistent_workers"))
        self._walk = _Walk()
        self._make: Callable[[], Any] = functools.partial(
            DataLoader,
            dataset,
            batch_sampler=self._walk,
            num_workers=num_workers,
            generator=self._walk.generator,
            **options,
        )
        self._loader: Any = self._make()  # now: what torch refuses is told where it was written
        self._iterator: Any = None
        self._cursor: StepCursor | None = None

    def micro_batches(self, step: int) -> Iterator[tuple[Any, float]]:
        """This rank's (batch, weight) pairs of a step, as `ElasticSampler.micro_batches` gives them."""
        schedule = self._sampler.deal(step, self._micro_batch)
        cursor = self._cursor_at(step, schedule)
        dealt = schedule.pieces(step)
        for piece, batch in zip(dealt, cursor.take(step), strict=True):
            yield batch, piece.weight

    def close(self) -> None:
        """End workers and thread. The next step asked for starts them again."""
        self._stop()
        _end_workers(self._iterator)
        self._loader = self._iterator = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cursor_at(self, step: int, schedule: Schedule) -> StepCursor:
        if self._cursor is None or self._walk.schedule != schedule or not self._cursor.is_next(step):
            self._stop()
            self._cursor = self._start(step, schedule)
        return self._cursor

    def _stop(self) -> None:
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            cursor.close()
        if not self._keeps_workers:
            _end_workers(self._iterator)

    def _start(self, step: int, schedule: Schedule) -> StepCursor:
        self._walk.begin(step, schedule)
        if self._loader is None:
            self._loader = self._make()
        num_each = len(schedule.pieces(step))
        self._iterator = iter(self._loader)
        batches = _with_place(self._iterator, schedule, step, num_each)
        ahead = Prefetcher(batches, depth=self._depth, on_start=on_same_device()) if self._threaded else batches
        return StepCursor(ahead, step=step, num_each=num_each)


class _Walk:
    """A batch sampler: the indices of the micro batches of a step, the next step and so on; and the workers' seed."""

    def __init__(self) -> None:
        self.generator = torch.Generator()
        self.schedule: Schedule | None = None
        self._step = 0

    def begin(self, step: int, schedule: Schedule) -> None:
        """The next iteration begins at `step`."""
        self._step, self.schedule = step, schedule
        at = f"everstep-workers:{schedule.order.seed}:{schedule.pace.at(step)}:{schedule.rank}"
        self.generator.manual_seed(int.from_bytes(hashlib.sha256(at.encode()).digest()[:7], "little"))

    def __iter__(self) -> Iterator[list[int]]:
        assert self.schedule is not None
        for step in itertools.count(self._step):
            for indices, _ in self.schedule.indices(step):
                yield indices


def _with_place(batches: Iterator[Any], schedule: Schedule, step: int, num_each: int) -> Batches:
    """The same batches; a failure says which samples it was about."""
    for now in itertools.count(step):
        for place in range(num_each):
            try:
                batch = next(batches)
            except Exception as error:
                indices, _ = schedule.indices(now)[place]
                more = ", ..." if len(indices) > _TOLD_INDICES else ""
                told = ", ".join(map(str, indices[:_TOLD_INDICES]))
                tell_where(error, f"while loading the samples with index {told}{more} of step {now}")
                raise
            yield batch


def _end_workers(iterator: Any) -> None:
    """What dropping the last reference does; after a failure its traceback holds others, for as long as it likes."""
    end = getattr(iterator, "_shutdown_workers", None)
    if end is not None:
        end()


def _refuse(dataset: Any, length: int, options: dict[str, Any]) -> None:
    """Raises ValueError for what would not be exact."""
    taken = [name for name in _OURS if name in options]
    if taken:
        raise ValueError(f"ElasticSampler.loader: {', '.join(taken)}: the sampler decides which samples come, and when")
    if not hasattr(dataset, "__getitem__"):
        raise ValueError(
            "ElasticSampler.loader: the dataset has no __getitem__; for data that can only be read forward there is "
            "everstep.data.ElasticStream"
        )
    if hasattr(dataset, "__len__") and len(dataset) < length:
        raise ValueError(
            f"ElasticSampler.loader: the dataset has {len(dataset)} samples, the sampler deals out {length}"
        )
