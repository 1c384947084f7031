"""From memory to storage: this pod's snapshots of one attempt, persisted one after the other until each is committed or dropped."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from everstep_protocol import names, storage
from everstep_protocol.messages import SaveNotice
from everstep_protocol.plan import Member, Plan
from everstep_protocol.records import RankRecord, Ready

from everstep_sidecar.client import Refused, Unanswered
from everstep_sidecar.coordinator_link import CoordinatorLink
from everstep_sidecar.metrics import reason_of
from everstep_sidecar.pod import Pod
from everstep_sidecar.store import temporary

LOOK_SECONDS = 0.5  # how often to look where no nudge came
FIRST_BACKOFF_SECONDS = 0.5
LARGEST_BACKOFF_SECONDS = 30.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """One step that is whole in memory on all ranks of this pod."""

    step: int
    folder: Path
    ready: tuple[Ready, ...]


class Saver:
    """R16: what fails is tried again, with back-off, as long as the snapshot lives; training goes on meanwhile."""

    def __init__(self, pod: Pod, plan: Plan, member: Member, coordinator: CoordinatorLink) -> None:
        self._pod = pod
        self._plan = plan
        self._member = member
        self._coordinator = coordinator
        self._folder = pod.settings.memory / names.SNAPSHOTS_NAME / storage.snapshot_name(plan.attempt)
        self._nudged = asyncio.Event()
        self._busy = False

    @property
    def is_busy(self) -> bool:
        """Whether a snapshot is being persisted."""
        return self._busy

    def nudge(self) -> None:
        """A trainer says that something is ready."""
        self._nudged.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._nudged.clear()
            self._busy = True
            for snapshot in await asyncio.to_thread(self._find):
                await self._persist(snapshot)
            self._busy = False
            self._pod.changes.stir()
            await self._wait_for_nudge()

    async def drained(self) -> None:
        """Wait until nothing that is ready is left in memory."""
        while await asyncio.to_thread(self._has_work):
            self.nudge()
            await self._pod.changes.wait(lambda: not self._busy, LOOK_SECONDS)

    async def _wait_for_nudge(self) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._nudged.wait()
        except TimeoutError:
            return

    def _has_work(self) -> bool:
        return self._busy or bool(self._find())

    def _find(self) -> list[Snapshot]:
        try:
            folders = [folder for folder in self._folder.iterdir() if storage.parse_step_name(folder.name) is not None]
        except FileNotFoundError:
            return []
        found = (self._look(folder) for folder in folders)
        return sorted((one for one in found if one is not None), key=lambda one: one.step)

    def _look(self, folder: Path) -> Snapshot | None:
        try:
            ready = tuple(temporary.read_ready(folder, rank) for rank in range(*self._member.ranks))
        except temporary.BadSnapshot as error:
            _log.warning("%s is left alone, its ready record is damaged: %s", folder, error)
            return None
        whole = tuple(one for one in ready if one is not None and one.plan_id == self._plan.plan_id)
        return Snapshot(whole[0].step, folder, whole) if len(whole) == len(ready) else None

    async def _persist(self, snapshot: Snapshot) -> None:
        """Until it is committed, given up, or gone."""
        began = time.monotonic()
        backoff = FIRST_BACKOFF_SECONDS
        while await asyncio.to_thread(self._is_there, snapshot):
            answer = await self._ask(snapshot, "ready")
            if answer == "write" and await self._write(snapshot):
                backoff = FIRST_BACKOFF_SECONDS
                answer = await self._wait_for_commit(snapshot)
            elif answer in ("write", "wait"):
                await asyncio.sleep(backoff if answer == "write" else 0.1)
                backoff = min(backoff * 2, LARGEST_BACKOFF_SECONDS) if answer == "write" else backoff
            if answer in ("committed", "drop"):
                await asyncio.to_thread(remove_snapshots, snapshot.folder)
                self._pod.metrics.stage("total", time.monotonic() - began)
                _log.info("snapshot %s", answer, extra={"step": snapshot.step})
                return

    async def _wait_for_commit(self, snapshot: Snapshot) -> str:
        """B14: the ranks take a snapshot away when one of them could not finish its own: then nobody is waited for any more."""
        answer = "wait"
        while answer == "wait" and await asyncio.to_thread(self._is_there, snapshot):
            answer = await self._ask(snapshot, "durable")  # the coordinator holds its answer
        return answer

    def _is_there(self, snapshot: Snapshot) -> bool:
        return all((snapshot.folder / storage.ready_name(ready.rank)).exists() for ready in snapshot.ready)

    async def _write(self, snapshot: Snapshot) -> bool:
        """Copy, checksum, fsync each rank's files; False: it failed, and the coordinator knows why."""
        began = time.monotonic()
        try:
            records = await self._write_ranks(snapshot)
        except temporary.BadSnapshot as error:
            await self._failed(snapshot, "invalid", error)
        except temporary.Fenced as error:
            # Taken by a fence, or taken away after a failure: asking again tells which.
            _log.info("the temporary directory is gone: %s", error, extra={"step": snapshot.step})
        except OSError as error:
            await self._failed(snapshot, reason_of(error), error)
        else:
            self._pod.metrics.copied(sum(file.bytes for record in records for file in record.files))
            self._pod.metrics.stage("copy", time.monotonic() - began)
            return True
        return False

    async def _write_ranks(self, snapshot: Snapshot) -> list[RankRecord]:
        """Raises the first failure when no rank's copy is under way any more: what follows may take the directory away."""
        writing = (self._write_rank(snapshot, ready) for ready in snapshot.ready)
        outcomes = await asyncio.gather(*writing, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, RankRecord)]

    async def _write_rank(self, snapshot: Snapshot, ready: Ready) -> RankRecord:
        job_uid = self._pod.settings.job_uid
        return await self._pod.storage(temporary.write_rank, snapshot.folder, ready, job_uid=job_uid)

    async def _failed(self, snapshot: Snapshot, reason: str, error: Exception) -> None:
        _log.warning("cannot persist, will try again: %s", error, extra={"step": snapshot.step})
        self._pod.metrics.failed(reason)
        await self._ask(snapshot, "failed", reason)

    async def _ask(self, snapshot: Snapshot, stage: str, reason: str = "") -> str:
        """The coordinator's answer; asked again until there is one."""
        ranks = self._member.ranks
        notice = SaveNotice(self._plan.attempt, self._plan.plan_id, snapshot.step, ranks, stage, reason)  # type: ignore[arg-type]
        tries = 0
        while True:
            try:
                return (await self._coordinator.save(notice)).answer
            except (Unanswered, Refused) as error:
                if tries == 0:
                    _log.info("the coordinator does not answer a save notice: %s", error, extra={"step": snapshot.step})
            await asyncio.sleep(min(0.1 * 2**tries, 2.0))
            tries = min(tries + 1, 8)


def drop_foreign(memory: Path, attempt: int) -> None:
    """R10: what other attempts left in memory goes once this attempt starts. Blocks: call it in a thread."""
    keep = storage.snapshot_name(attempt)
    folder = memory / names.SNAPSHOTS_NAME
    if folder.is_dir():
        for other in folder.iterdir():
            if other.name != keep:
                remove_snapshots(other)


def remove_snapshots(folder: Path) -> None:
    """Free the memory. What cannot be removed is told: it counts against the container's limit. Blocks: call it in a thread."""

    def tell(function: object, path: str, info: tuple[type[BaseException], BaseException, object]) -> None:
        if not isinstance(info[1], FileNotFoundError):
            _log.warning("cannot remove %s from memory: %s", path, info[1])

    shutil.rmtree(folder, onerror=tell)
