"""Shards that are read forward: every sample once a pass, the same order in every world, exact after any save."""

from __future__ import annotations

import gc
import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from everstep.data import ElasticStream
from hypothesis import given
from hypothesis import strategies as st

HANG_SECONDS = 60
Sample = tuple[int, int]


class Shards:
    """Shards of these lengths; sample j of shard i is (i, j). Remembers who reads, and from where."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.opened: list[tuple[int, int]] = []
        self.threads: set[threading.Thread] = set()

    def read(self, shard: int, offset: int) -> Iterator[Sample]:
        self.opened.append((shard, offset))
        self.threads.add(threading.current_thread())
        assert offset <= self.lengths[shard]
        return iter([(shard, place) for place in range(offset, self.lengths[shard])])


def make(shards: Shards, **more: Any) -> ElasticStream:
    return ElasticStream(range(len(shards.lengths)), shards.read, **{"collate_fn": list, "rank": 0, "world": 1, **more})


def union(states: list[dict[str, Any]]) -> dict[str, Any]:
    """What a checkpoint holds of the ranks' states; what is on several ranks is the same on all of them."""
    shared = [{key: value for key, value in state.items() if key != "lanes"} for state in states]
    assert all(one == shared[0] for one in shared)
    lanes: dict[str, Any] = {}
    for state in states:
        assert not set(lanes) & set(state.get("lanes", {}))
        lanes.update(state.get("lanes", {}))
    return {**shared[0], "lanes": lanes}


def undisturbed(lengths: list[int], num_steps: int, **more: Any) -> list[Sample]:
    stream = make(Shards(lengths), **more)
    dealt = [sample for step in range(num_steps) for batch, _ in stream.micro_batches(step) for sample in batch]
    stream.close()
    return dealt


attempts = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 5), st.integers(1, 7), st.one_of(st.none(), st.integers(1, 5))),
    min_size=1,
    max_size=4,
)
lane_lengths = st.lists(
    st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(any),  # at least one sample in each lane
    min_size=1,
    max_size=4,
).map(lambda lanes: [list(lane) for lane in lanes])


def interleaved(lanes: list[list[int]]) -> list[int]:
    """Lengths of shards such that lane i has (at least) the lengths of lanes[i]; empty ones fill up."""
    return [length for row in itertools.zip_longest(*lanes, fillvalue=0) for length in row]


@given(attempts, lane_lengths, st.integers(1, 3), st.booleans())
def test_any_worlds_depths_and_saves_deal_the_order_of_an_undisturbed_run(
    runs: list[tuple[int, int, int, int | None]], lanes: list[list[int]], unit: int, shuffle: bool
) -> None:
    """Each run: a world, that trains some steps while its threads are ahead, and what it saves then; worlds may outnumber lanes."""
    lengths, num_lanes = interleaved(lanes), len(lanes)
    order = {"global_batch": unit * num_lanes, "lanes": num_lanes, "shuffle": shuffle}
    step, dealt, state = 0, [], None
    for world, num_steps, prefetch, micro_batch in runs:
        more = {**order, "prefetch": prefetch, "micro_batch": micro_batch, "world": world}
        ranks = [make(Shards(lengths), rank=rank, **more) for rank in range(world)]
        for stream in ranks:
            if state is not None:
                stream.load_state_dict(state)
        for now in range(step, step + num_steps):
            taken = [list(stream.micro_batches(now)) for stream in ranks]
            assert len({len(batches) for batches in taken}) == 1
            assert sum(weight for batches in taken for _, weight in batches) == pytest.approx(world)
            assert all(1 <= len(batch) <= (micro_batch or len(batch)) for batches in taken for batch, _ in batches)
            dealt += [sample for batches in taken for batch, weight in batches if weight for sample in batch]
        step += num_steps
        state = union([stream.state_dict_at(step) for stream in ranks])
        assert state["samples_consumed"] == step * unit * num_lanes == len(dealt)
        for stream in ranks:
            stream.close()
    assert dealt == undisturbed(lengths, step, **order)


@given(st.integers(1, 5), lane_lengths)
def test_every_sample_comes_once_in_each_pass_of_its_lane(unit: int, lanes: list[list[int]]) -> None:
    lengths, num_lanes = interleaved(lanes), len(lanes)
    dealt = undisturbed(lengths, 30, global_batch=unit * num_lanes, lanes=num_lanes)
    for lane in range(num_lanes):
        own = range(lane, len(lengths), num_lanes)
        samples = [(shard, place) for shard in own for place in range(lengths[shard])]
        taken = [sample for sample in dealt if sample[0] in own]
        passes = [taken[first : first + len(samples)] for first in range(0, len(taken), len(samples))]
        assert all(Counter(one) == Counter(samples) for one in passes[:-1])
        assert len(set(passes[-1])) == len(passes[-1])


