"""The ledger that the demo writes, and what is not accepted as a success."""

from __future__ import annotations

from typing import Any

import pytest
from everstep_demo.ledger import ledger_of, problems_of, rows_of
from everstep_demo.looks import Look


def entry(
    number: int, cause: str, world: int, resumed: int, lost: int | None = None, **seconds: float | None
) -> dict[str, Any]:
    return {
        "number": number,
        "cause": cause,
        "worldSize": world,
        "resumedStep": resumed,
        "stepsLost": lost,
        "seconds": seconds,
    }


HISTORY = (
    entry(1, "start", 4, 0),
    entry(2, "node-lost", 3, 40, 6, detected=4.25, planned=4.5, firstStep=9.0),
    entry(3, "grow", 4, 100, 0),
)
DONE = Look(phase="Succeeded", loss=2.5, step=400, history=HISTORY)


def problems(look: Look) -> list[str]:
    return problems_of(ledger_of(look), look.step, 400)


def test_the_documents_form() -> None:
    assert ledger_of(DONE) == {
        "succeeded": True,
        "final_loss": 2.5,
        "attempts": [
            {
                "attempt": 1,
                "cause": "start",
                "world_size": 4,
                "resumed_step": 0,
                "steps_lost": None,
                "seconds": {"detected": None, "planned": None, "first_step": None},
            },
            {
                "attempt": 2,
                "cause": "node-lost",
                "world_size": 3,
                "resumed_step": 40,
                "steps_lost": 6,
                "seconds": {"detected": 4.25, "planned": 4.5, "first_step": 9.0},
            },
            {
                "attempt": 3,
                "cause": "grow",
                "world_size": 4,
                "resumed_step": 100,
                "steps_lost": 0,
                "seconds": {"detected": None, "planned": None, "first_step": None},
            },
        ],
    }


def test_the_table() -> None:
    rows = rows_of(ledger_of(DONE))
    assert rows[2] == ["2", "node-lost", "3", "40", "6", "4.25", "4.50", "9.00"]
    assert rows[1][4:] == ["-", "-", "-", "-"]


def test_as_it_should_be() -> None:
    assert problems(DONE) == []


def test_other_attempts_may_lie_between() -> None:
    history = (*HISTORY[:1], entry(2, "not-delivered", 4, 0), *HISTORY[1:])
    assert problems(Look(phase="Succeeded", loss=2.5, step=400, history=history)) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"phase": "Failed"}, "did not succeed"),
        ({"step": 399}, "ends at step 399"),
        ({"loss": None}, "no loss"),
        ({"history": HISTORY[:1]}, "cause node-lost with 3 workers"),
        ({"history": HISTORY[:2]}, "cause grow with 4 workers"),
        ({"history": ()}, "no attempt with 4 workers"),
        ({"history": (HISTORY[0], entry(2, "node-lost", 3, 0), HISTORY[2])}, "began again from step 0"),
    ],
)
def test_not_as_it_should_be(changes: dict[str, Any], told: str) -> None:
    fields = {"phase": "Succeeded", "loss": 2.5, "step": 400, "history": HISTORY} | changes
    (problem,) = problems(Look(**fields))
    assert told in problem
