"""The coordinator's side of saves: temporary directories, commits, and what is complete on storage."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

from everstep_protocol.messages import CheckpointInfo, SaveAnswer, SaveNotice, Trouble
from everstep_protocol.plan import Plan
from everstep_protocol.records import Ready

from everstep_sidecar import snapshots
from everstep_sidecar.backoff import Backoff
from everstep_sidecar.core import saves
from everstep_sidecar.core.membership import Heard
from everstep_sidecar.core.naming import member_name
from everstep_sidecar.deletions import Deletions
from everstep_sidecar.pod import Pod
from everstep_sidecar.save_failures import SaveFailures
from everstep_sidecar.save_watch import SaveWatch
from everstep_sidecar.store import commit, failures, fence, retention, temporary
from everstep_sidecar.stored import Stored
from everstep_sidecar.tasks import Tasks

HELD_SECONDS = 10.0
FIRST_BACKOFF_SECONDS = 0.5
LARGEST_BACKOFF_SECONDS = 30.0
INCOMPLETE = "Incomplete"  # the store's word for files that are missing or wrong
_log = logging.getLogger(__name__)


class Commits:
    """One attempt's commits. `on_higher` is told of a higher fence that was found; `heard`: the members' words, by pod UID;
    `clock` gives monotonic seconds."""

    def __init__(
        self,
        pod: Pod,
        plan: Plan,
        *,
        on_higher: Callable[[int], None],
        heard: Callable[[], Mapping[str, Heard]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pod = pod
        self._plan = plan
        self._on_higher = on_higher
        self._book = saves.Book(frozenset(member.uid for member in plan.members))
        self._tasks = Tasks(pod.on_failure)
        self._watch = SaveWatch(plan, heard, clock)
        self._failures = SaveFailures(pod, plan)
        self._deletions = Deletions(pod.on_failure, on_change=pod.changes.bump)
        self._stored = Stored(pod, self._deletions)
        self._backoffs: dict[int, Backoff] = {}  # of saves that are not settled
        self._committed_before = False
        self._was_overdue = False

    async def start(self) -> None:
        """Learn what is complete on storage. Raises OSError."""
        for info in await self._stored.learn():
            if info.attempt == self._plan.attempt:
                self._book = saves.committed(self._book, info.step)
                self._watch.committed(info.step)
        self._pod.changes.bump()

    def close(self) -> None:
        """The attempt is over: nothing new begins."""
        self._tasks.cancel()
        self._deletions.close()

    # ------------------------------------------------------------ what is told

    @property
    def checkpoints(self) -> tuple[CheckpointInfo, ...]:
        """The complete ones that are known on storage."""
        return self._stored.checkpoints

    @property
    def deleted(self) -> tuple[str, ...]:
        """Condemned ids that are gone."""
        return self._stored.deleted

    @property
    def is_busy(self) -> bool:
        """Whether something is being made or committed. What is being deleted may be deleted by the next sidecar as well."""
        return bool(self._tasks)

    def is_committed(self, step: int) -> bool:
        """Whether this attempt has committed a step."""
        return self._book.save(step).state == "committed"

    def why_dropped(self, step: int) -> str:
        """Why the save of a step was given up for ever, one sentence; empty: it was not, so far as is known."""
        return self._book.save(step).why

    def why_lost(self, step: int) -> str:
        """Of a step of which no member holds anything in memory any more: why it is not on storage; empty: it is, or may be."""
        save = self._book.save(step)
        if save.why or not self._stored.is_known or save.state in ("committing", "committed"):
            return save.why
        return f"no checkpoint of step {step} is on storage, and no pod holds one in memory any more"

    def newest_step(self) -> int:
        """Step of the newest complete checkpoint of the newest attempt, -1: none."""
        newest = self._stored.newest
        return newest.step if newest is not None else -1

    def failure(self, told: Trouble | None = None) -> Trouble | None:
        """R16: what is wrong at present: a save that fails; `told`, of which others know; silence; a deletion that fails."""
        return self._failures.oldest() or told or self._watch.failure(self._book) or self._deletions.failure()

    # ------------------------------------------------------------ what is heard

    def note_step(self, step: int) -> None:
        """A member reports a step, again and again: that tells which saves were due."""
        if not self._watch.stepped(step):
            return
        if (overdue := self._watch.failure(self._book)) is not None and not self._was_overdue:
            _log.warning("saves are overdue: %s", overdue.message)
        if (overdue is not None) != self._was_overdue:
            self._was_overdue = overdue is not None
            self._pod.changes.bump()

    def condemn(self, ids: tuple[str, ...]) -> None:
        """R13: delete what the operator condemned in status; only the coordinator of the highest attempt is asked to."""
        self._stored.condemn(ids)

    async def hear(self, uid: str, notice: SaveNotice) -> SaveAnswer:
        """A member's notice; held until there is something to say."""
        step = notice.step
        if self._book.save(step).state not in saves.FINISHED:
            self._watch.begun(step)
        if notice.stage == "failed":
            self._hear_failure(uid, notice)
            return self._answer(uid, step)
        if notice.stage == "durable":
            self._failures.forget(uid)
        self._book, effect = saves.hear(self._book, uid, notice)
        self._act(effect, step)
        for old in saves.surplus(self._book):
            self._drop(old, "not all pods wrote their part of it, and later saves were begun")
        await self._pod.changes.wait(lambda: saves.is_worth_an_answer(self._book, uid, step), HELD_SECONDS)
        return self._answer(uid, step)

    def _answer(self, uid: str, step: int) -> SaveAnswer:
        return SaveAnswer(saves.answer(self._book, uid, step), self._pod.highest)

    def _hear_failure(self, uid: str, notice: SaveNotice) -> None:
        step, name = notice.step, member_name(self._plan, uid)
        state = self._book.save(step).state
        if state in ("committing", *saves.FINISHED):
            return
        if notice.reason == "invalid":
            why = f"the snapshot of step {step} in the memory of {name} is damaged"
            self._failures.note(
                uid, notice.reason, f"{why}: that save is lost, the log of its sidecar says what is wrong with it"
            )
            self._drop(step, why)
        elif notice.reason == temporary.NOT_SHARED:
            self._failures.note(uid, notice.reason, self._not_shared(name, step))
        else:
            self._failures.note(uid, notice.reason, f"{name} cannot write its part of step {step}: {notice.reason}")
            if state == "open":
                self._book = saves.discarding(self._book, step)
                self._tasks.spawn(self._discard(step))

    def _not_shared(self, name: str, step: int) -> str:
        path = temporary.temporary_path(self._pod.settings.job_storage, self._plan.attempt, step)
        own = member_name(self._plan, self._pod.uid)
        return (
            f"{name} does not see {path}, which {own} has made: it has another storage there, or has lost it. All pods must "
            "mount one storage that is shared: look at the claim's accessModes (ReadWriteMany) and at the mount on that node"
        )

    # ------------------------------------------------------------ what is done

    def _act(self, effect: saves.Effect, step: int) -> None:
        if effect == "make":
            self._tasks.spawn(self._make(step))
        elif effect == "commit":
            self._book = saves.committing(self._book, step)
            self._tasks.spawn(self._commit(step))

    async def _make(self, step: int) -> None:
        while self._book.save(step).state == "making":
            try:
                found = await self._stored.find_unlisted(self._plan, step)
                if found is None:
                    await self._pod.storage(temporary.open_temporary, self._plan.attempt, step)
            except temporary.Fenced:
                await self._fenced(step)
            except OSError as error:
                folder = temporary.temporary_path(self._pod.settings.job_storage, self._plan.attempt, step)
                what = f"cannot make {folder}: {failures.words_of(error)}"
                self._failures.note(self._pod.uid, failures.word_of(error), what, is_own=True)
                await self._backoff(step).pause()
            else:
                self._made(step) if found is None else self._committed(step, found)

    def _made(self, step: int) -> None:
        if self._book.save(step).state == "making":
            self._book, effect = saves.made(self._book, step)
            self._act(effect, step)
            self._pod.changes.stir()
        else:  # settled meanwhile
            self._remove_settled(step)

    async def _commit(self, step: int) -> None:
        ready = await asyncio.to_thread(snapshots.find_ready, self._pod.settings.memory, self._plan.attempt, step, 0)
        if ready is None:
            self._drop(step, f"{member_name(self._plan, self._pod.uid)} does not hold its snapshot any more")
            return
        result = await self._commit_once(step, ready)
        while result.outcome == "failed" and result.reason != INCOMPLETE:
            self._failures.note(
                self._pod.uid, result.reason, f"cannot commit step {step}: {result.message}", is_own=True
            )
            await self._backoff(step).pause()
            result = await self._commit_once(step, ready)
        if result.checkpoint is not None:
            self._committed(step, result.checkpoint)
        elif result.outcome == "fenced":
            await self._fenced(step)
        else:
            message = f"step {step} is not whole on storage and will be written again: {result.message}"
            self._failures.note(self._pod.uid, "invalid", message, is_own=True)
            await self._backoff(step).pause()
            self._book = saves.discarding(self._book, step)
            await self._discard(step)

    async def _commit_once(self, step: int, ready: Ready) -> commit.Commit:
        began = time.monotonic()
        samples, torch = ready.samples_consumed, ready.torch
        result = await self._pod.storage(commit.commit, self._plan, step, samples_consumed=samples, torch=torch)
        if result.outcome == "committed":
            self._pod.metrics.stage("commit", time.monotonic() - began)
        return result

    def _committed(self, step: int, info: CheckpointInfo) -> None:
        _log.info("committed %s (%d bytes)", info.dir, info.bytes, extra={"step": step})
        self._stored.committed(info)
        self._failures.forget_own()
        self._backoffs.pop(step, None)
        self._watch.committed(step)
        self._book = saves.committed(self._book, step)
        self._pod.changes.bump()
        for older in saves.abandoned(self._book, step):
            self._drop(older, "not all pods wrote their part of it, and a later one was committed")
        if not self._committed_before:
            self._committed_before = True
            self._clean_up()

    def _clean_up(self) -> None:
        """R13: after its first commit, the attempt empties what its fence took away."""
        plan = self._plan
        delete = partial(self._pod.storage, retention.clean_up, attempt=plan.attempt, lineage=plan.lineage)
        self._deletions.begin("leftovers", self._pod.settings.job_storage, delete)

    async def _fenced(self, step: int) -> None:
        """R5: a higher attempt exists: this one commits nothing any more."""
        self._settle_dropped(step, "a higher attempt exists")
        try:
            self._on_higher(await self._pod.storage(fence.highest))
        except OSError as error:
            _log.warning("cannot read the highest fence: %s", error)

    async def _discard(self, step: int) -> None:
        """R16: remove the own temporary directory, so that a full disk has room again."""
        try:
            await self._pod.storage(temporary.discard, self._plan.attempt, step)
        except OSError as error:
            _log.warning("cannot remove the temporary directory, it is used again: %s", error, extra={"step": step})
        if self._book.save(step).state == "discarding":
            self._book = saves.unmade(self._book, step)
        self._pod.changes.stir()

    def _drop(self, step: int, why: str) -> None:
        """This save is given up for ever; what is on storage of it goes, too."""
        self._settle_dropped(step, why)
        self._remove_settled(step)

    def _settle_dropped(self, step: int, why: str) -> None:
        _log.warning("the save is given up: %s", why, extra={"step": step})
        self._backoffs.pop(step, None)
        self._watch.dropped(step)
        self._book = saves.dropped(self._book, step, why)
        self._pod.changes.bump()

    def _remove_settled(self, step: int) -> None:
        path = temporary.temporary_path(self._pod.settings.job_storage, self._plan.attempt, step)
        delete = partial(self._pod.storage, temporary.discard, self._plan.attempt, step)
        self._deletions.begin(path.name, path, delete, is_wanted=lambda: self._book.save(step).state in saves.FINISHED)

    def _backoff(self, step: int) -> Backoff:
        return self._backoffs.setdefault(step, Backoff(FIRST_BACKOFF_SECONDS, LARGEST_BACKOFF_SECONDS))
