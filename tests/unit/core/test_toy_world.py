"""Any start, any faults: the toy world keeps PROTOCOL's invariants (it asserts them at each write) and reaches a fixed point."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everstep_operator.core.decide import decide
from everstep_operator.core.model import WriteStatus
from hypothesis import example, given
from hypothesis import strategies as st
from unit.core.jobs import SETTINGS
from unit.core.toy_parts import Storage
from unit.core.toy_world import World

NODES = st.sampled_from(["n0", "n1", "n2", "n3"])
FAULTS = st.one_of(
    st.tuples(st.just("tick"), st.integers(1, 6)),
    st.tuples(st.just("power_off"), NODES),
    st.tuples(st.just("boot"), NODES),
    st.tuples(st.just("crash")),
    st.tuples(st.just("evict"), st.integers(0, 5)),
    st.tuples(st.just("suspend"), st.booleans()),
    st.tuples(st.just("max"), st.integers(2, 4)),
    st.tuples(st.just("half a pass")),
)


def happen(world: World, fault: tuple[Any, ...]) -> None:
    name, *args = fault
    if name == "tick":
        world.settle(args[0])
    elif name == "suspend":
        world.change(suspend=args[0])
    elif name == "max":
        world.change(max_workers=args[0])
    elif name == "half a pass":  # the operator dies after its first action
        decision = decide(world.observe(), SETTINGS)
        world.apply(replace(decision, actions=decision.actions[:1]), world.version)
    else:
        getattr(world, name)(*args)


def heal(world: World) -> None:
    for name in world.nodes:
        world.boot(name)
    world.change(suspend=False, max_workers=4, grow_interval_seconds=0.0)


def assert_trains_with(world: World, count: int) -> None:
    attempt = world.status.attempt
    assert attempt
    assert attempt.state == "Started"
    assert attempt.plan
    assert len(attempt.plan.members) == count
    assert world.run
    assert world.run.still(world.now) <= 1
    assert len(world.pods) == count


@given(st.lists(FAULTS, max_size=14))
@example([("tick", 4), ("power_off", "n1"), ("boot", "n1"), ("tick", 5), ("power_off", "n1")])  # the same address again
def test_after_any_faults_it_trains_with_all_again_or_failed_with_a_reason(faults: list[tuple[Any, ...]]) -> None:
    world = World()
    for fault in faults:
        happen(world, fault)
    heal(world)
    decision = world.settle(100)
    if world.status.result:
        assert decision.reason in ("NoProgress", "CrashBudgetExceeded")
        assert not world.pods
        return
    assert_trains_with(world, 4)
    world.until = world.run.step + 20 if world.run else 0
    decision = world.settle(60)
    assert (decision.phase, decision.actions) == ("Succeeded", ())


@given(st.lists(st.tuples(FAULTS, st.booleans()), max_size=10), st.data())
def test_r1_two_operators_with_old_eyes_make_no_second_truth(
    faults: list[tuple[tuple[Any, ...], bool]], data: st.DataObject
) -> None:
    """The second operator decides from what it saw before the fault and acts after it, at any moment."""
    world = World()
    for fault, is_late in faults:
        seen, version = world.observe(), world.version
        happen(world, fault)
        if is_late:
            world.apply(decide(seen, SETTINGS), version)
            world.step()
    heal(world)
    world.settle(100)
    if not world.status.result:
        assert_trains_with(world, 4)


def test_a_node_is_lost_and_comes_back() -> None:
    world = World()
    world.settle(40)
    assert_trains_with(world, 4)
    world.power_off("n1")
    world.settle(10)
    attempt = world.status.attempt
    assert attempt
    assert attempt.plan
    assert (attempt.state, attempt.cause, attempt.plan.world) == ("Started", "node-lost", 3)
    world.boot("n1")
    world.settle(60)
    assert_trains_with(world, 4)
    assert [entry.cause for entry in world.status.history] == ["start", "node-lost", "grow"]
    assert world.status.history[1].seconds.first_step is not None
    assert world.status.history[2].steps_lost == 0
    assert world.status.restarts == {"node-lost": 1, "grow": 1, "total": 2}
    assert world.status.budget.crashes == ()


def test_b36_below_min_waits_and_goes_on_when_a_node_is_back() -> None:
    world = World()
    world.settle(40)
    for name in ("n0", "n1", "n2"):
        world.power_off(name)
    decision = world.settle(40)
    assert (decision.phase, decision.reason) == ("Waiting", "NotEnoughWorkers")
    before = dict(world.status.restarts)
    world.boot("n0")
    decision = world.settle(60)
    assert world.status.attempt
    assert world.status.attempt.plan
    assert len(world.status.attempt.plan.members) == 2
    assert world.status.restarts == before


def test_r11_an_old_copy_of_the_storage_on_one_node_stops_nobody_who_sees_the_right_one() -> None:
    """It is this job's by its owner file, and holds no checkpoint: what its pod does not find is its mount's fault."""
    world = World()
    world.settle(40)
    world.silence.apart.add("n0")
    world.places["n0"] = Storage(owned=True)
    world.crash()
    world.settle(30)
    attempt = world.status.attempt
    assert attempt
    assert attempt.plan
    assert [m.node for m in attempt.plan.members] == ["n1", "n2", "n3"]
    assert attempt.plan.resume.step > 0
    assert world.run
    assert world.run.still(world.now) <= 1


def test_r33_all_pods_lost() -> None:
    world = World()
    world.settle(40)
    world.pods.clear()
    world.settle(90)
    assert_trains_with(world, 4)
    assert world.status.history[-1].resumed_step > 0


@pytest.mark.parametrize("phase", range(12))
def test_r3_an_operator_that_dies_after_any_action_is_followed_by_one_that_carries_on(phase: int) -> None:
    world = World()
    world.settle(40)
    world.power_off("n0")
    for _ in range(4):
        world.tick()
    for _ in range(phase):
        happen(world, ("half a pass",))
    world.settle(60)
    assert world.status.attempt
    assert world.status.attempt.plan
    assert (world.status.attempt.state, len(world.status.attempt.plan.members)) == ("Started", 3)


@given(st.lists(FAULTS, max_size=10))
def test_the_same_sight_gives_the_same_decision(faults: list[tuple[Any, ...]]) -> None:
    world = World()
    for fault in faults:
        happen(world, fault)
    seen = world.observe()
    assert decide(seen, SETTINGS) == decide(seen, SETTINGS)


def test_a_pass_that_changes_nothing_writes_nothing() -> None:
    world = World()
    world.settle(40)
    first = decide(world.observe(), SETTINGS)
    written = first.actions[0].status if first.actions and isinstance(first.actions[0], WriteStatus) else None
    if written:
        world.apply(first, world.version)
    assert decide(world.observe(), SETTINGS).actions == ()
