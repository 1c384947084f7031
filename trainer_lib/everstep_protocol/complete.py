"""The one definition of a complete checkpoint (DESIGN "What must always hold", 1), used by all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from everstep_protocol.lineage import Lineage


@dataclass(frozen=True)
class Verdict:
    """What a directory is.

    `complete`: `.metadata` and every file that it or the manifest names are there and as long as recorded.
    `refused`: has `.metadata` or a manifest, but fails the check; `reason` says how. It stands in the way of starting at 0 (R12).
    `incomplete`: has neither: no checkpoint, never was one.
    """

    dir: str  # name of the directory
    state: Literal["complete", "refused", "incomplete"]
    reason: str  # one sentence for people; empty when complete
    step: int  # by the manifest; by the name where there is none
    id: str = ""  # manifest id; empty for a stock DCP directory
    attempt: int = 0  # 0: a stock DCP directory (`import`)
    lineage: Lineage = ()
    bytes: int = 0  # of all its files
    world: int = 0


def inspect(directory: Path, *, job_uids: frozenset[str]) -> Verdict:
    """Judge one directory whose name `storage.parse_step_name` admits.

    With a manifest (ours): its id is its digest, its job is one of `job_uids`, its files and `.metadata` are regular files (no
    symlink) of exactly the recorded lengths. Without (stock DCP): `.metadata` is read by the size-capped allow-list reader
    (`dcp_metadata`), and every file that it names is a regular file inside the directory and long enough for its items.
    Contents are not hashed here. Raises OSError where the storage does not answer: unknown is not missing (R12).
    """
    raise NotImplementedError
