"""Calls into the storage, in threads of their own, each watched: what does not return and what keeps failing is said."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from everstep_protocol.messages import Trouble

from everstep_sidecar.store import failures
from everstep_sidecar.store.steps import Steps, run_watched
from everstep_sidecar.troubles import mark

T = TypeVar("T")
NUM_THREADS = 64  # calls that hang must not starve those that do not
HANG_SECONDS = 2.0  # a step that took longer is said to hang; nothing but words follows from it
RECENT_SECONDS = 90.0  # an older failure that nobody tried again says nothing: longer than any pause between tries
LOOK_SECONDS = 0.25


@dataclass(frozen=True)
class Failed:
    """Failures in a row of one function, by the monotonic clock."""

    error: OSError
    since: float
    last: float


class StorageCalls:
    """`root`: the job's folder on the storage; `place`: this pod, for people."""

    def __init__(self, root: Path, place: str) -> None:
        self._root = root
        self._place = place
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="storage")
        self._running: set[Steps] = set()
        self._failed: dict[str, Failed] = {}

    async def call(self, function: Callable[..., T], *args: Any, steps: Steps | None = None, **kwargs: Any) -> T:
        """A function of `store` on the job's folder. Its thread goes on where the caller is cancelled, and stays watched.

        `steps`: where the caller can see how far it has got.
        """
        watched = steps or Steps()
        self._running.add(watched)
        future = self._threads.submit(self._run, watched, function, args, kwargs)
        future.add_done_callback(lambda _: self._running.discard(watched))
        return await asyncio.wrap_future(future)

    def trouble(self) -> Trouble | None:
        """The oldest of what has not returned for seconds, else of what keeps failing."""
        return self._hanging() or self._failing()

    async def watch(self, on_change: Callable[[], None]) -> None:
        """Until cancelled: tell when the trouble becomes another one."""
        told: object = None
        while True:
            if (now := mark(self.trouble())) != told:
                told = now
                on_change()
            await asyncio.sleep(LOOK_SECONDS)

    def close(self) -> None:
        """No new calls; those that hang are left where they are."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, steps: Steps, function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        name = f"{function.__module__}.{function.__qualname__}"
        try:
            result = run_watched(steps, function, self._root, *args, **kwargs)
        except OSError as error:
            now = time.monotonic()
            known = self._failed.get(name)
            since = known.since if known is not None and now - known.last < RECENT_SECONDS else now
            self._failed[name] = Failed(error, since, now)
            raise
        self._failed.pop(name, None)
        return result

    def _hanging(self) -> Trouble | None:
        late = [steps for steps in list(self._running) if steps.age_seconds >= HANG_SECONDS]
        if not late:
            return None
        oldest = max(late, key=lambda steps: steps.age_seconds)
        where = failures.lasting(oldest.path or self._root)
        message = (
            f"{self._place}: the storage does not answer ({oldest.verb} {where} has not returned): "
            "look at the volume, at its server, and at the network between that node and it"
        )
        return Trouble("StorageHangs", message, oldest.age_seconds)

    def _failing(self) -> Trouble | None:
        now = time.monotonic()
        recent = [failed for failed in list(self._failed.values()) if now - failed.last < RECENT_SECONDS]
        if not recent:
            return None
        oldest = min(recent, key=lambda failed: failed.since)
        message = f"{self._place}: {failures.explain(oldest.error, self._root)}"
        return Trouble(failures.word_of(oldest.error), message, now - oldest.since)
