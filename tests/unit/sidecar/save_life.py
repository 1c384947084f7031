"""A normal life of an attempt's saves on a real folder, with one pod: what the tests of failing storage go through."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from everstep_protocol import storage
from everstep_protocol.messages import MemberState
from everstep_sidecar import save_watch
from everstep_sidecar.backoff import Backoff
from everstep_sidecar.changes import Changes
from everstep_sidecar.commits import Commits
from everstep_sidecar.coordinator_link import CoordinatorLink
from everstep_sidecar.core.membership import Heard
from everstep_sidecar.metrics import Metrics
from everstep_sidecar.pod import Pod
from everstep_sidecar.saver import Saver
from everstep_sidecar.settings import Settings
from everstep_sidecar.store.fence import raise_fence
from everstep_sidecar.store.files import Files
from everstep_sidecar.store.listing import list_checkpoints
from hang_limit import hang_seconds
from store_support import world

SAVED = (10, 20, 40)
DAMAGED = 30
FAILS_ONCE = "__1_0.distcp"  # of step 40: its directory is given up and written again
SPEED = 50.0  # a life's seconds in one
HANG_SECONDS = hang_seconds(90.0)
FIRST = world.make_plan(1, world=2)
PLAN = world.make_plan(2, world=2, lineage=((1, 5),))
_pauses: ContextVar[list[float]] = ContextVar("_pauses")


async def pause_briefly(self: Backoff) -> None:
    """Stands for `Backoff.pause`."""
    seconds = self.take()
    _pauses.get().append(seconds)
    await asyncio.sleep(seconds / SPEED)


def kind_of(verb: str, path: Path, root: Path) -> tuple[str, str]:
    """A step without what is another at each try."""
    name = re.sub(r"step_(10|20|40)\b", "step_N", str(path.relative_to(root)))
    return verb, re.sub(r"rank_\d|__\d_", "rank_N", re.sub(r"[0-9a-f]{32,64}", "*", name))


@dataclass
class Life:
    """One attempt's saves. `broken`: the step that fails for ever; with `number` 0 it hangs."""

    folder: Path
    broken: tuple[str, str] | None = None
    number: int = 0
    hits: int = 0
    kinds: dict[tuple[str, str], None] = field(default_factory=dict)
    pauses: list[float] = field(default_factory=list)
    ahead: float = 0.0  # seconds by which its clock is ahead
    released: threading.Event = field(default_factory=threading.Event)
    failed_once: bool = False

    def __post_init__(self) -> None:
        self.root, self.memory = self.folder / "root", self.folder / "memory"
        world.begin(self.root, FIRST)
        (self.condemned, self.kept) = world.committed(self.root, self.folder / "before", FIRST, 4, 5)
        (self.root / f"{storage.TRASH_PREFIX}{'a' * 64}").mkdir()
        (self.root / "fenced" / "0001" / "step_1.tmp-0").mkdir(parents=True)
        raise_fence(self.root, world.make_fence(2))
        world.start(self.root, PLAN)
        self.snapshots = {
            step: world.make_snapshot(self.memory / "snapshots", PLAN, step) for step in (*SAVED, DAMAGED)
        }
        (self.snapshots[DAMAGED] / storage.ready_name(1)).write_text("{")

    def before(self, verb: str, path: Path) -> None:
        """The layer's hook: called in the threads that do the steps."""
        kind = kind_of(verb, path, self.root)
        self.kinds[kind] = None
        if kind == self.broken and not self.released.is_set():
            self.hits += 1
            if self.number == 0:
                self.released.wait(HANG_SECONDS)
            else:
                raise OSError(self.number, os.strerror(self.number), str(path))
        if verb == "write" and path.name == FAILS_ONCE and "step_40" in str(path) and not self.failed_once:
            self.failed_once = True
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(path))

    def begin(self) -> None:
        """Within the event loop: the parts of a sidecar that save."""
        _pauses.set(self.pauses)
        settings = SimpleNamespace(memory=self.memory, job_storage=self.root, job_uid=world.JOB, owner=world.OWNER)
        self.pod = _Pod(cast(Settings, settings))
        pod = cast(Pod, self.pod)
        self.commits = Commits(pod, PLAN, on_higher=lambda highest: None, heard=self._heard, clock=self.now)
        coordinator = cast(Any, SimpleNamespace(commits=self.commits))
        link = CoordinatorLink(cast(Any, None), PLAN, self.pod.uid, coordinator)
        self.saver = Saver(pod, PLAN, PLAN.members[0], link)
        self.running = [asyncio.create_task(work) for work in (self.saver.run(), self._learn(), self._ask())]

    def __str__(self) -> str:
        return (
            f"{self.broken} {errno.errorcode.get(self.number, 'hangs')}, {self.hits} calls, {len(self.pauses)} pauses"
        )

    async def until(self, condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + HANG_SECONDS
        while not condition():
            assert time.monotonic() < end, f"still not so: {what}: {self}: told {self.commits.failure()}"
            assert not self.pod.failed
            assert not any(task.done() for task in self.running)
            await asyncio.sleep(0.02)

    async def end(self) -> None:
        self.commits.close()
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)

    def is_done(self) -> bool:
        """Everything is saved that can be, and what is to go is gone."""
        left = {f"{storage.TRASH_PREFIX}{'a' * 64}", f"{storage.TRASH_PREFIX}{self.condemned}", "step_30.tmp-2"}
        if not self._is_hidden("step_4/manifest.json"):  # then it is nobody's
            left.add("step_4")
        return (
            self.is_saved()
            and not any(snapshot.exists() for snapshot in self.snapshots.values())
            and not left & set(os.listdir(self.root))  # noqa: PTH208
            and (self._is_hidden("fenced", "fenced/0001") or not (self.root / "fenced" / "0001").exists())
            and self.condemned in self.commits.deleted
            and self.commits.failure() is None
        )

    def is_told(self) -> bool:
        """Whether a failure is told that does not belong to the normal life."""
        told = self.commits.failure()
        return told is not None and told.reason != "EDQUOT" and "is damaged" not in told.message

    def is_told_by_whoever_met_it(self) -> bool:
        """That a save is overdue is for silence only."""
        told = self.commits.failure()
        return self.is_told() and told is not None and told.reason != save_watch.REASON

    def lost(self) -> set[int]:
        """Steps that are neither complete on storage nor whole in memory."""
        complete = {
            v.step for v in list_checkpoints(self.root, frozenset({world.JOB}), Files()) if v.state == "complete"
        }
        whole = {
            step
            for step, snapshot in self.snapshots.items()
            if all((snapshot / storage.ready_name(rank)).exists() for rank in range(PLAN.world))
        }
        return {5, *SAVED} - complete - whole

    def is_saved(self) -> bool:
        return all(self.commits.is_committed(step) for step in SAVED)

    def _is_hidden(self, *names: str) -> bool:
        """Whether the storage says that one of these is not there."""
        return self.number == errno.ENOENT and self.broken is not None and self.broken[1] in names

    def _heard(self) -> dict[str, Heard]:
        age = self.saver.bytes_age_seconds
        state = MemberState(2, "running", 40, {}, bytes_age_seconds=None if age is None else age * SPEED + self.ahead)
        return {self.pod.uid: Heard(state, 0.0)}

    def now(self) -> float:
        """Its own clock."""
        return time.monotonic() * SPEED + self.ahead

    async def _learn(self) -> None:
        """As the coordinator does."""
        backoff = Backoff()
        while True:
            try:
                await self.commits.start()
            except OSError:
                await backoff.pause()
            else:
                break
        await asyncio.Event().wait()

    async def _ask(self) -> None:
        """As the operator polls and the members report: again and again."""
        while True:
            self.commits.condemn((self.condemned,))
            self.commits.note_step(40)
            await asyncio.sleep(0.1)


class _QuickChanges(Changes):
    """Answers are held for as long as the life's own clock says."""

    async def wait(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        return await super().wait(condition, None if seconds is None else seconds / SPEED)


class _Pod:
    """What saves need of a pod."""

    uid = PLAN.coordinator.uid
    highest = PLAN.attempt

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.changes = _QuickChanges()
        self.metrics = Metrics()
        self.failed = False

    def on_failure(self) -> None:
        self.failed = True

    async def storage(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(function, self.settings.job_storage, *args, **kwargs)
