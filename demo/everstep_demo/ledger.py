"""What the demo came to: the ledger of attempts, and whether it is the one that was to be seen."""

from __future__ import annotations

from typing import Any, TypedDict

from everstep_demo.looks import Document, Look

# What must be seen, in this order; a cause of None is any. Other attempts may lie between them.
EXPECTED: tuple[tuple[str | None, int], ...] = ((None, 4), ("node-lost", 3), ("grow", 4))


class Seconds(TypedDict):
    """From the failure to each stage; None: not reached, or nothing failed."""

    detected: float | None
    planned: float | None
    first_step: float | None


class Entry(TypedDict):
    """One attempt."""

    attempt: int
    cause: str
    world_size: int
    resumed_step: int
    steps_lost: int | None
    seconds: Seconds


class Ledger(TypedDict):
    """The document that is written to build/demo-ledger.json."""

    succeeded: bool
    final_loss: float | None
    attempts: list[Entry]


def ledger_of(look: Look) -> Ledger:
    """The ledger of a job, from its status and its trainers' log."""
    attempts = [_entry(document) for document in look.history]
    return {"succeeded": look.phase == "Succeeded", "final_loss": look.loss, "attempts": attempts}


def _entry(document: Document) -> Entry:
    seconds = document.get("seconds") or {}
    return {
        "attempt": document["number"],
        "cause": document["cause"],
        "world_size": document.get("worldSize", 0),
        "resumed_step": document.get("resumedStep", -1),
        "steps_lost": document.get("stepsLost"),
        "seconds": {
            "detected": seconds.get("detected"),
            "planned": seconds.get("planned"),
            "first_step": seconds.get("firstStep"),
        },
    }


def problems_of(ledger: Ledger, last_step: int, until: int) -> list[str]:
    """Why this is not the demo that was to be seen; empty if it is."""
    problems = []
    if not ledger["succeeded"]:
        problems.append("the job did not succeed")
    elif last_step < until:
        problems.append(f"the trainers' log ends at step {last_step}, not at {until}")
    missing = _first_missing(ledger["attempts"])
    if missing:
        cause, world = missing
        problems.append(
            f"no attempt {f'of cause {cause} ' if cause else ''}with {world} workers where one was expected"
        )
    lost = next((entry for entry in ledger["attempts"] if entry["cause"] == "node-lost"), None)
    if lost and lost["resumed_step"] <= 0:
        problems.append("after the power cut the job began again from step 0")
    if ledger["succeeded"] and ledger["final_loss"] is None:
        problems.append("no loss was seen in the trainers' log")
    return problems


def _first_missing(attempts: list[Entry]) -> tuple[str | None, int] | None:
    remaining = iter(attempts)
    for cause, world in EXPECTED:
        if not any(_is(entry, cause, world) for entry in remaining):
            return cause, world
    return None


def _is(entry: Entry, cause: str | None, world: int) -> bool:
    return entry["world_size"] == world and cause in (None, entry["cause"])


def rows_of(ledger: Ledger) -> list[list[str]]:
    """The cells of the ledger's table, headings first."""
    headings = [
        "attempt",
        "cause",
        "workers",
        "from step",
        "steps lost",
        "detected",
        "planned",
        "first step",
    ]
    return [headings, *(_row(entry) for entry in ledger["attempts"])]


def _row(entry: Entry) -> list[str]:
    seconds = entry["seconds"]
    stages = (seconds["detected"], seconds["planned"], seconds["first_step"])
    counts = (entry["attempt"], entry["cause"], entry["world_size"], entry["resumed_step"], entry["steps_lost"])
    return [*(_cell(value) for value in counts), *(_cell(value) for value in stages)]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
