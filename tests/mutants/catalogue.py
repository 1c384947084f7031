"""The list of mutants: what an entry says, and what keeps the list true to the code. `run.py` applies them.

One TOML file for each area; an entry breaks one thing that a rule or a timer promises, and names the tests that must notice:

    [[mutant]]
    rule = "R9"             # R1 to R34, or one of CLASSES
    name = "..."            # a sentence: what is broken
    file = "trainer_lib/everstep_protocol/lineage.py"
    old = '''...'''         # stands exactly once in the file
    new = '''...'''
    tests = ["tests/unit/protocol/test_lineage.py"]   # files or node ids; the narrowest that must fail
    timer = "..."           # a name of `timers.py`, where the entry takes that timer out
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

RULES = tuple(f"R{number}" for number in range(1, 35))
CLASSES = {
    "TIMER": "a time-out, a pause or an interval that belongs to no rule",
    "FOLDER": "checkpoints in a folder outside a cluster",
    "FORMAT": "what is written and read: documents, names, commands",
    "STATE": "what the ranks' state is made of, and that they agree on it",
    "LAUNCHER": "how trainers are started, watched and ended",
    "BOUND": "what would grow without an end",
    "START": "workers that do not start: whose fault it is, and what comes of it",
    "GROWTH": "when a job is stopped for more workers",
    "TELL": "what people are told, and that it is stable",
}


class InvalidList(ValueError):
    """A file of the list is not what it should be."""


@dataclass(frozen=True)
class Mutant:
    """One thing broken on purpose, and who must notice."""

    rule: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    timer: str = ""


@dataclass(frozen=True)
class Exempt:
    """What has no entry, and why: rules that are not built, timers that no test can see."""

    rules: dict[str, str]
    timers: dict[str, str]


def load(folder: Path) -> tuple[Mutant, ...]:
    """All entries, file by file. Raises InvalidList."""
    return tuple(
        _mutant(path, number, entry)
        for path in sorted(folder.glob("*.toml"))
        if path.name != "exempt.toml"
        for number, entry in enumerate(_read(path).get("mutant", []), 1)
    )


def load_exempt(folder: Path) -> Exempt:
    """`exempt.toml`. Raises InvalidList."""
    document = _read(folder / "exempt.toml")
    return Exempt(document.get("rules", {}), document.get("timers", {}))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise InvalidList(f"{path.name}: {error}") from error


def _mutant(path: Path, number: int, entry: dict[str, Any]) -> Mutant:
    try:
        return Mutant(**{**entry, "tests": tuple(entry["tests"])})
    except (KeyError, TypeError) as error:
        raise InvalidList(f"{path.name}: entry {number} ({entry.get('name', 'without a name')}): {error}") from error


def problems(root: Path, mutants: tuple[Mutant, ...]) -> list[str]:
    """Why entries cannot be run, a line each: unknown rule, does not apply, unknown test, a name given twice."""
    names = [mutant.name for mutant in mutants]
    twice = [
        f"{name}: two entries have this name" for name in sorted({name for name in names if names.count(name) > 1})
    ]
    found = (problem(root, mutant) for mutant in mutants)
    return twice + [f"{mutant.name}: {why}" for mutant, why in zip(mutants, found, strict=True) if why]


def problem(root: Path, mutant: Mutant) -> str:
    """Why this entry cannot be run; empty if it can."""
    if mutant.rule not in RULES and mutant.rule not in CLASSES:
        return f"rule {mutant.rule} is none of R1 to R34, {', '.join(CLASSES)}"
    return _why_not_applicable(root / mutant.file, mutant) or _why_no_test(root, mutant)


def _why_not_applicable(path: Path, mutant: Mutant) -> str:
    if not path.is_file():
        return f"DOES NOT APPLY: there is no {mutant.file}"
    text = path.read_text()
    count = text.count(mutant.old) if mutant.old else 0
    if count != 1:
        return f"DOES NOT APPLY: its old text stands {count} times in {mutant.file}, not once"
    if mutant.old == mutant.new:
        return "DOES NOT APPLY: old and new text are the same"
    return _why_not_python(mutant, text.replace(mutant.old, mutant.new))


def _why_not_python(mutant: Mutant, text: str) -> str:
    """What cannot be read at all proves nothing: every test fails with it."""
    if not mutant.file.endswith(".py"):
        return ""
    try:
        compile(text, mutant.file, "exec")
    except SyntaxError as error:
        return f"DOES NOT APPLY: {mutant.file} is no Python with its new text: line {error.lineno}: {error.msg}"
    return ""


def _why_no_test(root: Path, mutant: Mutant) -> str:
    if not mutant.tests:
        return "UNKNOWN TEST: it names none"
    unknown = [test for test in mutant.tests if not _exists(root, test)]
    return f"UNKNOWN TEST: {', '.join(unknown)}" if unknown else ""


def _exists(root: Path, test: str) -> bool:
    """Whether a file, or a function in it, is there. What a test is parametrised with only pytest knows."""
    file, _, name = test.partition("[")[0].partition("::")
    path = root / file
    if not name:
        return path.exists()
    return (
        path.is_file()
        and re.search(rf"^\s*(async )?def {re.escape(name.split('::')[-1])}\(", path.read_text(), re.M) is not None
    )


def gaps(mutants: tuple[Mutant, ...], exempt: Exempt, timers: frozenset[str]) -> list[str]:
    """Rules and timers without an entry, and exemptions that are no longer needed: a line each."""
    return [
        *_gaps("rule", frozenset(RULES), {mutant.rule for mutant in mutants} - set(CLASSES), exempt.rules),
        *_gaps("timer", timers, {mutant.timer for mutant in mutants if mutant.timer}, exempt.timers),
    ]


def _gaps(what: str, wanted: frozenset[str], have: set[str], exempt: dict[str, str]) -> list[str]:
    missing = sorted(wanted - have - set(exempt))
    needless = sorted(have & set(exempt))
    unknown = sorted((have | set(exempt)) - wanted)
    bare = sorted(name for name, why in exempt.items() if not why.strip())
    return [
        *(f"{what} {name}: no mutant takes it out, and exempt.toml gives no reason" for name in missing),
        *(f"{what} {name}: has an entry, and is in exempt.toml too: take it out there" for name in needless),
        *(f"{what} {name}: is named in the list, and there is none of this name" for name in unknown),
        *(f"{what} {name}: is in exempt.toml without a reason" for name in bare),
    ]