def test_the_order_never_changes_between_versions() -> None:
    dealt = undisturbed([2] * 8, 8, global_batch=2, seed=3)
    assert [shard for shard, _ in dealt[::2]] == [6, 6, 2, 2, 4, 4, 0, 0]
    assert [shard for shard, _ in dealt[1::2]] == [5, 5, 7, 7, 1, 1, 3, 3]
    plain = undisturbed([1] * 6, 4, global_batch=2, shuffle=False)
    assert plain == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (0, 0), (1, 0)]


def test_a_state_holds_the_ranks_own_lanes_and_waits_for_no_other_rank() -> None:
    states = [
        make(Shards([9] * 5), global_batch=5, rank=rank, world=3).state_dict_at(0) for rank in range(3)
    ]  # 2, 2 and 1 lanes
    assert [list(state["lanes"]) for state in states] == [["0"], ["2"], ["4"]]
    assert [len(next(iter(state["lanes"].values()))) for state in states] == [2, 2, 1]
    beyond = make(Shards([9]), global_batch=1, rank=2, world=3).state_dict_at(0)
    assert "lanes" not in beyond, "an empty dict would be a value, at the place of the others' dict"


def test_states_are_exact_while_the_thread_is_ahead_and_after_the_loop_left_a_step() -> None:
    stream, other = (make(Shards([50] * 2), global_batch=4, lanes=2, micro_batch=1, prefetch=9) for _ in range(2))
    for step in range(6):
        next(iter(stream.micro_batches(step)))  # the loop breaks after one of four
        assert stream.state_dict_at(step + 1)["lanes"] == {"0": ((0, 0, 2 * step + 2), (0, 0, 2 * step + 2))}
        assert stream.state_dict_at(step)["samples_consumed"] == 4 * step
    assert stream.state_dict() == stream.state_dict_at(6)
    assert stream.samples_consumed == 24
    list(other.micro_batches(5))  # a step that is not the next one
    assert other.state_dict_at(6) == stream.state_dict_at(6)
    assert other.state_dict_at(9)["lanes"] == {"0": ((0, 0, 18), (0, 0, 18))}, "steps that nobody asked for"
    stream.close()
    other.close()


def test_steps_again_and_from_elsewhere_are_exact() -> None:
    expected = [undisturbed([7, 5, 3], 12, global_batch=3)[3 * step : 3 * step + 3] for step in range(12)]
    stream = make(Shards([7, 5, 3]), global_batch=3)
    for step in (0, 0, 1, 5, 2, 11, 3, 4):
        assert [sample for batch, _ in stream.micro_batches(step) for sample in batch] == expected[step], step
    stream.close()


def test_a_step_of_long_ago_is_refused() -> None:
    stream = make(Shards([7]), global_batch=1)
    for step in range(150):
        list(stream.micro_batches(step))
    assert stream.state_dict_at(60)["step"] == 60
    with pytest.raises(ValueError, match=r"step 3 is too long ago.* for 100 steps.* step 149"):
        stream.state_dict_at(3)
    stream.load_state_dict({**stream.state_dict_at(150)})
    with pytest.raises(ValueError, match="step 149 comes before step 150"):
        next(stream.micro_batches(149))
    stream.close()


def test_a_changed_global_batch_goes_on_exactly_at_the_position() -> None:
    before, after = (make(Shards([30, 30]), global_batch=batch, lanes=2) for batch in (4, 6))
    first = [sample for step in range(3) for batch, _ in before.micro_batches(step) for sample in batch]
    after.load_state_dict(before.state_dict_at(3))
    rest = [sample for step in range(3, 11) for batch, _ in after.micro_batches(step) for sample in batch]
    assert sorted(first + rest) == [(shard, place) for shard in (0, 1) for place in range(30)]
    before.close()
    after.close()


def test_a_restored_position_counts_also_where_more_was_dealt_before() -> None:
    stream = make(Shards([30, 30]), global_batch=2)
    dealt = [[sample for batch, _ in stream.micro_batches(step) for sample in batch] for step in range(6)]
    saved = stream.state_dict_at(2)
    elsewhere = {**saved, "step": 4}  # of a run whose steps have other numbers
    for state, step in ((saved, 2), (elsewhere, 4)):
        stream.load_state_dict(state)
        assert stream.samples_consumed == 4
        assert stream.state_dict() == state
        assert next(stream.micro_batches(step))[0] == dealt[2]
    stream.close()


def test_a_world_that_changes_under_a_stream_deals_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = undisturbed([9] * 4, 3, global_batch=4)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    stream = make(Shards([9] * 4), global_batch=4, rank=None, world=None)
    assert next(stream.micro_batches(0))[0] == expected[:2]
    monkeypatch.setenv("RANK", "1")
    assert next(stream.micro_batches(1))[0] == expected[6:8]
    assert list(stream.state_dict_at(2)["lanes"]) == ["2"]
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    assert next(stream.micro_batches(2))[0] == expected[8:]
    stream.close()


