"""What the trainers themselves wrote down, a JSON line a rank a step: the witness against which the job's status is held."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class StepRecord:
    """One rank's line about one step."""

    attempt: int
    rank: int
    world: int
    step: int
    samples: tuple[int, ...]
    loss: float
    node: str
    at: float  # seconds since the epoch, for benchmarks only


def read_records(folder: Path) -> list[StepRecord]:
    """Every whole line of every file; a line cut off by a power loss is no record."""
    return [record for path in sorted(folder.glob("*.jsonl")) for record in _read_file(path)]


def _read_file(path: Path) -> Iterable[StepRecord]:
    for line in path.read_text(errors="replace").splitlines():
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        fields["samples"] = tuple(fields["samples"])
        yield StepRecord(**{key: fields[key] for key in StepRecord.__dataclass_fields__})


@dataclass(frozen=True)
class FinalLineage:
    """The steps that count: for each attempt those from its resume to the resume of the next."""

    steps: list[int]
    samples: list[int]
    losses: dict[int, float]
    worlds: list[int]


def final_lineage(records: list[StepRecord], attempts: list[tuple[int, int]]) -> FinalLineage:
    """`attempts`: (number, resumed step) of every attempt that trained, ascending. A step that was lost and done again counts once."""
    by_attempt: dict[int, dict[int, list[StepRecord]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        by_attempt[record.attempt][record.step].append(record)
    steps: list[int] = []
    samples: list[int] = []
    losses: dict[int, float] = {}
    worlds: list[int] = []
    for index, (number, resumed) in enumerate(attempts):
        upto = attempts[index + 1][1] if index + 1 < len(attempts) else None
        for step in sorted(by_attempt[number]):
            if step < resumed or (upto is not None and step >= upto):
                continue
            ranks = by_attempt[number][step]
            assert len({record.rank for record in ranks}) == len(ranks) == ranks[0].world, (number, step, ranks)
            steps.append(step)
            samples.extend(sample for record in ranks for sample in record.samples)
            losses[step] = ranks[0].loss
            worlds.append(ranks[0].world)
    return FinalLineage(steps, samples, losses, worlds)
