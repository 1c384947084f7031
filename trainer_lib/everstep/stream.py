"""Exact positions in data that can only be read forward: shards, and how many samples of each were taken."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from everstep.batches import (
    Collate,
    default_collate,
    fixed_place,
    rank_and_world,
    require_positive,
    require_same,
)
from everstep.lanes import Lane, Position, Read, Route, read_steps
from everstep.prefetch import Batches, Prefetcher, StepCursor, on_same_device
from everstep.sampling import Pace, Piece, pieces, share

_KEPT_STEPS = 100  # of the past: for loops that ask ahead of training


class ElasticStream:
    """Deals out global batches of constant size from shards that are read from front to back, exactly, at any world size.

        def read(shard, offset):  # the samples of a shard from sample `offset` on; `offset` may be its length
            with open(shard) as lines:
                yield from itertools.islice(lines, offset, None)

        stream = everstep.data.ElasticStream(sorted(paths), read, global_batch=64, lanes=16)
        checkpointer = everstep.Checkpointer({"model": model, "optimizer": optimizer, "stream": stream})
        for step in checkpointer.steps(until=10_000):
            for batch, weight in stream.micro_batches(step): ...

    The order does not depend on the world. There are `lanes` lanes (default: `global_batch`, which must be a multiple of them), as
    many as ever in the life of a run. Lane i has the shards i, i + lanes, i + 2 * lanes, ..., and walks them one after the other,
    epoch after epoch, in an order of (seed, epoch) where `shuffle` is true. A step takes `global_batch / lanes` samples of each
    lane, and the lanes are dealt out to the ranks. So a rank holds as many shards open as it has lanes, and ranks beyond the
    number of lanes have no data: they repeat one sample with weight 0.

    Exact: which samples a step has, in any world; every sample comes once in each pass of its lane, and none is dropped or
    padded. Not exact: epochs. Lanes whose shards are short end their passes earlier than others, so that nothing says when
    "the" epoch ends; shards of about equal length, as many for each lane, keep them close together. Samples within a shard come
    as `read` gives them, which must be the same each time; shuffle them when you write the shards.

    Shards are read and batches made on a background thread, `prefetch` micro batches ahead; what was read ahead and not trained
    on is read again after a restart. `shards` are told apart by their repr: names, numbers, paths. Weights, `micro_batch`, `rank`
    and `world`: see `ElasticSampler`. `collate_fn` defaults to torch's default_collate.
    """

    def __init__(
        self,
        shards: Sequence[Any],
        read: Read,
        *,
        global_batch: int,
        lanes: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        micro_batch: int | None = None,
        collate_fn: Collate | None = None,
        prefetch: int = 2,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        require_positive(
            "ElasticStream", global_batch=global_batch, lanes=lanes, micro_batch=micro_batch, prefetch=prefetch
        )
        self._shards = tuple(shards)
        self._read = read
        self._route = Route(len(self._shards), lanes or global_batch, seed, shuffle)
        _require_lanes(self._route.num_lanes, len(self._shards), global_batch)
        self._identity = _identity(self._shards)
        self._pace = Pace(global_batch)
        self._base = [Position()] * self._route.num_lanes  # of all lanes, before the first step of `_pace`
        self._micro_batch = micro_batch
        self._collate = collate_fn
        self._prefetch = prefetch
        self._fixed = fixed_place("ElasticStream", rank, world)
        self._place = (0, 0)  # the (rank, world) whose lanes `_positions` has
        self._positions: dict[int, list[Position]] = {}  # step -> where this rank's lanes are before it
        self._cursor: StepCursor | None = None
        self._dealt_steps: int | None = None  # one more than the highest step that was dealt; None: none was

    @property
    def samples_consumed(self) -> int:
        """How many samples come before the end of the highest step that was dealt here: by all ranks together, over all epochs."""
        return self._pace.at(self._last_step())

    def micro_batches(self, step: int) -> Iterator[tuple[Any, float]]:
        """This rank's (batch, weight) pairs of a step. Back-propagate `loss.mean() * weight` for each of them.

        Meant to be asked for one step after the other. A later one than the next costs the reading of all between; an earlier one,
        up to 100 steps back and never before the restored one, costs opening the shards again.
        """
        cursor = self._cursor_before(step)
        self._dealt_steps = max(step + 1, self._dealt_steps or 0)
        for batch_and_weight in cursor.take(step):
            self._forget_before(step - _KEPT_STEPS)
            yield batch_and_weight

    def state_dict(self) -> dict[str, Any]:
        """The state after the highest step that was dealt, of this rank's lanes only; see `state_dict_at`."""
        return self.state_dict_at(self._last_step())

    def state_dict_at(self, step: int) -> dict[str, Any]:
        """The state after `step` finished steps, however much was read ahead. Of the lanes it holds this rank's only, so each rank
        has other keys: a checkpoint must hold those of all ranks."""
        consumed = self._pace.at(step)
        first, last = self._own_lanes()
        positions = self._positions_before(step)
        state: dict[str, Any] = {
            "samples_consumed": consumed,
            "step": step,
            "global_batch": self._pace.global_batch,
            **self._order(),
        }
        if first < last:  # one value, not one a lane: each costs the checkpoint about a kilobyte
            state["lanes"] = {str(first): tuple(tuple(position) for position in positions)}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at a saved position, that of all ranks together. Raises ValueError where it is one in other shards, lanes or orders,
        or where lanes are missing; the batch size may change."""
        require_same("ElasticStream", "another order of samples", state, self._order(), tuple(self._order()))
        saved = {int(first): positions for first, positions in state.get("lanes", {}).items()}
        found = {first + place: Position(*one) for first, part in saved.items() for place, one in enumerate(part)}
        missing = [lane for lane in range(self._route.num_lanes) if lane not in found]
        if missing:
            raise ValueError(
                f"ElasticStream: the checkpoint lacks the positions of {len(missing)} of {self._route.num_lanes} lanes "
                f"(the first is lane {missing[0]}): each rank's state_dict has its own lanes only, save those of all ranks"
            )
        self.close()
        self._base = [found[lane] for lane in range(self._route.num_lanes)]
        self._pace = Pace(self._pace.global_batch, int(state["step"]), int(state["samples_consumed"]))
        self._positions.clear()
        self._place = (0, 0)
        self._dealt_steps = None

    def close(self) -> None:
        """End the background thread, once it is done with the sample that it reads. The next step asked for starts it again."""
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            cursor.close()

    def _last_step(self) -> int:
        return self._first_step() if self._dealt_steps is None else self._dealt_steps

    def _first_step(self) -> int:
        assert self._pace.step is not None
        return self._pace.step

    def _order(self) -> dict[str, Any]:
        route = self._route
        return {
            "num_shards": route.num_shards,
            "shards": self._identity,
            "num_lanes": route.num_lanes,
            "seed": route.seed,
            "shuffle": route.shuffle,
        }

    # ------------------------------------------------------------------ where the rank's lanes are

    def _own_lanes(self) -> tuple[int, int]:
        """The lanes [first, last) of this rank in the present world; what is known of other lanes is forgotten."""
        place = rank_and_world(self._fixed)
        first, last = share(self._route.num_lanes, *place)
        if place != self._place:
            self.close()
            self._place = place
            self._positions = {self._first_step(): self._base[first:last]}
        return first, last

    def _positions_before(self, step: int) -> list[Position]:
        if step not in self._positions:
            self._cursor_before(step).skip_to(step)
        return self._positions[step]

    def _cursor_before(self, step: int) -> StepCursor:
        """The cursor that comes to `step` by reading on, from as near as is known."""
        self._pace.at(step)
        self._own_lanes()
        if self._cursor is None or not self._cursor.is_before(step):
            self.close()
            self._cursor = self._start(max(self._known_until(step)))
        return self._cursor

    def _known_until(self, step: int) -> list[int]:
        known = [one for one in self._positions if one <= step]
        if not known:
            raise ValueError(
                f"ElasticStream: step {step} is too long ago: positions are remembered for {_KEPT_STEPS} steps before the "
                f"newest one that was asked for, which is step {self._last_step() - 1}"
            )
        return known

    def _forget_before(self, step: int) -> None:
        for old in [one for one in list(self._positions) if one < step]:
            del self._positions[old]

    # ------------------------------------------------------------------ reading

    def _start(self, step: int) -> StepCursor:
        dealt = self._pieces()
        first, _ = self._own_lanes()
        lanes = [self._lane(first + place, position) for place, position in enumerate(self._positions[step])]
        spare = self._place[0] % self._route.num_lanes
        samples = read_steps(
            lanes,
            dealt,
            step=step,
            unit=self._unit(),
            spare=self._lane(spare, self._base[spare]),
            record=self._positions.__setitem__,
        )
        batches = _batches(samples, self._collate or default_collate())
        return StepCursor(
            Prefetcher(batches, depth=self._prefetch, on_start=on_same_device()), step=step, num_each=len(dealt)
        )

    def _pieces(self) -> list[Piece]:
        """This rank's micro batches, as places in any step's global batch."""
        rank, world = self._place
        return pieces(
            0, self._pace.global_batch, rank=rank, world=world, micro_batch=self._micro_batch, unit=self._unit()
        )

    def _unit(self) -> int:
        """How many samples a step takes of each lane."""
        return self._pace.global_batch // self._route.num_lanes

    def _lane(self, number: int, position: Position) -> Lane:
        return Lane(number, self._route, self._shards, self._read, position)


def _batches(micro_batches: Iterator[tuple[list[Any], float]], collate: Collate) -> Batches:
    for samples, weight in micro_batches:
        yield collate(samples), weight


def _require_lanes(num_lanes: int, num_shards: int, global_batch: int) -> None:
    fitting = [lanes for lanes in range(1, num_shards + 1) if global_batch % lanes == 0]
    if not fitting:
        raise ValueError("ElasticStream: `shards` is empty")
    if num_lanes in fitting:
        return
    wrong = "some lanes would have no shard" if num_lanes > num_shards else "lanes must divide the global batch"
    raise ValueError(
        f"ElasticStream: {num_lanes} lanes, {num_shards} shards, global_batch={global_batch}: {wrong}; the largest number of "
        f"lanes that fits is lanes={fitting[-1]}. No more ranks than lanes have data: for more lanes, write more shards"
    )


def _identity(shards: Sequence[Any]) -> str:
    """What tells one list of shards from another. Raises ValueError where their reprs are no names."""
    nameless: Any = object.__repr__
    for shard in shards:
        if type(shard).__repr__ is nameless:
            raise ValueError(
                f"ElasticStream: shard {shard!r} has no name that is the same in the next run: give names, numbers or paths"
            )
    return hashlib.sha256("\n".join(map(repr, shards)).encode()).hexdigest()[:16]
