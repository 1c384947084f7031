"""The complete checkpoints that are known on storage, and those of them that are to go (R13)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from everstep_protocol.messages import CheckpointInfo
from everstep_protocol.plan import Plan

from everstep_sidecar.deletions import Deletions
from everstep_sidecar.pod import Pod
from everstep_sidecar.store import commit, listing, owner, retention

MOST_DELETED = 200  # ids that are told as gone
MOST_TOLD = 1000  # checkpoints, the newest: where nothing can be deleted an answer must still fit


class Stored:
    """Each condemned checkpoint is deleted on its own: one that stays keeps no other."""

    def __init__(self, pod: Pod, deletions: Deletions) -> None:
        self._pod = pod
        self._deletions = deletions
        self._condemned: frozenset[str] = frozenset()
        self._all: tuple[CheckpointInfo, ...] = ()
        self.is_known = False  # whether the storage was listed
        self.deleted: tuple[str, ...] = ()

    @property
    def checkpoints(self) -> tuple[CheckpointInfo, ...]:
        """Oldest first."""
        return self._all[-MOST_TOLD:]

    @property
    def newest(self) -> CheckpointInfo | None:
        """The newest of the newest attempt."""
        return max(self._all, key=lambda info: (info.attempt, info.step), default=None)

    async def learn(self) -> tuple[CheckpointInfo, ...]:
        """List the storage; gives what lies there. Raises OSError."""
        settings = self._pod.settings
        claim = await self._pod.storage(owner.claim, settings.owner, known=True)
        uids = owner.job_uids(claim.owner) if claim.owner is not None else frozenset({settings.job_uid})
        found = await self._pod.storage(_complete, uids)
        known = {info.id for info in self._all}  # committed meanwhile: newer
        self._all = (*(info for info in found if info.id not in known), *self._all)
        self.is_known = True
        if self.newest is not None:
            self._pod.metrics.newest(self.newest.step, listing.unix_time(self.newest.committed_at))
        return found

    async def find_unlisted(self, plan: Plan, step: int) -> CheckpointInfo | None:
        """R14: what an earlier process of this pod has made of a save, while the storage is not listed yet. Raises OSError."""
        return None if self.is_known else await self._pod.storage(commit.find, plan, step)

    def committed(self, info: CheckpointInfo) -> None:
        """One more."""
        self._all = (*(old for old in self._all if old.id != info.id), info)
        self._pod.metrics.committed(info.step)

    def condemn(self, ids: tuple[str, ...]) -> None:
        """R13: all that the operator has condemned in status, each time it asks."""
        self._condemned = frozenset(filter(retention.is_id, ids))
        root = self._pod.settings.job_storage
        for identity in sorted(self._condemned - frozenset(self.deleted)):
            where = root / (self._directory(identity) or retention.trash_path(root, identity))
            is_wanted = partial(self._is_condemned, identity)
            self._deletions.begin(identity, where, partial(self._delete, identity), is_wanted=is_wanted)

    def _is_condemned(self, identity: str) -> bool:
        return identity in self._condemned

    async def _delete(self, identity: str) -> None:
        await self._pod.storage(retention.take_away, identity, where=self._directory(identity))
        before = (self._all, self.deleted)
        self._all = tuple(info for info in self._all if info.id != identity)
        try:
            await self._pod.storage(retention.empty_trash, identity)
            self.deleted = (*self.deleted, identity)[-MOST_DELETED:]
        finally:
            if (self._all, self.deleted) != before:
                self._pod.changes.bump()

    def _directory(self, identity: str) -> str:
        return next((info.dir for info in self._all if info.id == identity), "")


def _complete(root: Path, uids: frozenset[str]) -> tuple[CheckpointInfo, ...]:
    verdicts = listing.list_checkpoints(root, uids)
    return tuple(listing.info(root, verdict) for verdict in verdicts if verdict.state == "complete")
