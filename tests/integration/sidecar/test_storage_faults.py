"""Real sidecars on a storage each of whose calls fails or hangs for ever: it is said, nothing is called bad, nothing is tried in a
loop, and when it heals the attempt goes on. The calls are those of a normal life, so that a new one is among them by itself."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from everstep_protocol import local
from everstep_protocol.messages import PrepareAnswer, SidecarStatus, Trouble
from everstep_protocol.plan import Plan
from integration.sidecar.sidecar_harness import REPOSITORY, Pod, Trainer, World

ERRORS = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.ESTALE, errno.ENOENT)
PHASES = ("prepare", "start", "save", "delete", "finish")
MOST_A_SECOND = 5
Call = tuple[str, str]  # verb, kind of path


@dataclass
class FaultyStorage:
    """What the two sidecars' storage does, and what they did on it."""

    folder: Path
    healthy: float = 0.0
    recorded: dict[str, dict[Call, None]] = field(default_factory=dict)

    @property
    def faults(self) -> Path:
        return self.folder / "faults"

    def set(self, *lines: str) -> None:
        staged = self.faults.with_suffix(".new")
        staged.write_text("\n".join(lines))
        staged.rename(self.faults)

    def steps(self, pod: Pod, since: float = 0.0) -> list[tuple[float, Call]]:
        lines = [line.split() for line in (self.folder / f"steps-{pod.index}").read_text().splitlines()]
        return [(float(at), (verb, kind)) for at, verb, kind in lines if float(at) >= since]


class Life:
    """A job of two pods, attempt after attempt."""

    def __init__(self, world: World, storage: FaultyStorage) -> None:
        self.world = world
        self.storage = storage
        self.attempt = 0
        self.plan: Plan | None = None
        self.answer: PrepareAnswer | None = None
        self.trainers: list[Trainer] = []
        self.places: list[Path] = []
        self.condemned = ""

    # Each phase begins something, and gives what says that it is done.

    def prepare(self) -> Callable[[], bool]:
        self.attempt += 1
        self.answer = None
        return self._is_prepared

    def _is_prepared(self) -> bool:
        request = self.world.request(self.attempt, expected=self.world.pods)
        answer = self.world.pods[0].ask_ok("/v1/prepare", request, PrepareAnswer)
        self.answer = answer
        return answer.outcome == "ready"

    def start(self) -> Callable[[], bool]:
        assert self.answer is not None
        assert self.answer.reason in ("FirstStart", "Newest"), self.answer  # nothing was called bad, or not seen
        self.world.lineage = self.answer.lineage
        self.plan = one = self.world.plan(self.attempt, self.world.pods, self.answer.resume)
        for pod in self.world.pods:
            pod.publish(one)
        return lambda: all(pod.launcher.find(local.Start, self.attempt) for pod in self.world.pods)

    def save(self) -> Callable[[], bool]:
        step = 10 * self.attempt
        self.trainers = [Trainer(pod.memory, pod.index, 0, self.plan) for pod in self.world.pods]
        for trainer in self.trainers:
            trainer.report(step)
        self.places = [trainer.snapshot(step) for trainer in self.trainers]
        for pod in self.world.pods:
            pod.launcher.say(local.Saved(self.attempt, step, 0))
        return lambda: not any(place.exists() for place in self.places) and self._newest() == step

    def _newest(self) -> int:
        return max((info.step for info in self.world.pods[0].status().checkpoints), default=-1)

    def delete(self) -> Callable[[], bool]:
        found = self.world.pods[0].status().checkpoints
        self.condemned = min(found, key=lambda info: info.step).id if len(found) > 1 else ""
        return self._is_deleted

    def _is_deleted(self) -> bool:
        if not self.condemned:
            return True
        answer = self.world.pods[0].poll(None, self.attempt, wait=0.0, condemned=(self.condemned,))
        return self.condemned in answer.deleted

    def finish(self) -> Callable[[], bool]:
        for trainer in self.trainers:
            trainer.report(10 * self.attempt, "finished")
        for pod in self.world.pods:
            pod.launcher.heard.clear()
            pod.launcher.say(local.Finished(self.attempt))
        return lambda: all(pod.launcher.find(local.Exit) for pod in self.world.pods)

    # What is said.

    def said(self) -> dict[tuple[str, str], Trouble]:
        statuses = [pod.status() for pod in self.world.pods]
        found = [trouble for status in statuses for trouble in _troubles(status)]
        if self.answer is not None and self.answer.outcome == "wait":
            found.append(Trouble(self.answer.reason, self.answer.message, 0.0))
        return {(trouble.reason, trouble.message): trouble for trouble in found}


