"""The global order and its division: every sample once, at any world size, through any change of it (B25, B30)."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from everstep.data import ElasticSampler
from everstep.sampling import Order, Permutation, pieces, share
from hypothesis import given
from hypothesis import strategies as st

LIBRARY = Path(__file__).parents[3] / "trainer_lib"


@given(st.integers(1, 3000), st.integers(), st.integers(0, 5))
def test_a_permutation_has_every_sample_once(length: int, seed: int, epoch: int) -> None:
    permutation = Permutation(length, seed=seed, epoch=epoch)
    assert sorted(permutation[index] for index in range(length)) == list(range(length))


def test_a_permutation_of_a_large_set_needs_no_memory() -> None:
    permutation = Permutation(10**12, seed=0, epoch=0)
    found = {permutation[index] for index in range(2000)}
    assert len(found) == 2000
    assert sum(value < 10**12 // 2 for value in found) in range(850, 1150)


def test_the_order_never_changes_between_versions() -> None:
    assert Order(20, seed=0, shuffle=True).samples(0, 20) == GOLDEN
    assert Order(5, seed=0, shuffle=False).samples(3, 12) == [3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_epochs_and_seeds_shuffle_differently() -> None:
    orders = {
        tuple(Order(50, seed=seed, shuffle=True).samples(epoch * 50, epoch * 50 + 50))
        for seed in range(4)
        for epoch in range(4)
    }
    assert len(orders) == 16


def test_a_permutation_is_no_slight_shift_of_the_plain_order() -> None:
    order = Order(1000, seed=1, shuffle=True).samples(0, 1000)
    neighbours = sum(abs(a - b) == 1 for a, b in itertools.pairwise(order))
    assert neighbours < 20
    assert 300 < sum(abs(value - index) for index, value in enumerate(order)) / 1000 < 370  # a third of the length


@pytest.mark.parametrize(
    ("total", "world", "sizes"),
    [(64, 3, [22, 21, 21]), (64, 4, [16] * 4), (24, 5, [5, 5, 5, 5, 4]), (2, 4, [1, 1, 0, 0])],
)
def test_shares_differ_by_one_at_most(total: int, world: int, sizes: list[int]) -> None:
    parts = [share(total, rank, world) for rank in range(world)]
    assert [last - first for first, last in parts] == sizes
    assert [index for first, last in parts for index in range(first, last)] == list(range(total))


@given(st.integers(1, 60), st.integers(1, 9), st.one_of(st.none(), st.integers(1, 20)), st.integers(0, 100))
def test_every_rank_has_as_many_micro_batches_and_weights_are_the_mean(
    global_batch: int, world: int, micro_batch: int | None, start: int
) -> None:
    by_rank = [pieces(start, global_batch, rank=rank, world=world, micro_batch=micro_batch) for rank in range(world)]
    assert len({len(found) for found in by_rank}) == 1
    dealt = [
        position for found in by_rank for piece in found if piece.weight for position in range(piece.start, piece.stop)
    ]
    assert dealt == list(range(start, start + global_batch))
    for piece in itertools.chain(*by_rank):
        size = piece.stop - piece.start
        assert 1 <= size <= (micro_batch or global_batch)
        assert piece.weight in (0.0, pytest.approx(size * world / global_batch))
        assert start <= piece.start < start + global_batch


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 9), st.one_of(st.none(), st.integers(1, 20)))
def test_units_are_never_divided_between_ranks(num_units: int, unit: int, world: int, micro_batch: int | None) -> None:
    total = num_units * unit
    by_rank = [pieces(0, total, rank=rank, world=world, micro_batch=micro_batch, unit=unit) for rank in range(world)]
    assert len({len(found) for found in by_rank}) == 1
    kept = [[piece for piece in found if piece.weight] for found in by_rank]
    assert [place for found in kept for piece in found for place in range(piece.start, piece.stop)] == list(
        range(total)
    )
    assert all(found[-1].stop % unit == 0 for found in kept if found)
    assert sum(piece.weight for found in kept for piece in found) == pytest.approx(world)


def deal(sampler: ElasticSampler, step: int) -> list[int]:
    return [index for indices, weight in sampler.micro_batch_indices(step) if weight for index in indices]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(1, 13), st.integers(1, 101))
def test_b25_every_sample_once_an_epoch_through_any_change_of_world(
    worlds: list[int], global_batch: int, length: int
) -> None:
    """A world after the other takes some steps; the tail of an epoch is the head of a batch, nothing dropped or padded."""
    state, step, dealt = ElasticSampler(length, global_batch=global_batch).state_dict(), 0, []
    while len(dealt) < 2 * length:
        world = worlds[step // 3 % len(worlds)]
        ranks = [ElasticSampler(length, global_batch=global_batch, rank=rank, world=world) for rank in range(world)]
        for sampler in ranks:
            sampler.load_state_dict(state)
        for _ in range(3):
            dealt += [index for sampler in ranks for index in deal(sampler, step)]
            step += 1
        assert len({str(sampler.state_dict()) for sampler in ranks}) == 1
        state = ranks[0].state_dict()
        assert state["samples_consumed"] == step * global_batch == len(dealt)
    assert sorted(dealt[:length]) == sorted(dealt[length : 2 * length]) == list(range(length))


def test_b25_the_case_of_the_field() -> None:
    """101 ids, 5 steps of 8 on 4 ranks, on with 3, then with 2, to the epoch's end."""
    seen: list[int] = []
    state = None
    for world, steps in ((4, range(5)), (3, range(5, 9)), (2, range(9, 13))):
        samplers = [ElasticSampler(101, global_batch=8, rank=rank, world=world) for rank in range(world)]
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
        seen += [index for step in steps for sampler in samplers for index in deal(sampler, step)]
        state = samplers[0].state_dict()
    assert sorted(seen[:101]) == list(range(101))
    assert len(seen) == 13 * 8, "the last batch holds the next epoch's first 3"


