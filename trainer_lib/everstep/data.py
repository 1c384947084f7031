"""Data for training that changes its world size: the same samples in the same global batches, whoever takes part."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from everstep.sampling import Order, pieces

__all__ = ["ElasticSampler"]


class ElasticSampler:
    """Deals out global batches of constant size, exactly, at any world size.

    Epoch after epoch of `length` samples, each shuffled by (seed, epoch), make one endless order; a step takes the next
    `global_batch` of it. A global batch may span two epochs: no tail is dropped or padded, so every sample comes exactly once an
    epoch, also when the world size changes in its middle. The position (`samples_consumed`) is the only state.

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
        _require_positive(length=length, global_batch=global_batch, micro_batch=micro_batch)
        if (rank is None) != (world is None):
            raise ValueError("ElasticSampler: give both `rank` and `world`, or neither")
        self._order = Order(length, seed, shuffle)
        self._global_batch = global_batch
        self._micro_batch = micro_batch
        self._place = None if rank is None or world is None else (rank, world)
        self._step: int | None = None  # the step that was dealt last, None: none since the start or the restore
        self._start = 0  # its first position
        self._consumed = 0

    @property
    def samples_consumed(self) -> int:
        """How many samples of the global order were dealt out, by all ranks together, over all epochs."""
        return self._consumed

    @property
    def epoch(self) -> int:
        """The epoch in which the next global batch begins."""
        return self._consumed // self._order.length

    def micro_batches(
        self, step: int, dataset: Any, *, collate: Callable[[list[Any]], Any] | None = None
    ) -> Iterator[tuple[Any, float]]:
        """This rank's (batch, weight) pairs of a step. Back-propagate `loss.mean() * weight` for each of them.

        weight = samples in the batch * world / global batch; with the gradients averaged over ranks, as DDP and FSDP do, the
        sum over all micro batches is exactly the gradient of the mean over the global batch. Weight 0 is padding: run it all
        the same, forward and backward, or ranks fall out of step. `collate` defaults to torch's default_collate.
        """
        gather = collate or _default_collate()
        for indices, weight in self.micro_batch_indices(step):
            yield gather([dataset[index] for index in indices]), weight

    def micro_batch_indices(self, step: int) -> list[tuple[list[int], float]]:
        """As `micro_batches`, as indices of the dataset. The same step again gives the same samples."""
        if step != self._step:
            self._step, self._start = step, self._consumed
            self._consumed += self._global_batch
        rank, world = self._place or _distributed_place()
        dealt = pieces(self._start, self._global_batch, rank=rank, world=world, micro_batch=self._micro_batch)
        return [(self._order.samples(piece.start, piece.stop), piece.weight) for piece in dealt]

    def state_dict(self) -> dict[str, Any]:
        """The position, and what it is a position in."""
        order = self._order
        return {
            "samples_consumed": self._consumed,
            "length": order.length,
            "seed": order.seed,
            "shuffle": order.shuffle,
            "global_batch": self._global_batch,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at a saved position. Raises ValueError where it is a position in another order; the batch size may change."""
        own = self.state_dict()
        changed = [key for key in ("length", "seed", "shuffle") if state[key] != own[key]]
        if changed:
            told = ", ".join(f"{key} was {state[key]!r}, now is {own[key]!r}" for key in changed)
            raise ValueError(f"ElasticSampler: the checkpoint's position is in another order of samples: {told}")
        self._consumed = int(state["samples_consumed"])
        self._step = None


def _require_positive(**values: int | None) -> None:
    wrong = [f"{name}={value!r}" for name, value in values.items() if value is not None and value < 1]
    if wrong:
        raise ValueError(f"ElasticSampler: {', '.join(wrong)}: must be at least 1")


def _default_collate() -> Callable[[list[Any]], Any]:
    from torch.utils.data import default_collate

    collate: Callable[[list[Any]], Any] = default_collate
    return collate


def _distributed_place() -> tuple[int, int]:
    """(rank, world) of torch.distributed once it is initialised, else what the environment says."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
