"""What ranks must agree on before anything is written: equal contents under one key, keys that all must have (TR1, TR2).

Pure: reports of all ranks in, problems or the common record out. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Note:
    """What one rank says of one key. `entry`: whose it is, for people. `parts`: of each part that others may hold too, a digest of its contents."""

    entry: str
    kind: str  # type, dtype and shape: equal wherever the key is
    parts: Mapping[str, str] = field(default_factory=dict)
    everywhere: bool = True
    shown: str = ""  # a plain value, for people
    structure_of: str = ""  # where the nest begins whose structure this is, which is no value that people know


@dataclass(frozen=True)
class Report:
    """One rank's. `lists`: names that count together over all ranks; `streams`: digests of its random streams by kind."""

    notes: Mapping[str, Note]
    lists: Mapping[str, tuple[str, ...]]
    streams: Mapping[str, str]


def problems(reports: list[Report]) -> list[str]:
    """A sentence for each key on which the ranks do not agree."""
    holders: dict[str, list[int]] = {}
    for rank, report in enumerate(reports):
        for key in report.notes:
            holders.setdefault(key, []).append(rank)
    found = (_problem(key, ranks, reports) for key, ranks in holders.items())
    return [problem for problem in found if problem]


def count_keys(reports: list[Report]) -> dict[str, int]:
    """How many keys each entry has, those of all ranks together."""
    owners = {key: key.partition(".")[0] for report in reports for key in [*report.notes, *report.lists]}
    counts: dict[str, int] = {}
    for entry in owners.values():
        counts[entry] = counts.get(entry, 0) + 1
    return counts


def merge_lists(reports: list[Report]) -> dict[str, list[str]]:
    """Each list with the names of all ranks, in the order in which they come."""
    merged: dict[str, dict[str, None]] = {}
    for report in reports:
        for key, names in report.lists.items():
            merged.setdefault(key, {}).update(dict.fromkeys(names))
    return {key: list(names) for key, names in merged.items()}


def classify_streams(reports: list[Report]) -> dict[str, list[int]]:
    """Of each kind of random stream, a number a rank: equal where the streams are (TR9)."""
    return {kind: classes([report.streams.get(kind, "") for report in reports]) for kind in reports[0].streams}


def classes(digests: list[Any]) -> list[int]:
    """`a b a c` -> `0 1 0 2`."""
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(digest, len(numbers)) for digest in digests]


def _problem(key: str, ranks: list[int], reports: list[Report]) -> str:
    notes = {rank: reports[rank].notes[key] for rank in ranks}
    first, note = next(iter(notes.items()))
    if any(note.everywhere for note in notes.values()) and len(ranks) < len(reports):
        missing = next(rank for rank in range(len(reports)) if rank not in notes)
        return _sentence(key, note, f"rank {first} has it, rank {missing} has not", first, missing)
    for rank, other in notes.items():
        if other.kind != note.kind:
            return _sentence(key, note, f"{note.kind} on rank {first}, {other.kind} on rank {rank}", first, rank)
    contents: dict[str, tuple[int, str]] = {}
    for rank, other in notes.items():
        for place, digest in other.parts.items():
            holder, known = contents.setdefault(place, (rank, digest))
            if known != digest:
                return _sentence(key, note, _difference(holder, rank, notes), holder, rank)
    return ""


def _sentence(key: str, note: Note, difference: str, one: int, other: int) -> str:
    if not note.structure_of:
        return f"{key}: {difference}; {_remedy(note.entry)}"
    entry = note.structure_of.partition(".")[0]
    types = f"its keys, containers or tensors are of other types on rank {one} than on rank {other}"
    return f"{note.structure_of}: {types}; {_remedy(entry)}"


def _difference(one: int, other: int, notes: Mapping[int, Note]) -> str:
    if notes[one].shown:
        return f"it is {notes[one].shown} on rank {one} and {notes[other].shown} on rank {other}"
    return f"its contents on rank {one} and on rank {other} differ"


def _remedy(entry: str) -> str:
    return (
        f"make it the same on all ranks, or say whose counts: Checkpointer(per_rank=[{entry!r}]) keeps each rank's own, "
        f"from_rank_0=[{entry!r}] rank 0's"
    )
