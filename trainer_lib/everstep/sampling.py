"""Which sample is the p-th of all epochs, and which rank takes which samples of a step. Pure integers, no torch.

The global order does not depend on the world, and the position of a step in it not on who has asked for which step before: a
step and its position are all there is to save.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

_ROUNDS = 6
_MASK = (1 << 64) - 1


class Permutation:
    """A pseudo-random bijection of [0, length), fixed by (seed, epoch); no memory, any element at once.

    A Feistel network over the next even power of two; numbers that fall outside are sent through again until they fall inside.
    """

    def __init__(self, length: int, *, seed: int, epoch: int) -> None:
        self._length = length
        self._half_bits = max(1, ((length - 1).bit_length() + 1) // 2)
        self._half_mask = (1 << self._half_bits) - 1
        digest = hashlib.sha256(f"everstep-order:{seed}:{epoch}".encode()).digest()
        half = hashlib.sha256(digest).digest()
        material = digest + half
        self._keys = [int.from_bytes(material[8 * i : 8 * i + 8], "little") for i in range(_ROUNDS)]

    def __getitem__(self, index: int) -> int:
        value = self._shuffle(index)
        while value >= self._length:
            value = self._shuffle(value)
        return value

    def _shuffle(self, value: int) -> int:
        left, right = value >> self._half_bits, value & self._half_mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right ^ key) & self._half_mask)
        return left << self._half_bits | right


def _mix(value: int) -> int:
    """The finalizer of splitmix64: every bit of the input moves about half of the output's."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


@dataclass(frozen=True)
class Order:
    """The endless order of samples: epoch after epoch, each a permutation of its own (or as they come, unshuffled)."""

    length: int
    seed: int
    shuffle: bool

    def samples(self, start: int, stop: int) -> list[int]:
        """The dataset's indices at positions [start, stop). A range may span epochs: no tail is dropped, none is padded."""
        found: list[int] = []
        while start < stop:
            epoch, index = divmod(start, self.length)
            end = min(stop, (epoch + 1) * self.length)
            found.extend(self._part(epoch, index, index + end - start))
            start = end
        return found

    def _part(self, epoch: int, first: int, last: int) -> list[int]:
        if not self.shuffle:
            return list(range(first, last))
        permutation = Permutation(self.length, seed=self.seed, epoch=epoch)
        return [permutation[index] for index in range(first, last)]


def share(total: int, rank: int, world: int) -> tuple[int, int]:
    """The part [first, last) of `total` samples that a rank takes: sizes differ by one at most, 64 over 3 are 22, 21, 21."""
    size, rest = divmod(total, world)
    first = rank * size + min(rank, rest)
    return first, first + size + (rank < rest)


@dataclass(frozen=True)
class Piece:
    """One micro batch: positions [start, stop) of the global order; `weight` 0: padding, there only to take part."""

    start: int
    stop: int
    weight: float


def pieces(
    start: int, global_batch: int, *, rank: int, world: int, micro_batch: int | None, unit: int = 1
) -> list[Piece]:
    """A rank's micro batches of the step that begins at position `start`; as many on every rank.

    The weight of a micro batch of b samples is b * world / global_batch: gradients of loss means times weights, summed over a
    rank's micro batches and averaged over ranks, are the gradient of the mean over the global batch. A rank that has run out
    of samples repeats one with weight 0. Samples are shared out in runs of `unit`, which divides the global batch.
    """
    first, last = (unit * end for end in share(global_batch // unit, rank, world))
    largest = unit * -(-global_batch // unit // world)
    size = micro_batch or largest
    return [_piece(start, first + offset, last, size, world / global_batch) for offset in range(0, largest, size)]


def _piece(start: int, first: int, last: int, size: int, scale: float) -> Piece:
    stop = min(first + size, last)
    if stop <= first:
        padding = start + max(0, last - 1)
        return Piece(padding, padding + 1, 0.0)
    return Piece(start + first, start + stop, (stop - first) * scale)


@dataclass(frozen=True)
class Pace:
    """How many samples come before a step: `position` before `step`, and `global_batch` more with each step from there on.

    `step` None: the first step that is asked for has this position.
    """

    global_batch: int
    step: int | None = 0
    position: int = 0

    def begun(self, step: int) -> Pace:
        """The same pace with a base step: `step`, where it has none."""
        return replace(self, step=step) if self.step is None else self

    def at(self, step: int) -> int:
        """The position of `step`. Raises ValueError before the base: nobody knows the global batch of those steps."""
        base = step if self.step is None else self.step
        if step < base:
            raise ValueError(
                f"step {step} comes before step {base}, where the restored position is: number the steps through over "
                "all runs, as Checkpointer.steps() does"
            )
        return self.position + (step - base) * self.global_batch


@dataclass(frozen=True)
class Schedule:
    """Which samples a rank takes in which step: a pure function of the step."""

    order: Order
    pace: Pace
    rank: int
    world: int
    micro_batch: int | None

    def pieces(self, step: int) -> list[Piece]:
        """The rank's micro batches as positions."""
        return pieces(
            self.pace.at(step), self.pace.global_batch, rank=self.rank, world=self.world, micro_batch=self.micro_batch
        )

    def indices(self, step: int) -> list[tuple[list[int], float]]:
        """The rank's micro batches as (indices of the dataset, weight)."""
        return [(self.order.samples(piece.start, piece.stop), piece.weight) for piece in self.pieces(step)]
