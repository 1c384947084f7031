"""R13: which checkpoints may be deleted. Nothing is deleted but what status has condemned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from everstep_protocol.lineage import Lineage, is_on
from everstep_protocol.messages import CheckpointInfo

LEAST_KEPT = 2


@dataclass(frozen=True)
class KeepLatest:
    """Keep the newest `count` checkpoints of the lineage, never fewer than two: the newest may turn out to be bad."""

    count: int

    def kept(self, checkpoints: Iterable[CheckpointInfo]) -> set[str]:
        """Ids that stay, of those given; order is attempt, then step (R27)."""
        newest_first = sorted(checkpoints, key=place, reverse=True)
        return {info.id for info in newest_first[: max(self.count, LEAST_KEPT)]}


@dataclass(frozen=True)
class Branch:
    """The line that the current attempt continues."""

    lineage: Lineage
    attempt: int
    resume_id: str  # what the current attempt began from: never deleted


def place(info: CheckpointInfo) -> tuple[int, int]:
    """(attempt, step): the only order of checkpoints."""
    return (info.attempt, info.step)


def newest_on(branch: Branch, checkpoints: Iterable[CheckpointInfo]) -> CheckpointInfo | None:
    """R9: the newest complete checkpoint that counts."""
    return max(
        (info for info in checkpoints if is_on(branch.lineage, place(info), current=branch.attempt)),
        key=place,
        default=None,
    )


def condemn(
    policy: KeepLatest, branch: Branch, checkpoints: tuple[CheckpointInfo, ...], spared: frozenset[str]
) -> frozenset[str]:
    """R13: ids to be condemned now. Never the resume, never a stock import, never one of the newest two on the lineage.

    `spared` are ids that count as kept by nobody and are not judged: condemned already, or bad. Those off the lineage go only
    after the attempt's own first commit: until then they are the only other way back.
    """
    own = [info for info in checkpoints if info.id and info.attempt > 0 and info.id not in spared]
    on = [info for info in own if is_on(branch.lineage, place(info), current=branch.attempt)]
    off = [info for info in own if not is_on(branch.lineage, place(info), current=branch.attempt)]
    doomed = {info.id for info in on} - policy.kept(on)
    if any(info.attempt == branch.attempt for info in on):
        doomed |= {info.id for info in off}
    return frozenset(doomed - {branch.resume_id})