def _troubles(status: SidecarStatus) -> list[Trouble]:
    all_of_them = (status.storage, status.failing, *(member.trouble for member in status.members))
    return [trouble for trouble in all_of_them if trouble is not None]


@pytest.fixture(scope="module")
def life() -> Iterator[Life]:
    with tempfile.TemporaryDirectory(prefix="job-") as name:
        folder = Path(name)
        storage = FaultyStorage(folder)
        storage.set()
        world = World(folder, 2)
        for pod in world.pods:
            pod.module = "faulty_sidecar"
            path = [REPOSITORY / "sidecar", REPOSITORY / "trainer_lib", Path(__file__).parent]
            pod.extra_env = {
                "PYTHONPATH": os.pathsep.join(map(str, path)),
                "EVERSTEP_TEST_FAULTS": str(storage.faults),
                "EVERSTEP_TEST_STEPS": str(folder / f"steps-{pod.index}"),
            }
        try:
            world.start()
            for pod in world.pods:
                pod.connect_launcher()
            one = Life(world, storage)
            _record(one)
            yield one
        finally:
            storage.set()
            world.close()


def _record(life: Life) -> None:
    """Two normal attempts; the second one resumes from a checkpoint, deletes, and has old things to take away."""
    for _ in range(2):
        for phase in PHASES:
            began = time.monotonic()
            done = getattr(life, phase)()
            life.world.pump_until(done, phase)
            steps = [call for pod in life.world.pods for _, call in life.storage.steps(pod, began)]
            life.storage.recorded[phase] = dict.fromkeys(steps)


def test_each_call_of_a_normal_life_may_hang_and_fail_for_ever(life: Life) -> None:
    calls = {phase: list(life.storage.recorded[phase]) for phase in PHASES}
    assert all(calls.values())
    for number in range(max(map(len, calls.values()))):
        for phase in PHASES:
            if number < len(calls[phase]):
                _suffer(life, phase, calls[phase][number], ERRORS[number % len(ERRORS)])
            else:
                life.world.pump_until(getattr(life, phase)(), phase)
        assert life.world.pods[0].status().over is None


def _suffer(life: Life, phase: str, call: Call, number: int) -> None:
    """One phase with one call that hangs until that is said, then fails until that is said, and then is well again."""
    verb, kind = call
    before = set(life.said())
    life.storage.set(f"{verb} {kind} hang")
    began = time.monotonic()
    done = getattr(life, phase)()
    what = f"{phase}: {verb} {kind}"
    is_done = _pump(life, lambda: _new(life, before, "StorageHangs"), done, f"{what} hangs, and it is said")
    if phase in ("start", "finish"):  # names and reads of what may not be there are no failures
        number = errno.EIO if number == errno.ENOENT and verb != "list" else number
    life.storage.set(f"{verb} {kind} {number}")
    if not is_done:
        is_tolerable = verb == "remove" or number == errno.ENOENT
        _pump(life, lambda: _new(life, before), done, f"{what} fails, and it is said", is_enough=is_tolerable)
    elapsed = time.monotonic() - began
    life.storage.set()
    for pod in life.world.pods:
        tries = [one for _, one in life.storage.steps(pod, began) if one == call]
        assert len(tries) <= MOST_A_SECOND * (elapsed + 1) * 2, what
    life.world.pump_until(done, f"{what} is well again, and it goes on")


def _new(life: Life, before: set[tuple[str, str]], reason: str = "") -> bool:
    return any(mark not in before and reason in ("", mark[0]) for mark in life.said())


def _pump(life: Life, said: Callable[[], bool], done: Callable[[], bool], what: str, *, is_enough: bool = True) -> bool:
    """Until it is said, or done where that is enough; gives whether it is done."""
    outcome: list[bool] = []

    def look() -> bool:
        is_done = done()
        outcome[:] = [is_done]
        return said() or (is_done and is_enough)

    life.world.pump_until(look, what)
    return outcome[0]
