"""From every state, with any part silent for ever, a job comes to rest or to a condition that names what is missing, in bounded time.

Every moment of every story (`toy_stories`) times every fault (`toy_faults`): a case is named `moment-fault`.
"""

from __future__ import annotations

import pytest
from unit.core import toy_faults, toy_judge, toy_stories

QUARTER = 900.0  # seconds
STEADY = 150.0  # longer than any timer that may still end what trains
SAID = 400.0  # so long the same condition is as good as for ever

MOMENTS = tuple(toy_stories.moments())
FAULTS = toy_faults.faults()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.name)
def test_from_every_moment_any_fault_ends_in_rest_or_in_a_condition_that_names_it(
    moment: toy_stories.Moment, fault: toy_faults.Fault
) -> None:
    play = moment.begin()
    world = play.world
    attempts, ids = world.status.attempt.number if world.status.attempt else 0, world.status.next_worker_id
    who = toy_faults.victim(world, head=fault.is_head)
    began = world.now
    fault.begin(world, who)
    toy_judge.advance_to_rest(play, QUARTER, STEADY, SAID, say=lambda: toy_judge.named(world, fault, who))
    assert not toy_judge.spins(world, began, attempts, ids)
    assert toy_judge.rest(world) or toy_judge.named(world, fault, who), toy_judge.report(world)
    fault.end(world, who)
    toy_judge.advance_to_rest(play, QUARTER, 30.0)
    assert toy_judge.rest(world), f"healed, but {toy_judge.report(world)}"


def test_every_kind_of_action_is_one_that_the_toy_knows() -> None:
    assert toy_faults.unknown_actions() == set()