def test_the_same_step_again_gives_the_same_samples() -> None:
    sampler = ElasticSampler(30, global_batch=4)
    first = deal(sampler, 0)
    assert deal(sampler, 0) == first
    assert sampler.samples_consumed == 4
    assert not set(deal(sampler, 1)) & set(first)


def test_tr10_the_position_counts_steps_not_calls() -> None:
    """A DataLoader that prefetches has asked for five steps when one is trained."""
    sampler = ElasticSampler(101, global_batch=4)
    asked = [deal(sampler, step) for step in range(5)]
    assert sampler.state_dict_at(1)["samples_consumed"] == 4
    assert sampler.state_dict()["samples_consumed"] == sampler.samples_consumed == 20
    resumed = ElasticSampler(101, global_batch=4)
    resumed.load_state_dict(sampler.state_dict_at(1))
    assert resumed.samples_consumed == 4
    assert [deal(resumed, step) for step in range(1, 5)] == asked[1:]


@given(
    st.lists(st.integers(0, 40), max_size=12),
    st.integers(0, 40),
    st.one_of(
        st.just({}), st.fixed_dictionaries({"step": st.integers(0, 20), "samples_consumed": st.integers(0, 500)})
    ),
)
def test_tr10_what_was_asked_before_changes_no_step_and_no_state(
    asked: list[int], step: int, restored: dict[str, int]
) -> None:
    """Any steps, in any order, as often as one likes."""
    fresh, busy = ElasticSampler(37, global_batch=5), ElasticSampler(37, global_batch=5)
    for sampler in (fresh, busy):
        sampler.load_state_dict({**sampler.state_dict(), **restored})
    first = restored.get("step", 0)
    for other in asked:
        deal(busy, first + other)
    assert busy.micro_batch_indices(first + step) == fresh.micro_batch_indices(first + step)
    assert busy.state_dict_at(first + step) == fresh.state_dict_at(first + step)
    assert busy.state_dict_at(first)["samples_consumed"] == restored.get("samples_consumed", 0)
    assert busy.samples_consumed == busy.state_dict_at(max([step, *asked]) + first + 1)["samples_consumed"]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=6),
    st.integers(1, 13),
    st.integers(1, 60),
)
def test_tr10_any_worlds_depths_and_saves_deal_the_order_of_an_undisturbed_run(
    attempts: list[tuple[int, int, int]], global_batch: int, length: int
) -> None:
    """Each attempt: a world, which trains some steps and then loses what it had dealt ahead."""
    step, dealt, state = 0, [], ElasticSampler(length, global_batch=global_batch).state_dict_at(0)
    for world, num_steps, ahead in attempts:
        ranks = [ElasticSampler(length, global_batch=global_batch, rank=rank, world=world) for rank in range(world)]
        for sampler in ranks:
            sampler.load_state_dict(state)
        batches = [[deal(sampler, step + place) for place in range(num_steps + ahead)] for sampler in ranks]
        dealt += [index for place in range(num_steps) for batch in batches for index in batch[place]]
        step += num_steps
        states = [sampler.state_dict_at(step) for sampler in ranks]
        assert len({str(one) for one in states}) == 1
        state = states[0]
    alone = ElasticSampler(length, global_batch=global_batch)
    assert dealt == [index for place in range(step) for index in deal(alone, place)]
    epochs, rest = divmod(len(dealt), length)
    assert sorted(dealt[: epochs * length]) == sorted(list(range(length)) * epochs)
    assert len(set(dealt[epochs * length :])) == rest


