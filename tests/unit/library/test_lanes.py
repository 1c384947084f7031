"""Which shards a lane walks, in which order, and how it comes from one to the next."""

from __future__ import annotations

import itertools

from everstep.lanes import Lane, Position, Route


def test_epochs_and_lanes_shuffle_differently() -> None:
    route = Route(60, 2, seed=0, shuffle=True)
    walks = {
        tuple(route.shard(lane, Position(epoch, place)) // 2 for place in range(30))
        for lane in (0, 1)
        for epoch in range(3)
    }
    assert len(walks) == 6
    assert all(sorted(walk) == list(range(30)) for walk in walks)


def test_a_lane_that_stands_at_the_end_of_its_only_shard_with_samples_goes_on() -> None:
    lengths = [0, 2, 0]

    def read(shard: int, offset: int) -> list[tuple[int, int]]:
        return [(shard, place) for place in range(offset, lengths[shard])]

    lane = Lane(0, Route(3, 1, seed=0, shuffle=False), range(3), read, Position(4, 1, 2))
    assert list(itertools.islice(lane.samples(), 3)) == [(1, 0), (1, 1), (1, 0)]
    assert lane.position == (6, 1, 1)


def test_empty_shards_between_passes_are_no_end() -> None:
    """The only one with samples may come first in a pass and last in the next."""
    for full in range(5):

        def read(shard: int, offset: int, full: int = full) -> range:
            return range(offset, 2 * (shard == full))

        lane = Lane(0, Route(5, 1, seed=0, shuffle=True), range(5), read, Position())
        assert list(itertools.islice(lane.samples(), 60)) == [0, 1] * 30
        assert lane.position.epoch == 29