def test_padding_repeats_a_sample_that_a_collate_function_may_take_apart() -> None:
    """Rank 1 has no lane; rank 0 has fewer samples than micro batches times their size."""

    def collate(samples: list[dict[str, Sample]]) -> list[Sample]:
        return [sample.pop("id") for sample in samples]

    def read(shard: int, offset: int) -> Iterator[dict[str, Sample]]:
        return ({"id": (shard, place)} for place in range(offset, 9))

    for rank, lanes in ((0, 1), (1, 1), (2, 3)):
        stream = ElasticStream(
            range(3), read, global_batch=3, lanes=lanes, micro_batch=1, collate_fn=collate, rank=rank, world=2 + rank
        )
        dealt = [list(stream.micro_batches(step)) for step in range(3)]
        assert all(len(batch) == 1 for step in dealt for batch, _ in step)
        assert sum(weight for step in dealt for _, weight in step) == pytest.approx({0: 6.0, 1: 0.0, 2: 4.0}[rank])
        stream.close()


def test_failures_come_as_they_are_and_the_step_can_be_asked_for_again() -> None:
    broken = {("a", 3)}

    def read(shard: str, offset: int) -> Iterator[int]:
        for place in range(offset, 10):
            if (shard, place) in broken:
                raise OSError(5, "the disk is gone")
            yield place

    stream = ElasticStream(["a"], read, global_batch=2, lanes=1, collate_fn=list, rank=0, world=1)
    assert list(stream.micro_batches(0)) == [([0, 1], 1.0)]
    with pytest.raises(OSError, match="the disk is gone") as caught:
        list(stream.micro_batches(1))
    assert "while reading sample 3 of shard 'a'" in getattr(caught.value, "__notes__", [""])[0]
    broken.clear()
    assert list(stream.micro_batches(1)) == [([2, 3], 1.0)]
    stream.close()


def test_a_lane_without_any_sample_is_an_error_not_a_loop() -> None:
    stream = make(Shards([4, 0, 4, 0]), global_batch=2)
    with pytest.raises(ValueError, match=r"lane 1 has no sample: all its 2 shards are empty \(1, 3\)"):
        list(stream.micro_batches(0))
    beyond = make(Shards([0, 0]), global_batch=1, lanes=1, rank=1, world=2)
    with pytest.raises(ValueError, match="lane 0 has no sample"):
        list(beyond.micro_batches(0))


@pytest.mark.parametrize(
    ("shards", "more", "told"),
    [
        ([], {"global_batch": 4}, "`shards` is empty"),
        (["a"], {"global_batch": 4}, r"4 lanes, 1 shards, .*some lanes would have no shard.* lanes=1\. "),
        (range(6), {"global_batch": 8}, r"8 lanes, 6 shards.* lanes=4\. "),
        (range(99), {"global_batch": 8, "lanes": 3}, r"lanes must divide the global batch.* lanes=8\. "),
        (range(9), {"global_batch": 0}, "global_batch=0"),
        (range(9), {"global_batch": 1, "prefetch": 0}, "prefetch=0"),
        (range(9), {"global_batch": 1, "rank": 1}, "give both"),
        ([object()], {"global_batch": 1}, "give names, numbers or paths"),
    ],
)
def test_impossible_streams_are_refused(shards: Any, more: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ElasticStream(shards, lambda shard, offset: [], **more)


@pytest.mark.parametrize(
    ("shards", "more", "told"),
    [
        ("bacd", {}, "shards was"),
        ("abc", {}, "num_shards was 4, now is 3"),
        ("abcd", {"lanes": 1}, "num_lanes was 2, now is 1"),
        ("abcd", {"seed": 1, "shuffle": False}, "seed was 0, now is 1, shuffle was True, now is False"),
    ],
)
def test_a_position_in_another_order_is_refused(shards: str, more: dict[str, Any], told: str) -> None:
    state = ElasticStream("abcd", lambda shard, offset: [], global_batch=2, rank=0, world=1).state_dict()
    other = ElasticStream(shards, lambda shard, offset: [], **{"global_batch": 2, "rank": 0, "world": 1, **more})
    with pytest.raises(ValueError, match=f"another order of samples: .*{told}"):
        other.load_state_dict(state)


def test_a_state_of_one_rank_only_is_refused() -> None:
    one = make(Shards([9] * 4), global_batch=4, rank=0, world=2)
    with pytest.raises(ValueError, match=r"lacks the positions of 2 of 4 lanes \(the first is lane 2\)"):
        one.load_state_dict(one.state_dict())


def test_the_thread_ends_with_the_stream() -> None:
    shards = Shards([99])
    stream = make(shards, global_batch=1)
    next(iter(stream.micro_batches(0)))
    assert threading.current_thread() not in shards.threads
    del stream
    gc.collect()
    for thread in shards.threads:
        thread.join(HANG_SECONDS)
        assert not thread.is_alive()
