"""docs/conditions.md has every reason that the code can give, seen as what the core gives it, and no other."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from everstep_operator.cluster.report import condition_notices
from everstep_operator.core.model import Decision, Settings
from everstep_protocol import codec
from unit.core import toy_stories
from unit.core.test_decide import CASES

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "conditions.md"
SOURCES = (
    "operator/everstep_operator/core",
    "operator/everstep_operator/cluster",
    "operator/everstep_operator/handlers",
    "sidecar/everstep_sidecar",
    "trainer_lib/everstep_protocol/resume.py",
    "trainer_lib/everstep/saving.py",
)
REASON = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)*")
COMPOUND = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)+")
PLACE_OF_REASON = {"Outcome": 1, "Condition": 2, "Notice": 1, "Trouble": 0, "Stop": 0, "FailedSave": 1}
KUBERNETES = {
    "AlreadyExists",
    "ContainerCannotRun",
    "ContainerCreating",
    "ContainerStatusUnknown",
    "CreateContainerError",
    "InvalidImageName",
    "RunContainerError",
    "StartError",
    "CrashLoopBackOff",
    "DisruptionTarget",
    "ErrImageNeverPull",
    "FallbackToLogsOnError",
    "NoExecute",
    "NotIn",
    "OnFailure",
    "PodInitializing",
    "PodScheduled",
    "PreemptionByScheduler",
    "ReadOnlyMany",
    "ReadWriteMany",
    "RuntimeDefault",
}
NEVER_SHOWN = {  # of answers that no condition repeats
    "FirstStart",
    "OffLineage",
    "HigherAttempt",
    "HigherFence",
    "Fenced",
    "Incomplete",
    "Withheld",  # only on a sidecar's /status
}
SEEN_AS = re.compile(r"`(\w+=\w+)`|(\w+ Event)")


def modules() -> Iterator[ast.Module]:
    for source in SOURCES:
        path = ROOT / source
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield ast.parse(file.read_text())


def text_of(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def words_of(node: ast.AST) -> Iterator[str]:
    """What this node says that is a reason: by its place, or as a compound word: few of those are anything else here."""
    given: list[ast.expr] = []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PLACE_OF_REASON:
        given += node.args[PLACE_OF_REASON[node.func.id] :][:1]
    elif isinstance(node, ast.keyword) and node.arg in ("reason", "result_reason"):
        given.append(node.value)
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):  # (phase, reason, message)
        given += node.value.elts[1:2]
    yield from (word for one in given if (word := text_of(one)) and REASON.fullmatch(word))
    if isinstance(node, ast.Constant) and COMPOUND.fullmatch(text_of(node)):
        yield text_of(node)


@cache
def coded() -> frozenset[str]:
    """Every such word of the code."""
    return frozenset(word for module in modules() for node in ast.walk(module) for word in words_of(node))


def of_code() -> set[str]:
    return set(coded() - KUBERNETES - NEVER_SHOWN)


def documented() -> dict[str, set[str]]:
    """Each reason of the page with what it is seen as."""
    found: dict[str, set[str]] = {}
    heading = ""
    for line in DOCUMENT.read_text().splitlines():
        row = re.match(r"\| `([A-Za-z]+)` \| ([^|]+) \|", line)
        title = re.fullmatch(r"### `(\w+)`", line)
        if title:
            heading = title[1]
        elif line.startswith("#"):
            heading = ""
        elif heading and line.startswith("Seen as:"):
            found[heading] = seen_as(line)
        elif row and REASON.fullmatch(row[1]) and (COMPOUND.fullmatch(row[1]) or SEEN_AS.search(row[2])):
            found[row[1]] = seen_as(row[2])
    return found


def seen_as(text: str) -> set[str]:
    return {condition or event for condition, event in SEEN_AS.findall(text)}


def test_every_reason_is_documented() -> None:
    assert sorted(of_code() - documented().keys()) == []


def test_no_reason_is_documented_that_is_gone() -> None:
    assert sorted(documented().keys() - of_code()) == []


def test_what_is_not_counted_is_still_there() -> None:
    assert sorted((KUBERNETES | NEVER_SHOWN) - coded()) == []


def test_timers_are_named_with_their_defaults() -> None:
    defaults = {codec.camel(field.name): field.default for field in dataclasses.fields(Settings)}
    told = re.findall(r"`([a-z]+[A-Z]\w+)`\s\(([\d.]+)(?: s)?\)", DOCUMENT.read_text())
    assert told
    assert [(name, value) for name, value in told if defaults.get(name) != float(value)] == []


def decisions() -> Iterator[Decision]:
    yield from (decision for _, decision in CASES.values())
    yield from (moment.play.world.last for moment in toy_stories.moments() if moment.play.world.last)


@cache
def shown() -> dict[str, set[str]]:
    """As what the core's tables and the toy cluster's stories show each reason."""
    found: dict[str, set[str]] = defaultdict(set)
    for decision in decisions():
        for condition in decision.conditions:
            found[condition.reason].add(f"{condition.type}={condition.status}")
        for notice in (*decision.notices, *condition_notices([], decision)):
            found[notice.reason].add(f"{notice.type} Event")
    return found


@pytest.mark.parametrize("reason", sorted(shown()))
def test_what_a_reason_is_seen_as_is_documented(reason: str) -> None:
    assert shown()[reason] <= documented()[reason]
