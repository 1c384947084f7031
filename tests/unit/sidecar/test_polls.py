"""R13: whose poll may delete."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from everstep_protocol.messages import PollRequest
from everstep_sidecar.changes import Changes
from everstep_sidecar.routes import Routes

IDS = ("a" * 64,)


@pytest.mark.parametrize(
    ("plan", "asked", "highest", "told"),
    [
        (3, 3, 3, [IDS]),
        (3, 2, 3, []),
        (3, 4, 3, []),
        (3, 3, 4, []),
        (3, 4, 4, []),
    ],
    ids=[
        "the attempt that this pod coordinates, and the highest",
        "an older one is asked for",
        "a newer one is asked for",
        "a higher one was announced: the older coordinator deletes nothing",
        "a higher one was announced, and is asked for",
    ],
)
def test_r13_only_the_coordinator_of_the_highest_attempt_deletes(
    plan: int, asked: int, highest: int, told: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[str, ...]] = []
    coordinator = SimpleNamespace(commits=SimpleNamespace(condemn=heard.append))
    agent = SimpleNamespace(plan=SimpleNamespace(attempt=plan), coordinator=coordinator)
    pod = SimpleNamespace(highest=highest, changes=Changes())
    routes = Routes(cast(Any, pod), cast(Any, agent), cast(Any, None))
    monkeypatch.setattr(routes, "status", lambda: None)
    asyncio.run(routes.poll("operator", PollRequest(None, 0.0, asked, IDS)))
    assert heard == told
