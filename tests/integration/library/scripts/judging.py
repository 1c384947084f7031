"""What is wrong with what became of cells, and what a refusal must look like."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from batches import Batch, Judge, Verdict
from playing import Told, entry_name
from things import Cell

_REMEDY = re.compile(
    r"\b(give|put|take|use|keep|make|convert|admit|add|pass|view|shard|rename|remove|repair|redistribute|resume from)\b",
    re.I,
)


@dataclass
class Failures:
    """Cells whose outcome is wrong, each with the worlds, what was expected, and what was found."""

    lines: list[str]

    def add(self, cell: Cell, worlds: str, wanted: str, found: str) -> None:
        """One more."""
        self.lines.append(f"{cell} / {worlds}: expected {wanted}, found: {' '.join(found.split())[:600]}")

    def check(self) -> None:
        """Raises AssertionError that lists them."""
        assert not self.lines, f"{len(self.lines)} cells are wrong:\n" + "\n".join(sorted(set(self.lines)))


def complaints(text: str, key: str) -> list[str]:
    """What a sentence for users lacks."""
    found = [] if _names(text, key) else [f"it does not name {key}"]
    if "Traceback" in text or 'File "' in text:
        found.append("it holds a traceback")
    if not _REMEDY.search(text):
        found.append("it says no remedy")
    if len(re.findall(r"[.!?]\s+[A-Z]", text)) > 1:
        found.append("it is more than two sentences")
    return found


def _names(text: str, key: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", text) is not None


def key_in(cell: Cell, number: int | None) -> str:
    """The cell's key where its entries are numbered."""
    first, dot, rest = cell.key.partition(".")
    return entry_name(first, number) + dot + rest


def by_cell(wrong: Callable[[Sequence[Told], str], str]) -> Judge:
    """What is wrong with each cell of a batch, as far as its key tells."""

    def judge(batch: Batch, told: Sequence[Told]) -> Verdict:
        texts = {number: wrong(told, key_in(cell, number)) for number, cell in batch.cells.items()}
        return Verdict({number: text for number, text in texts.items() if text})

    return judge


def wrong_in_batch(batch: Batch, told: Sequence[Told]) -> Verdict:
    """Nothing should be raised, the save be there, and every cell as it should be."""
    for each in told:
        if each.kind or not (each.facts.get("saved") or each.facts.get("began")):
            return Verdict(dict.fromkeys(batch.cells, f"{each.kind}: {each.text}"))
    return Verdict({number: text for each in told for number, text in each.found.items()}, is_certain=True)


def wrong_refusal(kind: str) -> Callable[[Sequence[Told], str], str]:
    """On every rank an error of this kind should have been raised, with the key in its sentence."""

    def judge(told: Sequence[Told], key: str) -> str:
        wrong = []
        for rank, each in enumerate(told):
            lacks = complaints(each.error, key) if each.kind == kind else [f"raised {each.kind or 'nothing'}"]
            wrong += [f"rank {rank}: {', '.join(lacks)}: {each.error}"] if lacks else []
        return "; ".join(wrong)

    return judge


def wrong_save(told: Sequence[Told], key: str) -> str:
    """The first save should be told as failed, the second be there, the last one raise; on every rank."""
    if any(not each.facts for each in told):
        return "; ".join(f"rank {rank}: {each.kind}: {each.error[-500:]}" for rank, each in enumerate(told))
    wrong = [
        f"rank {rank} sees the saves {each.facts['saved']}"
        for rank, each in enumerate(told)
        if each.facts["saved"] != [2]
    ]
    lines = "".join(each.facts["first"] for each in told).splitlines()
    lacks = min((complaints(line, key) for line in lines), key=len, default=["nothing is told"])
    wrong += [f"on stderr: {', '.join(lacks)}: {lines}"] if lacks else []
    at_the_end = wrong_refusal("SaveError")(told, key)
    return "; ".join(wrong + ([f"at the end: {at_the_end}"] if at_the_end else []))
