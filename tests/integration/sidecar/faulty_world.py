"""A job of two real sidecars whose storage fails or hangs as a test says, and the phases of its life."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from everstep_protocol import local
from everstep_protocol.messages import PrepareAnswer, SidecarStatus, Trouble
from everstep_protocol.plan import Plan
from integration.sidecar.sidecar_harness import REPOSITORY, Pod, Trainer, World

PHASES = ("prepare", "start", "save", "delete", "finish")
Call = tuple[str, str]  # verb, kind of path


@dataclass
class FaultyStorage:
    """What the two sidecars' storage does, and what they did on it."""

    folder: Path
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


@contextmanager
def faulty_world() -> Iterator[Life]:
    """Up, with launchers, on a storage that is well."""
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
            yield Life(world, storage)
        finally:
            storage.set()
            world.close()
