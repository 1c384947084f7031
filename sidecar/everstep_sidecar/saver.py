"""From memory to storage: this pod's snapshots of one attempt, persisted one after the other until each is committed or dropped."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from everstep_protocol import storage
from everstep_protocol.messages import SaveNotice
from everstep_protocol.plan import Member, Plan
from everstep_protocol.records import RankRecord, Ready

from everstep_sidecar import snapshots
from everstep_sidecar.backoff import Backoff
from everstep_sidecar.client import Refused, Unanswered
from everstep_sidecar.coordinator_link import CoordinatorLink
from everstep_sidecar.pod import Pod
from everstep_sidecar.store import failures, temporary

LOOK_SECONDS = 0.5  # how often to look where no nudge came
AGAIN_SECONDS = 0.2  # after something was settled
LARGEST_BACKOFF_SECONDS = 30.0
LOOKS_PAST_CACHES = 2  # in a row: then it is the mount, neither a cache nor a directory that was made anew meanwhile
_log = logging.getLogger(__name__)

# `failed`: the coordinator knows why. `unseen`: this mount does not show the directory; `gone`: it does, and denies what is in it.
Written = Literal["written", "unseen", "gone", "failed"]
MISSED = {
    "unseen": (temporary.NOT_SHARED, "its directory is not seen here"),
    "gone": (errno.errorcode[errno.ENOENT], "its directory is seen here, but what is written there is not"),
}


@dataclass(frozen=True)
class Snapshot:
    """One step that is whole in memory on all ranks of this pod, or that can never be: `problem` says why."""

    step: int
    folder: Path
    ready: tuple[Ready, ...]
    problem: str = ""


@dataclass
class Stuck:
    """When to try again to remove a snapshot from memory (monotonic seconds)."""

    backoff: Backoff
    due_at: float


class Saver:
    """R16: what fails is tried again, with back-off, as long as the snapshot lives; training goes on meanwhile."""

    def __init__(self, pod: Pod, plan: Plan, member: Member, coordinator: CoordinatorLink) -> None:
        self._pod = pod
        self._plan = plan
        self._member = member
        self._coordinator = coordinator
        self._folder = snapshots.folder_of(pod.settings.memory, plan.attempt)
        self._nudged = asyncio.Event()
        self._busy = False
        self._is_idle = False  # nothing was found since the last nudge
        self._stuck: dict[int, Stuck] = {}  # settled steps whose files could not be removed from memory
        self._bytes_at: float | None = None  # monotonic seconds
        self.newest_step = -1  # of the snapshots that were whole here

    @property
    def is_busy(self) -> bool:
        """Whether a snapshot is being persisted."""
        return self._busy

    @property
    def bytes_age_seconds(self) -> float | None:
        """Since bytes last reached the storage from here; None: nothing is being written."""
        at = self._bytes_at
        return None if at is None else time.monotonic() - at

    def nudge(self) -> None:
        """A trainer says that something is ready."""
        self._is_idle = False
        self._nudged.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._nudged.clear()
            self._busy = True
            await self._remove_stuck()
            found = await asyncio.to_thread(self._find)
            for snapshot in found:
                self.newest_step = max(self.newest_step, snapshot.step)
                await self._settle(snapshot)
            self._busy = False
            self._is_idle = not found and not self._nudged.is_set()
            self._pod.changes.stir()
            await self._wait_for_nudge(AGAIN_SECONDS if found else LOOK_SECONDS)

    async def drained(self) -> None:
        """Wait until nothing is left in memory that is not settled. That it was committed is for the coordinator to say."""
        self.nudge()
        await self._pod.changes.wait(lambda: self._is_idle)

    async def _wait_for_nudge(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._nudged.wait()

    def _find(self) -> list[Snapshot]:
        try:
            folders = [folder for folder in self._folder.iterdir() if self._is_work(folder)]
        except FileNotFoundError:
            return []
        found = (self._look(folder) for folder in folders)
        return sorted((one for one in found if one is not None), key=lambda one: one.step)

    def _is_work(self, folder: Path) -> bool:
        step = storage.parse_step_name(folder.name)
        return step is not None and step not in self._stuck and folder.is_dir()

    def _look(self, folder: Path) -> Snapshot | None:
        try:
            ready = tuple(temporary.read_ready(folder, rank) for rank in range(*self._member.ranks))
        except temporary.BadSnapshot as error:
            return Snapshot(storage.parse_step_name(folder.name) or 0, folder, (), str(error))
        whole = tuple(one for one in ready if one is not None and one.plan_id == self._plan.plan_id)
        return Snapshot(whole[0].step, folder, whole) if len(whole) == len(ready) else None

    async def _settle(self, snapshot: Snapshot) -> None:
        """Until it is committed, given up, or gone."""
        began = time.monotonic()
        if snapshot.problem:
            error = temporary.BadSnapshot(snapshot.problem)
            answer = await self._failed(snapshot, "invalid", error)
        else:
            answer = await self._persist(snapshot)
        if answer not in ("committed", "drop"):
            return
        await self._remove(snapshot.folder, snapshot.step)
        self._pod.metrics.stage("total", time.monotonic() - began)
        _log.info("snapshot %s", answer, extra={"step": snapshot.step})

    async def _persist(self, snapshot: Snapshot) -> str:
        """`committed` or `drop`; anything else: it is gone."""
        backoff = Backoff(most=LARGEST_BACKOFF_SECONDS)
        looks = 0
        answer = ""
        while await asyncio.to_thread(self._is_there, snapshot):
            answer = await self._ask(snapshot, "ready")
            if answer == "write":
                written = await self._write(snapshot)
                looks = looks + 1 if written in MISSED else 0
                if written == "written":
                    answer = await self._wait_for_commit(snapshot)
                elif looks >= LOOKS_PAST_CACHES:
                    reason, what = MISSED[written]
                    answer = await self._failed(snapshot, reason, temporary.Fenced(what))
            if answer in ("committed", "drop"):
                break
            await backoff.pause()
        return answer

    async def _wait_for_commit(self, snapshot: Snapshot) -> str:
        """B14: the ranks take a snapshot away when one of them could not finish its own: then nobody is waited for any more."""
        backoff = Backoff()
        while await asyncio.to_thread(self._is_there, snapshot):
            answer = await self._ask(snapshot, "durable")  # the coordinator holds its answer
            if answer != "wait":
                return answer
            await backoff.pause()
        return "wait"

    def _is_there(self, snapshot: Snapshot) -> bool:
        return all((snapshot.folder / storage.ready_name(ready.rank)).exists() for ready in snapshot.ready)

    async def _write(self, snapshot: Snapshot) -> Written:
        """Copy, checksum, fsync each rank's files."""
        began = time.monotonic()
        try:
            records = await self._write_ranks(snapshot)
        except temporary.BadSnapshot as error:
            await self._failed(snapshot, "invalid", error)
        except temporary.Fenced as error:
            # Taken by a fence, taken away after a failure, or another storage: asking again tells which.
            _log.info("the temporary directory is gone: %s", error, extra={"step": snapshot.step})
            return await self._look_past_caches(snapshot)
        except OSError as error:
            await self._failed(snapshot, failures.word_of(error), error)
        else:
            self._pod.metrics.copied(sum(file.bytes for record in records for file in record.files))
            self._pod.metrics.stage("copy", time.monotonic() - began)
            return "written"
        return "failed"

    async def _look_past_caches(self, snapshot: Snapshot) -> Written:
        try:
            is_seen = await self._pod.storage(temporary.is_seen, self._plan.attempt, snapshot.step)
        except OSError as error:
            await self._failed(snapshot, failures.word_of(error), error)
            return "failed"
        return "gone" if is_seen else "unseen"

    async def _write_ranks(self, snapshot: Snapshot) -> list[RankRecord]:
        """Raises the first failure when no rank's copy is under way any more: what follows may take the directory away."""
        self._note_bytes()
        writing = (self._write_rank(snapshot, ready) for ready in snapshot.ready)
        try:
            outcomes = await asyncio.gather(*writing, return_exceptions=True)
        finally:
            self._bytes_at = None
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, RankRecord)]

    async def _write_rank(self, snapshot: Snapshot, ready: Ready) -> RankRecord:
        job_uid = self._pod.settings.job_uid
        return await self._pod.storage(
            temporary.write_rank, snapshot.folder, ready, job_uid=job_uid, on_block=self._note_bytes
        )

    def _note_bytes(self) -> None:
        """From any thread."""
        self._bytes_at = time.monotonic()

    async def _failed(self, snapshot: Snapshot, reason: str, error: Exception) -> str:
        _log.warning("cannot persist this save (%s): %s", reason, error, extra={"step": snapshot.step})
        self._pod.metrics.failed(reason)
        return await self._ask(snapshot, "failed", reason)

    async def _ask(self, snapshot: Snapshot, stage: str, reason: str = "") -> str:
        """The coordinator's answer; asked again until there is one."""
        ranks = self._member.ranks
        notice = SaveNotice(self._plan.attempt, self._plan.plan_id, snapshot.step, ranks, stage, reason)  # type: ignore[arg-type]
        backoff = Backoff()
        told = False
        while True:
            try:
                return (await self._coordinator.save(notice)).answer
            except (Unanswered, Refused) as error:
                if not told:
                    _log.info("the coordinator does not answer a save notice: %s", error, extra={"step": snapshot.step})
                told = True
            await backoff.pause()

    async def _remove(self, folder: Path, step: int) -> None:
        """Free the memory; what stays is tried again, and its save is not told a second time."""
        await asyncio.to_thread(snapshots.remove, folder)
        if not await asyncio.to_thread(folder.exists):
            self._stuck.pop(step, None)
            return
        stuck = self._stuck.setdefault(step, Stuck(Backoff(1.0, 60.0), 0.0))
        stuck.due_at = time.monotonic() + stuck.backoff.take()

    async def _remove_stuck(self) -> None:
        now = time.monotonic()
        for step in [step for step, stuck in self._stuck.items() if stuck.due_at <= now]:
            await self._remove(self._folder / storage.step_name(step), step)
