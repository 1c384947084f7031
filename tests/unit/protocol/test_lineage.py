"""R9: whatever tree attempts and resumes make, what is accepted is one chain."""

from dataclasses import dataclass

from everstep_protocol.complete import Verdict
from everstep_protocol.lineage import Lineage, Place, cut, is_on, prune
from everstep_protocol.resume import Question, choose
from hypothesis import given
from hypothesis import strategies as st


@dataclass(frozen=True)
class Node:
    """A checkpoint and the one that its attempt, or the save before it, built on."""

    place: Place
    parent: Place | None


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[Place, Node], list[tuple[int, Place | None, Lineage]]]:
    """Attempts that resume from any checkpoint of any branch, or from 0, and save some steps; also what is seen late."""
    nodes: dict[Place, Node] = {}
    attempts: list[tuple[int, Place | None, Lineage]] = []
    lineages: dict[int, Lineage] = {}
    for attempt in range(1, draw(st.integers(1, 8)) + 1):
        start = draw(st.sampled_from([None, *nodes])) if attempt > 1 else None
        lineage = cut(lineages[start[0]], start) if start else ()
        lineages[attempt] = lineage
        attempts.append((attempt, start, lineage))
        step, before = (start[1] if start else 0), start
        for _ in range(draw(st.integers(0, 4))):
            step += draw(st.integers(1, 3))
            nodes[(attempt, step)] = Node((attempt, step), before)
            before = (attempt, step)
    return nodes, attempts


def ancestors(nodes: dict[Place, Node], place: Place | None) -> set[Place]:
    found = set()
    while place is not None:
        found.add(place)
        place = nodes[place].parent
    return found


@given(histories())
def test_r9_the_accepted_set_is_always_one_chain(
    history: tuple[dict[Place, Node], list[tuple[int, Place | None, Lineage]]],
) -> None:
    nodes, attempts = history
    for attempt, start, lineage in attempts:
        own = [place for place in nodes if place[0] == attempt]
        accepted = {place for place in nodes if is_on(lineage, place, current=attempt)}
        assert accepted == ancestors(nodes, max(own, default=start))
        before = {place for place in nodes if is_on(lineage, place)}
        assert before == ancestors(nodes, start)


@given(histories(), st.data())
def test_r9_r12_the_choice_stays_on_one_chain_whatever_is_lost(
    history: tuple[dict[Place, Node], list[tuple[int, Place | None, Lineage]]], data: st.DataObject
) -> None:
    nodes, attempts = history
    attempt, _, lineage = attempts[-1]
    lineage_of = {number: its_lineage for number, _, its_lineage in attempts}
    left = data.draw(st.lists(st.sampled_from(sorted(nodes)), unique=True)) if nodes else []
    verdicts = tuple(
        Verdict(f"step_{step}.a{number}", "complete", "", step, f"{number}-{step}", number, lineage_of[number])
        for number, step in left
    )
    choice = choose(Question(lineage, attempt, ever=bool(nodes)), verdicts)
    if choice.resume.kind == "none":
        assert choice.outcome == "stop" or not nodes
        return
    place = (choice.resume.attempt, choice.resume.step)
    chain = {other for other in nodes if is_on(choice.lineage, other)}
    assert chain == ancestors(nodes, place), "its lineage is its own history, nothing mixed"
    on = [other for other in left if is_on(lineage, other, current=attempt)]
    assert not on or place == max(on)


def test_the_table_of_the_documents() -> None:
    lineage: Lineage = ((3, 400), (6, 900))
    assert is_on(lineage, (3, 400))
    assert not is_on(lineage, (3, 401))
    assert not is_on(lineage, (5, 10)), "unknown is abandoned"
    assert is_on(lineage, (7, 10), current=7)
    assert not is_on(lineage, (7, 10))
    assert cut(lineage, (7, 950)) == ((3, 400), (6, 900), (7, 950))
    assert cut(lineage, (6, 500)) == ((3, 400), (6, 500))
    assert cut(lineage, (3, 100)) == ((3, 100),)
    assert cut(lineage, (7, 350)) == ((3, 350), (6, 350), (7, 350)), (
        "nothing newer than the resume counts, whoever made it"
    )


def test_entries_go_only_when_no_checkpoint_of_theirs_is_left() -> None:
    assert prune(((1, 5), (3, 400), (6, 900)), {(3, 10)}) == ((3, 400), (6, 900))
    assert prune(((1, 5),), set()) == ((1, 5),)
    assert prune((), set()) == ()
