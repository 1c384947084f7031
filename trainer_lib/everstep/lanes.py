"""Lanes of shards: which lane walks which shards in which order, and where it is. No torch, and no rank.

The number of lanes is fixed for the life of a run, whatever the world: that is what makes the order of an iterable data set, of
which nobody knows the length, independent of who reads it.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from everstep.batches import tell_where
from everstep.sampling import Permutation, Piece

Read = Callable[[Any, int], Iterable[Any]]


class Position(NamedTuple):
    """Where a lane is: in its pass `epoch`, in the `place`-th shard of that pass, after `offset` samples of that shard."""

    epoch: int = 0
    place: int = 0
    offset: int = 0

    def next_shard(self, num_shards: int) -> Position:
        """The beginning of the next shard of a lane that has so many."""
        last = self.place + 1 == num_shards
        return Position(self.epoch + 1, 0) if last else Position(self.epoch, self.place + 1)


@dataclass(frozen=True)
class Route:
    """The shards of each lane: lane i of n has the shards i, i + n, i + 2n, ... in an order of its own in each epoch."""

    num_shards: int
    num_lanes: int
    seed: int
    shuffle: bool

    def length(self, lane: int) -> int:
        """How many shards the lane has."""
        return len(range(lane, self.num_shards, self.num_lanes))

    def shard(self, lane: int, position: Position) -> int:
        """The number of the shard that the lane is in."""
        place = position.place
        if self.shuffle:
            place = Permutation(self.length(lane), seed=_lane_seed(self.seed, lane), epoch=position.epoch)[place]
        return lane + place * self.num_lanes


def _lane_seed(seed: int, lane: int) -> int:
    return int.from_bytes(hashlib.sha256(f"everstep-lane:{seed}:{lane}".encode()).digest()[:8], "little")


class Lane:
    """The samples of one lane from a position on, pass after pass; `position` is that of the sample that comes next."""

    def __init__(self, number: int, route: Route, shards: Sequence[Any], read: Read, position: Position) -> None:
        self.position = position
        self._number = number
        self._route = route
        self._shards = shards
        self._read = read

    def samples(self) -> Iterator[Any]:
        """The samples, without end. Raises ValueError where none of the lane's shards holds any."""
        num_shards = self._route.length(self._number)
        num_barren = 0
        while num_barren < 2 * num_shards:  # so many hold a whole pass, wherever in a pass they begin
            shard = self._shards[self._route.shard(self._number, self.position)]
            before = self.position.offset
            yield from self._of_shard(shard)
            num_barren = num_barren + 1 if self.position.offset == before else 0
            self.position = self.position.next_shard(num_shards)
        names = ", ".join(repr(self._shards[number]) for number in self._numbers()[:5])
        raise ValueError(
            f"ElasticStream: lane {self._number} has no sample: all its {num_shards} shards are empty ({names}); take empty "
            "shards out of the list, or use fewer `lanes`"
        )

    def _of_shard(self, shard: Any) -> Iterator[Any]:
        try:
            found = iter(self._read(shard, self.position.offset))
            while True:
                try:
                    sample = next(found)
                except StopIteration:
                    return
                self.position = self.position._replace(offset=self.position.offset + 1)
                yield sample
        except Exception as error:
            tell_where(error, f"while reading sample {self.position.offset} of shard {shard!r}")
            raise

    def _numbers(self) -> range:
        return range(self._number, self._route.num_shards, self._route.num_lanes)


def read_steps(
    lanes: Sequence[Lane],
    dealt: Sequence[Piece],
    *,
    step: int,
    unit: int,
    spare: Lane,
    record: Callable[[int, list[Position]], None],
) -> Iterator[tuple[list[Any], float]]:
    """(samples, weight) of the micro batches `dealt` in `step`, in the next one and so on; `unit` samples of each lane in a step.

    What is padded repeats the rank's last sample; a rank without lanes reads one of lane `spare`, once. `record` is told where
    the lanes are before a step, not later than the last micro batch of the step before is given.
    """
    streams = [lane.samples() for lane in lanes]
    last = [] if lanes else [next(spare.samples())]
    for now in itertools.count(step):
        samples = (next(stream) for stream in streams for _ in range(unit))
        for place, piece in enumerate(dealt, start=1):
            if piece.weight:
                batch = list(itertools.islice(samples, piece.stop - piece.start))
                last = batch[-1:]
            else:
                batch = last
            if place < len(dealt) or not piece.weight:
                last = copy.deepcopy(last)  # a collate_fn may take its samples apart
            if place == len(dealt):
                record(now + 1, [lane.position for lane in lanes])
            yield batch, piece.weight
