"""The coordinator's side of saves: temporary directories, commits, retention, and what is complete on storage."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path

from everstep_protocol import names, storage
from everstep_protocol.messages import CheckpointInfo, SaveAnswer, SaveNotice, Trouble
from everstep_protocol.plan import Plan
from everstep_protocol.records import Ready

from everstep_sidecar.core import saves
from everstep_sidecar.metrics import reason_of
from everstep_sidecar.pod import Pod
from everstep_sidecar.store import commit, fence, listing, owner, retention, temporary
from everstep_sidecar.tasks import Tasks

HELD_SECONDS = 10.0
FIRST_BACKOFF_SECONDS = 0.5
LARGEST_BACKOFF_SECONDS = 30.0
INCOMPLETE = "Incomplete"  # the store's word for files that are missing or wrong
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Failing:
    """Failures in a row of one sidecar's part, or of the commit itself."""

    reason: str
    message: str
    since: float  # monotonic seconds


class Commits:
    """One attempt's commits. `on_higher` is told of a higher fence that was found."""

    def __init__(self, pod: Pod, plan: Plan, *, on_higher: Callable[[int], None]) -> None:
        self._pod = pod
        self._plan = plan
        self._on_higher = on_higher
        self._book = saves.Book(frozenset(member.uid for member in plan.members))
        self._tasks = Tasks(pod.on_failure)
        self._failing: dict[str, Failing] = {}
        self._backoff: dict[int, float] = {}
        self._deleting: set[str] = set()
        self._committed_before = False
        self.checkpoints: tuple[CheckpointInfo, ...] = ()
        self.deleted: tuple[str, ...] = ()

    async def start(self) -> None:
        """Learn what is complete on storage. Raises OSError."""
        settings = self._pod.settings
        claim = await self._pod.storage(owner.claim, settings.owner, known=True)
        uids = owner.job_uids(claim.owner) if claim.owner is not None else frozenset({settings.job_uid})
        found = await self._pod.storage(_complete, uids)
        known = {info.id for info in self.checkpoints}
        self.checkpoints = (*(info for info in found if info.id not in known), *self.checkpoints)
        for info in found:
            if info.attempt == self._plan.attempt:
                self._book = saves.settled(self._book, info.step, committed=True)
        self._note_newest()
        self._pod.changes.bump()

    def close(self) -> None:
        """The attempt is over: nothing new begins."""
        self._tasks.cancel()

    async def hear(self, uid: str, notice: SaveNotice) -> SaveAnswer:
        """A member's notice; held until there is something to say."""
        step = notice.step
        if notice.stage == "failed":
            self._hear_failure(uid, notice)
            return self._answer(uid, step)
        if notice.stage == "durable" and uid in self._failing:
            del self._failing[uid]
            self._pod.changes.bump()
        self._book, effect = saves.hear(self._book, uid, notice)
        self._act(effect, step)
        await self._pod.changes.wait(lambda: saves.answer(self._book, uid, step) != "wait", HELD_SECONDS)
        return self._answer(uid, step)

    def is_committed(self, step: int) -> bool:
        """Whether this attempt has committed a step."""
        return self._book.save(step).state == "committed"

    def newest_step(self) -> int:
        """Step of the newest complete checkpoint of the newest attempt, -1: none."""
        newest = self._newest()
        return newest.step if newest is not None else -1

    def _newest(self) -> CheckpointInfo | None:
        return max(self.checkpoints, key=lambda info: (info.attempt, info.step), default=None)

    def failure(self) -> Trouble | None:
        """R16: what fails at present, the oldest first."""
        if not self._failing:
            return None
        oldest = min(self._failing.values(), key=lambda failing: failing.since)
        return Trouble(oldest.reason, oldest.message, time.monotonic() - oldest.since)

    def condemn(self, ids: tuple[str, ...]) -> None:
        """R13: delete what the operator condemned in status; only the coordinator of the highest attempt is asked to."""
        wanted = frozenset(ids) - self._deleting - frozenset(self.deleted)
        if wanted:
            self._deleting |= wanted
            self._tasks.spawn(self._delete(wanted))

    @property
    def is_busy(self) -> bool:
        """Whether something is being made, committed or deleted."""
        return bool(self._tasks)

    def _answer(self, uid: str, step: int) -> SaveAnswer:
        return SaveAnswer(saves.answer(self._book, uid, step), self._pod.highest)

    def _act(self, effect: saves.Effect, step: int) -> None:
        if effect == "make":
            self._tasks.spawn(self._make(step))
        elif effect == "commit":
            self._book = saves.committing(self._book, step)
            self._tasks.spawn(self._commit(step))

    async def _make(self, step: int) -> None:
        try:
            await self._pod.storage(temporary.open_temporary, self._plan.attempt, step)
        except temporary.Fenced:
            await self._fenced(step)
        except OSError as error:
            self._fails("coordinator", reason_of(error), f"cannot make the directory of step {step}: {error}")
            await self._back_off(step)
            self._book = saves.unmade(self._book, step)
        else:
            self._book, effect = saves.made(self._book, step)
            self._act(effect, step)
        self._pod.changes.stir()

    async def _commit(self, step: int) -> None:
        ready = await asyncio.to_thread(self._own_ready, step)
        if ready is None:
            _log.warning("the coordinator's own snapshot is gone, the save is given up", extra={"step": step})
            await self._drop(step)
            return
        result = await self._commit_once(step, ready)
        while result.outcome == "failed" and result.reason != INCOMPLETE:
            self._fails("coordinator", result.reason, f"cannot commit step {step}: {result.message}")
            await self._back_off(step)
            result = await self._commit_once(step, ready)
        if result.checkpoint is not None:
            await self._committed(step, result.checkpoint)
        elif result.outcome == "fenced":
            await self._fenced(step)
        else:
            self._fails("coordinator", "invalid", f"step {step} will be written again: {result.message}")
            await self._back_off(step)
            await self._discard(step)

    async def _commit_once(self, step: int, ready: Ready) -> commit.Commit:
        began = time.monotonic()
        samples, torch = ready.samples_consumed, ready.torch
        result = await self._pod.storage(commit.commit, self._plan, step, samples_consumed=samples, torch=torch)
        if result.outcome == "committed":
            self._pod.metrics.stage("commit", time.monotonic() - began)
        return result

    async def _committed(self, step: int, info: CheckpointInfo) -> None:
        _log.info("committed %s (%d bytes)", info.dir, info.bytes, extra={"step": step})
        self.checkpoints = (*(old for old in self.checkpoints if old.id != info.id), info)
        self._failing.pop("coordinator", None)
        self._backoff.pop(step, None)
        self._pod.metrics.committed(step)
        self._settle(step, committed=True)
        for older in saves.abandoned(self._book, step):
            _log.warning("not all members completed this save, it is given up", extra={"step": older})
            await self._drop(older)
        if not self._committed_before:
            self._committed_before = True
            await self._clean_up()

    async def _clean_up(self) -> None:
        """R13: after its first commit, the attempt empties what its fence took away."""
        try:
            await self._pod.storage(retention.empty_fenced, below=self._plan.attempt)
            await self._pod.storage(retention.prune_attempts, lineage=self._plan.lineage)
        except OSError as error:
            _log.warning("cannot remove old attempts' files, left for the next one: %s", error)

    async def _fenced(self, step: int) -> None:
        """R5: a higher attempt exists: this one commits nothing any more."""
        _log.info("a higher attempt exists, the save is given up", extra={"step": step})
        self._settle(step, committed=False)
        try:
            self._on_higher(await self._pod.storage(fence.highest))
        except OSError as error:
            _log.warning("cannot read the highest fence: %s", error)

    def _hear_failure(self, uid: str, notice: SaveNotice) -> None:
        member = self._plan.member(uid)
        name = f"pod w{member.id} on {member.node}" if member else uid
        self._fails(uid, notice.reason, f"{name} cannot write step {notice.step}: {notice.reason}")
        if notice.reason == "invalid":
            self._settle(notice.step, committed=False)
            self._tasks.spawn(self._remove_temporary(notice.step))
        elif self._book.save(notice.step).state == "open":
            self._book = saves.discarding(self._book, notice.step)
            self._tasks.spawn(self._discard(notice.step))

    async def _discard(self, step: int) -> None:
        """R16: remove the own temporary directory, so that a full disk has room again."""
        self._book = saves.discarding(self._book, step)
        await self._remove_temporary(step)
        self._book = saves.unmade(self._book, step)
        self._pod.changes.stir()

    async def _drop(self, step: int) -> None:
        """This save is given up for ever; what is on storage of it goes, too."""
        self._settle(step, committed=False)
        await self._remove_temporary(step)

    async def _remove_temporary(self, step: int) -> None:
        try:
            await self._pod.storage(temporary.discard, self._plan.attempt, step)
        except OSError as error:
            _log.warning("cannot remove the temporary directory: %s", error, extra={"step": step})

    async def _delete(self, ids: frozenset[str]) -> None:
        try:
            gone = await self._pod.storage(retention.delete_condemned, sorted(ids))
        except OSError as error:
            _log.warning("cannot delete condemned checkpoints, will try again: %s", error)
            gone = ()
        self._deleting -= ids
        self.deleted = (*self.deleted, *gone)[-200:]
        self.checkpoints = tuple(info for info in self.checkpoints if info.id not in gone)
        self._pod.changes.bump()

    async def _back_off(self, step: int) -> None:
        seconds = self._backoff.get(step, FIRST_BACKOFF_SECONDS)
        self._backoff[step] = min(seconds * 2, LARGEST_BACKOFF_SECONDS)
        await asyncio.sleep(seconds)

    def _fails(self, who: str, reason: str, message: str) -> None:
        known = self._failing.get(who)
        since = known.since if known else time.monotonic()
        self._failing[who] = Failing(reason, message, since)
        if who == "coordinator":
            self._pod.metrics.failed(reason)
        if known is None:
            _log.warning("saves fail: %s", message)
        self._pod.changes.bump()

    def _settle(self, step: int, *, committed: bool) -> None:
        self._book = saves.settled(self._book, step, committed=committed)
        self._pod.changes.bump()

    def _note_newest(self) -> None:
        newest = self._newest()
        if newest is not None:
            self._pod.metrics.newest(newest.step, listing.unix_time(newest.committed_at))

    def _own_ready(self, step: int) -> Ready | None:
        member = self._plan.member(self._pod.uid)
        assert member is not None
        attempt = storage.snapshot_name(self._plan.attempt)
        folder = self._pod.settings.memory / names.SNAPSHOTS_NAME / attempt / storage.step_name(step)
        try:
            return temporary.read_ready(folder, member.ranks[0])
        except temporary.BadSnapshot:
            return None


def _complete(root: Path, uids: frozenset[str]) -> tuple[CheckpointInfo, ...]:
    verdicts = listing.list_checkpoints(root, uids)
    return tuple(listing.info(root, verdict) for verdict in verdicts if verdict.state == "complete")