def test_tr10_a_changed_global_batch_goes_on_exactly_at_the_position() -> None:
    before = ElasticSampler(50, global_batch=8)
    first = [index for step in range(3) for index in deal(before, step)]
    after = ElasticSampler(50, global_batch=13)
    after.load_state_dict(before.state_dict_at(3))
    rest = [index for step in (3, 4) for index in deal(after, step)]
    assert sorted(first + rest) == list(range(50))
    assert after.state_dict_at(5)["samples_consumed"] == 50
    assert after.epoch == 1
    with pytest.raises(ValueError, match="step 2 comes before step 3"):
        after.micro_batch_indices(2)


def test_a_restored_position_counts_also_where_more_was_dealt_before() -> None:
    sampler = ElasticSampler(50, global_batch=8)
    saved, expected = sampler.state_dict_at(2), deal(sampler, 2)
    deal(sampler, 5)
    sampler.load_state_dict(saved)
    assert sampler.samples_consumed == 16
    assert sampler.state_dict() == saved
    assert deal(sampler, 2) == expected


def test_a_state_of_0_1_0_begins_at_the_first_step_that_is_asked_for() -> None:
    old = {"samples_consumed": 24, "length": 50, "seed": 0, "shuffle": True, "global_batch": 8}
    sampler, alone = ElasticSampler(50, global_batch=8), ElasticSampler(50, global_batch=8)
    sampler.load_state_dict(old)
    assert sampler.samples_consumed == sampler.state_dict()["samples_consumed"] == 24
    again = ElasticSampler(50, global_batch=8)
    again.load_state_dict(sampler.state_dict())
    assert again.samples_consumed == 24
    assert sampler.state_dict_at(7)["samples_consumed"] == 24, "asking for a state is no step"
    assert deal(sampler, 1003) == deal(alone, 3)
    assert deal(sampler, 1004) == deal(alone, 4)
    assert sampler.state_dict_at(1005)["samples_consumed"] == 40


def test_a_position_in_another_order_is_refused() -> None:
    state = ElasticSampler(30, global_batch=4, seed=1).state_dict()
    with pytest.raises(ValueError, match="length was 30, now is 31, seed was 1, now is 2"):
        ElasticSampler(31, global_batch=4, seed=2).load_state_dict(state)
    other_batch = ElasticSampler(30, global_batch=8, seed=1)
    other_batch.load_state_dict({**state, "samples_consumed": 12})
    assert other_batch.samples_consumed == 12


@pytest.mark.parametrize(
    "arguments",
    [
        {"length": 0, "global_batch": 1},
        {"length": 1, "global_batch": 0},
        {"length": 1, "global_batch": 1, "micro_batch": 0},
        {"length": 9, "global_batch": 1, "rank": 0},
        {"length": 9, "global_batch": 1, "rank": 2, "world": 2},
    ],
)
def test_impossible_samplers_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="ElasticSampler"):
        ElasticSampler(**arguments)


def test_importing_the_package_and_its_data_needs_no_torch() -> None:
    code = "import everstep, sys; everstep.data.ElasticSampler(3, global_batch=1).micro_batch_indices(0); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(LIBRARY)}, check=True)


GOLDEN = [2, 8, 3, 5, 13, 1, 4, 16, 10, 9, 11, 7, 14, 15, 6, 18, 0, 12, 19, 17]
