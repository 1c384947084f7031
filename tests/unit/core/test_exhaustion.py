"""From every state, with any part silent for ever, a job comes to rest or to a condition that names what is missing, in bounded time.

Every moment of every story (`toy_stories`) times every fault (`toy_faults`): a case is named `moment-fault`.
"""

from __future__ import annotations

import typing

import pytest
from everstep_operator.core import model
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.core import toy_faults, toy_judge, toy_stories
from unit.core.toy_faults import Fault
from unit.core.toy_stories import Moment

QUARTER = 900.0  # seconds
STEADY = 130.0  # longer than any timer that may still end what trains
SAID = 310.0  # so long the same condition is as good as for ever

MOMENTS = tuple(toy_stories.moments())
FAULTS = toy_faults.faults()


def suffer(moment: Moment, *faults: Fault) -> None:
    """The faults begin at this moment and last; then they end."""
    play = moment.begin()
    world = play.world
    attempts, ids, began = toy_judge.num_attempts(world), world.status.next_worker_id, world.now
    victims = [(fault, toy_faults.victim(world, head=fault.is_head)) for fault in faults]
    for fault, who in victims:
        fault.begin(world, who)

    def said() -> object:
        return next(filter(None, (toy_judge.named(world, fault, who) for fault, who in victims)), None)

    toy_judge.advance_to_rest(play, QUARTER, STEADY, SAID, say=said)
    assert not toy_judge.spins(world, began, attempts, ids)
    assert toy_judge.rest(world) or said(), toy_judge.report(world)
    for fault, who in victims:
        fault.end(world, who)
    toy_judge.advance_to_rest(play, QUARTER, 30.0)
    assert toy_judge.rest(world), f"healed, but {toy_judge.report(world)}"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.name)
def test_from_every_moment_any_fault_ends_in_rest_or_in_a_condition_that_names_it(moment: Moment, fault: Fault) -> None:
    suffer(moment, fault)


@settings(max_examples=settings.default.max_examples // 4)
@given(st.sampled_from(MOMENTS), st.sampled_from(FAULTS), st.sampled_from(FAULTS))
def test_so_does_any_pair_of_faults(moment: Moment, first: Fault, second: Fault) -> None:
    suffer(moment, *dict.fromkeys((first, second)))


@pytest.mark.parametrize("story", toy_stories.STORIES, ids=lambda story: story.name)
def test_a_story_in_which_nothing_fails_ends_as_it_should(story: toy_stories.Story) -> None:
    play = toy_stories.play(story)
    play.advance(story.seconds + 60)
    assert toy_judge.rest(play.world) == story.rest, toy_judge.report(play.world)


def test_the_stories_show_every_state_of_an_attempt() -> None:
    states = typing.get_args(typing.get_type_hints(model.AttemptStatus)["state"])
    shown = {toy_stories.what_it_shows(moment.play.world)[1] for moment in MOMENTS}
    assert shown == {"none", *states}


def test_the_stories_show_every_phase() -> None:
    decided = (moment.play.world.last for moment in MOMENTS)
    shown = {said.phase if said else "Pending" for said in decided}
    assert shown == set(typing.get_args(model.Phase))


def test_every_kind_of_action_is_one_that_the_toy_knows() -> None:
    assert toy_faults.unknown_actions() == set()


def test_whatever_may_be_withheld_is_awaited_by_somebody_in_a_story() -> None:
    """A message that the toy does not send would pass its row without proof."""
    awaited = set[str]()
    for moment in MOMENTS:
        awaited |= moment.play.world.silence.awaited
    assert toy_faults.kinds_of_message() - awaited == set(toy_faults.NOT_AWAITED)
