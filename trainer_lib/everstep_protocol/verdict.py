"""What a directory on storage was found to be; apart from `complete`, which looks, so that who only decides needs no file system."""

from __future__ import annotations

from dataclasses import dataclass
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
    attempt: int = (
        0  # 0: a stock DCP directory (`import`); of a damaged manifest: as its rank records say, then as the name says
    )
    lineage: Lineage = ()
    bytes: int = 0  # of all its files
    world: int = 0
