"""R9: which checkpoints count. A lineage is an allow list `[[attempt, upto], ...]`; whatever it does not name is abandoned."""

from __future__ import annotations

Lineage = tuple[tuple[int, int], ...]  # (attempt, newest step of it that counts), ascending attempts
Place = tuple[int, int]  # (attempt, step) of one checkpoint


def is_on(lineage: Lineage, place: Place, *, current: int | None = None) -> bool:
    """R9: whether the checkpoint (attempt, step) counts: made by the current attempt, or at most `upto` of its own."""
    attempt, step = place
    if attempt == current:
        return True
    return any(attempt == number and step <= upto for number, upto in lineage)


def cut(lineage: Lineage, place: Place) -> Lineage:
    """R9: the lineage of an attempt that resumes from `place`: attempts above it go, its own ends at its step."""
    attempt, step = place
    kept = tuple((number, min(upto, step)) for number, upto in lineage if number < attempt)
    return (*kept, (attempt, step))


def prune(lineage: Lineage, places: set[Place]) -> Lineage:
    """R9: the lineage without the attempts of which no checkpoint is left; its last entry always stays."""
    attempts = {attempt for attempt, _ in places}
    return tuple(entry for i, entry in enumerate(lineage) if entry[0] in attempts or i == len(lineage) - 1)
