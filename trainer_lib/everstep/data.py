"""Data for training that changes its world size: the same samples in the same global batches, whoever takes part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from everstep.batches import default_collate, fixed_place, rank_and_world, require_positive, require_same
from everstep.sampling import Order, Pace, Schedule
from everstep.stream import ElasticStream

if TYPE_CHECKING:
    from everstep.loader import Loader

__all__ = ["ElasticSampler", "ElasticStream"]


class ElasticSampler:
    """Deals out global batches of constant size, exactly, at any world size.

    Epoch after epoch of `length` samples, each shuffled by (seed, epoch), make one endless order; a step takes the next
    `global_batch` of it. A global batch may span two epochs: no tail is dropped or padded, so every sample comes exactly once an
    epoch, also when the world size changes in its middle.

    The position is a function of the step: that of the restored state (0 at step 0 in a fresh run), and `global_batch` more with
    every step from there on. So any step may be asked for, in any order, ahead of training, by any thread or DataLoader worker,
    as often as one likes. Number the steps through over all runs, as `Checkpointer.steps()` does.

    Ranks get equal shares (64 over 3 are 22, 21, 21), cut into micro batches of `micro_batch` samples (default: the whole share
    in one pass); every rank has as many of them. `rank` and `world` default to torch.distributed's; set them to the
    data-parallel index and size where other ranks share the same data (tensor parallelism).
    """

    def __init__(
        self,
        length: int,
        *,
        global_batch: int,
        seed: int = 0,
        shuffle: bool = True,
        micro_batch: int | None = None,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        require_positive("ElasticSampler", length=length, global_batch=global_batch, micro_batch=micro_batch)
        self._order = Order(length, seed, shuffle)
        self._pace = Pace(global_batch)
        self._micro_batch = micro_batch
        self._place = fixed_place("ElasticSampler", rank, world)
        self._dealt_steps: int | None = None  # one more than the highest step that was dealt; None: none was

    @property
    def length(self) -> int:
        """How many samples an epoch has."""
        return self._order.length

    @property
    def samples_consumed(self) -> int:
        """How many samples of the global order come before the end of the highest step that was dealt here: by all ranks
        together, over all epochs. Whoever deals ahead of training is ahead here too; `state_dict_at` is not."""
        return self._consumed(self._last_step())

    @property
    def epoch(self) -> int:
        """The epoch in which the global batch after the highest step that was dealt here begins."""
        return self.samples_consumed // self._order.length

    def micro_batches(
        self, step: int, dataset: Any, *, collate: Callable[[list[Any]], Any] | None = None
    ) -> Iterator[tuple[Any, float]]:
        """This rank's (batch, weight) pairs of a step. Back-propagate `loss.mean() * weight` for each of them.

        weight = samples in the batch * world / global batch; with the gradients averaged over ranks, as DDP and FSDP do, the
        sum over all micro batches is exactly the gradient of the mean over the global batch. Weight 0 is padding: run it all
        the same, forward and backward, or ranks fall out of step. `collate` defaults to torch's default_collate.

        Samples are loaded here and now; see `loader` for loading ahead.
        """
        gather = collate or default_collate()
        for indices, weight in self.micro_batch_indices(step):
            yield gather([dataset[index] for index in indices]), weight

    def micro_batch_indices(self, step: int) -> list[tuple[list[int], float]]:
        """As `micro_batches`, as indices of the dataset. The same step again gives the same samples."""
        return self.deal(step, self._micro_batch).indices(step)

    def loader(self, dataset: Any, *, micro_batch: int | None = None, num_workers: int = 0, **options: Any) -> Loader:
        """Loads ahead of the training loop, in worker processes or on a thread: `loader.micro_batches(step)`. See `Loader`.

        `options` are those of torch's DataLoader: collate_fn, pin_memory, prefetch_factor, worker_init_fn, persistent_workers,
        multiprocessing_context, timeout. `micro_batch` defaults to the sampler's.
        """
        from everstep.loader import Loader

        ahead = options.get("prefetch_factor")
        require_positive("ElasticSampler.loader", micro_batch=micro_batch, prefetch_factor=ahead)
        return Loader(self, dataset, micro_batch=micro_batch or self._micro_batch, num_workers=num_workers, **options)

    def deal(self, step: int, micro_batch: int | None) -> Schedule:
        """Who takes which samples, in this process's present world; from now on `step` counts as dealt."""
        self._pace = self._pace.begun(step)
        self._pace.at(step)
        self._dealt_steps = max(step + 1, self._dealt_steps or 0)
        return Schedule(self._order, self._pace, *rank_and_world(self._place), micro_batch)

    def state_dict(self) -> dict[str, Any]:
        """The state after the highest step that was dealt. For loops that save by themselves and do not deal ahead of training;
        the Checkpointer asks `state_dict_at`."""
        return self._state(self._last_step())

    def state_dict_at(self, step: int) -> dict[str, Any]:
        """The state after `step` finished steps, whatever was dealt: the position, and what it is a position in."""
        return self._state(step)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at a saved position. Raises ValueError where it is a position in another order; the batch size may change."""
        own = self.state_dict()
        require_same("ElasticSampler", "another order of samples", state, own, ("length", "seed", "shuffle"))
        step = state.get("step")  # 0.1.0 did not save it
        self._pace = Pace(self._pace.global_batch, None if step is None else int(step), int(state["samples_consumed"]))
        self._dealt_steps = None

    def _last_step(self) -> int | None:
        return self._pace.step if self._dealt_steps is None else self._dealt_steps

    def _consumed(self, step: int | None) -> int:
        return self._pace.position if step is None else self._pace.at(step)

    def _state(self, step: int | None) -> dict[str, Any]:
        return {
            "samples_consumed": self._consumed(step),
            "step": step,
            "length": self._order.length,
            "seed": self._order.seed,
            "shuffle": self._order.shuffle,
            "global_batch": self._pace.global_batch,
        }
