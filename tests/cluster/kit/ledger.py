"""The ledger of a job, printed: a line an attempt, the figures that users judge us by."""

from __future__ import annotations

from kit.job import Job


def print_ledger(job: Job) -> None:
    """What status.history says, as a table."""
    print(
        f"\n{'attempt':>7} {'cause':12} {'world':>5} {'resumed':>7} {'lost':>5} {'detected':>9} {'planned':>8} {'first step':>10}"
    )
    for entry in job.history():
        seconds = entry.get("seconds") or {}
        cells = [_seconds(seconds.get(stage)) for stage in ("detected", "planned", "firstStep")]
        lost = entry.get("stepsLost")
        print(
            f"{entry['number']:>7} {entry['cause']:12} {entry.get('worldSize', '-'):>5} {entry.get('resumedStep', '-'):>7} "
            f"{'-' if lost is None else lost:>5} {cells[0]:>9} {cells[1]:>8} {cells[2]:>10}"
        )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
