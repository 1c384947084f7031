"""What all parts of this sidecar share: who the pod is, what it must remember, and how to call the storage."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from everstep_protocol.messages import Ack

from everstep_sidecar.changes import Changes
from everstep_sidecar.client import Client
from everstep_sidecar.launcher_link import LauncherLink
from everstep_sidecar.metrics import Metrics
from everstep_sidecar.peers import Peers
from everstep_sidecar.progress import TrainerPages
from everstep_sidecar.scratch import Remembered, Scratch
from everstep_sidecar.settings import Settings
from everstep_sidecar.storage_calls import StorageCalls

T = TypeVar("T")


@dataclass
class Pod:
    """One sidecar's belongings. `remembered` is on disk before it is here (R8)."""

    settings: Settings
    changes: Changes
    scratch: Scratch
    link: LauncherLink
    client: Client
    peers: Peers
    pages: TrainerPages
    metrics: Metrics
    calls: StorageCalls
    on_failure: Callable[[], None]  # a part failed in a way that nobody foresaw
    remembered: Remembered = field(default_factory=Remembered)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def uid(self) -> str:
        """This pod's UID."""
        return self.settings.pod_uid

    @property
    def highest(self) -> int:
        """The highest attempt seen."""
        return self.remembered.attempt

    def ack(self, *, finished: bool = False) -> Ack:
        """R23: every answer carries the highest attempt."""
        return Ack(self.highest, finished)

    async def load(self) -> None:
        """Read what this pod remembers."""
        self.remembered = await asyncio.to_thread(self.scratch.load)

    async def remember(self, attempt: int, **changed: Any) -> bool:
        """R8: note something of this attempt on disk, then obey it. A higher number begins afresh; False: the attempt is older."""
        async with self._writing:
            if attempt < self.remembered.attempt:
                return False
            base = self.remembered if attempt == self.remembered.attempt else Remembered(attempt)
            after = dataclasses.replace(base, **changed)
            if after != self.remembered:
                await asyncio.to_thread(self.scratch.save, after)
                self.remembered = after
            return True

    async def storage(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """A call into `store`, on this job's folder, in a thread of those that may hang."""
        return await self.calls.call(function, *args, **kwargs)
