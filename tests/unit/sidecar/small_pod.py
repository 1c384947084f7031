"""A pod of which a test makes real what it needs: its storage, its launcher and the other pods are as the test says."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from everstep_protocol import local, names
from everstep_protocol.messages import Peer
from everstep_protocol.records import Owner
from everstep_protocol.shared_memory import PHASES, Page, Progress
from everstep_sidecar.backoff import Backoff
from everstep_sidecar.client import Unanswered
from everstep_sidecar.metrics import Metrics
from everstep_sidecar.pod import Pod
from everstep_sidecar.progress import TrainerPages
from everstep_sidecar.scratch import Scratch
from hang_limit import hang_seconds
from unit.sidecar.test_member_side import make_pod

LIMIT_SECONDS = hang_seconds(30.0)
FOR_EVER = 3600.0


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Within a limit on hangs."""
    asyncio.run(asyncio.wait_for(scenario, LIMIT_SECONDS))


async def until(condition: Callable[[], object]) -> None:
    """Look until it is true."""
    while not condition():  # noqa: ASYNC110 - of whatever kind it is
        await asyncio.sleep(0.005)


async def turns() -> None:
    """All that can be done now is done."""
    for _ in range(20):
        await asyncio.sleep(0)


@dataclass
class Storage:
    """Calls into the storage. `answers`: by the function's name; an error is raised, and what is not named never returns."""

    answers: dict[str, Any] = field(default_factory=dict)

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if function.__name__ not in self.answers:
            await asyncio.Event().wait()
        answer = self.answers[function.__name__]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def trouble(self) -> None:
        """It says nothing of itself."""


@dataclass
class Launcher:
    """The link to a launcher that is there and says nothing."""

    connected: bool = True
    nonce: str = "nonce"
    leaving: bool = False
    running: int = 0
    finished: int = 0
    stopped: int = 0
    exited: local.ProcessExited | None = None
    port: local.PortChosen | None = None
    orders: list[local.Message] = field(default_factory=list)
    forbidden: list[tuple[int, float]] = field(default_factory=list)

    def is_stopped(self, attempt: int) -> bool:
        return True

    def choose_port(self, attempt: int) -> None:
        self.port = None

    def forbid(self, attempt: int, grace_seconds: float = 0.0) -> None:
        self.forbidden.append((attempt, grace_seconds))

    def order(self, message: local.Message) -> None:
        self.orders.append(message)

    def silent_seconds(self, attempt: int) -> float:
        return math.inf


@dataclass
class Nobody:
    """The other pods: none answers. `waited`: by path, for how many seconds each was asked at most."""

    waited: dict[str, list[float]] = field(default_factory=dict)

    async def post(self, peer: Peer, path: str, request: Any, kind: type[Any], *, seconds: float = 5.0) -> Any:
        self.waited.setdefault(path, []).append(seconds)
        await asyncio.sleep(0)
        raise Unanswered(f"{peer.ip} says nothing")


def pod_of(folder: Path, uid: str, **parts: Any) -> Pod:
    """`parts`: those that the test plays itself."""
    storage = folder / "storage"
    storage.mkdir()
    settings = SimpleNamespace(
        pod_uid=uid,
        pod_ip="10.0.0.9",
        job_uid="job",
        owner=Owner(1, "cluster", "team", "gpt", "job"),
        place=f"pod {uid}",
        memory=folder,
        storage=storage,
        job_storage=storage,
    )
    known: dict[str, Any] = {
        "settings": settings,
        "pages": TrainerPages(folder),
        "metrics": Metrics(),
        "link": Launcher(),
        "client": Nobody(),
        "calls": Storage(),
    }
    return replace(make_pod(Scratch(folder)), **{**known, **parts})


def report(memory: Path, attempt: int, step: int, phase: str) -> None:
    """As the trainer of the first local rank does."""
    page: Page[Progress] = Page(memory / f"{names.PROGRESS_PREFIX}0", Progress)
    page.open(create=True)
    page.write(Progress(attempt, step, 1, 1, PHASES.index(phase), 0, 0))
    page.close()


@dataclass
class Pauses:
    """What tries would wait between one another (seconds); they do not. `many`: it is plain how they go on."""

    taken: list[float] = field(default_factory=list)
    many: asyncio.Event = field(default_factory=asyncio.Event)

    async def pause(self, backoff: Backoff) -> None:
        self.taken.append(backoff.take())
        if len(self.taken) >= 10:
            self.many.set()
        await asyncio.sleep(0)

    def span(self) -> tuple[float, float]:
        """The first and the longest."""
        return self.taken[0], max(self.taken)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    made = Pauses()
    monkeypatch.setattr(Backoff, "pause", lambda backoff: made.pause(backoff))  # noqa: PLW0108 - a method is bound already
    return made


def within(span: tuple[float, float], first: float, longest: float) -> bool:
    """Whether tries wait so long first and so long at most: each wait may be a quarter longer by chance."""
    return first <= span[0] <= 1.25 * first and longest <= span[1] <= 1.25 * longest


def played(part: Any) -> Any:
    """A part that the test plays, whatever type is asked for."""
    return cast(Any, part)
