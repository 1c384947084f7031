"""Jobs that hold room while they find no more say so, name each other, and say what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everstep_operator.cluster.book import Rivals
from everstep_operator.core.decide import decide
from everstep_operator.core.model import Observed
from unit.core.jobs import SETTINGS, nodes, pending, pod, preparing, preparing_status, rows, spec

REMEDY = "add nodes, or lower spec.workers.min"
HELD = "meanwhile the room of worker 0 on node n0, worker 1 on node n1 is held and not used"


def half(**changes: Any) -> Observed:
    """Two of four have their room for a minute."""
    base: dict[str, Any] = {
        "spec": spec(min_workers=4),
        "status": preparing_status("start", workers=rows(0, 1, 2, 3, state="Wanted"), next_worker_id=4),
        "pods": (pod(0), pod(1), pending(2, unschedulable="0/4 nodes"), pending(3, unschedulable="0/4 nodes")),
        "nodes": nodes(),
        "attempt_age_seconds": 60.0,
    }
    return preparing(**{**base, **changes})


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ((), "suspend this job to give that room to others"),
        (("default/b",), "job b waits like this too, and each may hold what another needs: suspend one of them"),
        (
            ("a/x", "default/b", "default/c"),
            "jobs b, c and 1 job in other namespaces wait like this too, and each may hold what another needs: suspend one of them",
        ),
        (("a/x", "a/y"), "2 jobs in other namespaces wait like this too, and each may hold what another needs: suspend one of them"),
    ],
)  # fmt: skip
def test_it_is_said_what_is_held_who_waits_too_and_what_to_do(others: tuple[str, ...], said: str) -> None:
    decision = decide(half(half_placed=others), SETTINGS)
    assert (decision.phase, decision.reason) == ("Waiting", "HalfPlaced")
    assert decision.message.startswith(
        "2 of at least 4 workers can run; waiting for worker 2: it cannot be scheduled: 0/4 nodes"
    )
    assert decision.message.endswith(f"; {HELD}; {said}, {REMEDY}")
    told = {c.type: (c.status, c.reason) for c in decision.conditions}
    assert told["Ready"] == ("False", "HalfPlaced")
    assert told["Degraded"] == ("True", "HalfPlaced")


def test_many_are_counted() -> None:
    message = decide(half(half_placed=tuple(f"default/j{i}" for i in range(9))), SETTINGS).message
    assert "jobs j0, j1, j2, j3, j4 and 4 more wait like this too" in message


@pytest.mark.parametrize(
    "changes",
    [
        {"attempt_age_seconds": 59.0},
        {"pods": tuple(pending(i, unschedulable="0/4 nodes") for i in range(4))},
        {"pods": (pod(0), pod(1), *(pending(i, node=f"n{i}") for i in (2, 3)))},
        {"pods": (*(pod(i, deletion_age_seconds=1.0) for i in (0, 1)), *(pending(i, unschedulable="0/4") for i in (2, 3)))},
        {"nodes": nodes(n0={"unreachable": True}, n1={"unreachable": True})},
    ],
    ids=["not for long", "nothing is held", "all have room", "what is held is given back", "the room is on dead nodes"],
)  # fmt: skip
def test_otherwise_it_is_not_said(changes: dict[str, Any]) -> None:
    assert decide(half(**changes), SETTINGS).reason in ("NotEnoughWorkers", "StartingWorkers")


def test_the_sentence_stays_the_same() -> None:
    assert decide(half(), SETTINGS).message == decide(replace(half(), attempt_age_seconds=500.0), SETTINGS).message


def test_a_job_knows_of_others_for_as_long_as_it_is_so_of_them() -> None:
    rivals = Rivals()
    for name in ("b", "a", "c"):
        rivals.note(name, f"default/{name}", is_rival=True)
    assert rivals.others("b") == ("default/a", "default/c")
    rivals.note("a", "default/a", is_rival=False)
    rivals.forget("c")
    assert rivals.others("b") == ()
    assert rivals.others("x") == ("default/b",)
