"""kopf, once for each namespace (or once for all), each in a thread and a loop of its own, so that none can end more than itself.

kopf ends when a watch is refused, and with it every task of its loop: in ours, one namespace that is deleted would end all jobs of the
others. A definition that is installed later is never noticed by it. So an ear listens only while the jobs of its namespace can be
listed, and begins again, ever later, whatever ended it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any, cast

import kopf

from everstep_operator.cluster.backoff import Backoff, Clock
from everstep_operator.cluster.client import ApiError, Client, NotFound, Unavailable
from everstep_operator.cluster.room import jobs_path
from everstep_operator.handlers.hear import Hear, build_registry, build_settings

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 3.0  # how often it is looked whether a namespace can be heard, or still can
_PAUSE_SECONDS = (1.0, 30.0)  # after a kopf that failed: first, longest
_NO_DEFINITION = (
    "the API server knows no trainingjobs.everstep.dev: install the CustomResourceDefinition (crds/ in the chart)"
)


class Ear:
    """Hears of the jobs in one namespace; "" is all of them. `deaf`: why it hears nothing now; empty: it does."""

    def __init__(self, client: Client, namespace: str, hear: Hear, *, identity: str, clock: Clock) -> None:
        self._client = client
        self._namespace = namespace
        self._hear = hear
        self._identity = identity
        self._clock = clock
        self._backoff = Backoff(clock, first=_PAUSE_SECONDS[0], most=_PAUSE_SECONDS[1])
        self.deaf = "not heard yet"

    async def run(self) -> None:
        """For ever; never raises but on cancellation."""
        while True:
            self._note(await self._hindrance())
            if self.deaf:
                await self._clock.sleep(_LOOK_SECONDS)
                continue
            began = self._clock.now()
            await self._listen()
            if self._clock.now() - began > _PAUSE_SECONDS[1]:
                self._backoff.succeed()
            await self._clock.sleep(self._backoff.fail())

    async def _hindrance(self) -> str:
        """Why jobs cannot be listed; empty: they can. An API server that does not answer is waited out by kopf itself."""
        try:
            await self._client.request("GET", jobs_path(self._namespace), params={"limit": "1"})
        except NotFound:
            return _NO_DEFINITION
        except ApiError as error:
            where = f"namespace {self._namespace}" if self._namespace else "the cluster"
            return f"trainingjobs in {where} cannot be listed: {error.message}"
        except Unavailable as error:
            return "" if not self.deaf else str(error)
        return ""

    def _note(self, why: str) -> None:
        if why != self.deaf:
            level = logging.WARNING if why else logging.INFO
            _log.log(level, "%s", why or f"jobs in {self._namespace or 'all namespaces'} are heard of")
        self.deaf = why

    async def _listen(self) -> None:
        """Until kopf ends, or there is nothing to be heard any more."""
        thread = KopfThread(self._namespace, self._hear, self._identity)
        thread.start()
        try:
            while not thread.ended.is_set() and not self.deaf:
                try:
                    await asyncio.wait_for(thread.ended.wait(), _LOOK_SECONDS)
                except asyncio.TimeoutError:
                    self._note(await self._hindrance())
        finally:
            thread.stop()


class KopfThread:
    """One run of kopf. What it hears is handed to the loop that made it."""

    def __init__(self, namespace: str, hear: Hear, identity: str) -> None:
        self._namespace = namespace
        self._loop = asyncio.get_running_loop()
        self._hear = hear
        self._identity = identity
        self._stop = threading.Event()
        self.ended = asyncio.Event()

    def start(self) -> None:
        """A daemon: a kopf that hangs must not keep the process from ending."""
        threading.Thread(target=self._run, name=f"kopf {self._namespace}".strip(), daemon=True).start()

    def stop(self) -> None:
        """It ends soon, and tells nothing more."""
        self._stop.set()

    def _run(self) -> None:
        try:
            asyncio.run(self._operate())
        except Exception as error:  # noqa: BLE001 - whatever ended it, it is begun again
            _log.warning("kopf ended, and is begun again: %s", error)
        finally:
            self._call(self.ended.set)

    async def _operate(self) -> None:
        await kopf.operator(
            registry=build_registry(self._tell),
            settings=build_settings(),
            standalone=True,
            identity=cast(Any, self._identity),  # kopf's own has the user's name: a uid may have none
            clusterwide=not self._namespace,
            namespaces=[self._namespace] if self._namespace else [],
            stop_flag=self._stop,
        )

    def _tell(self, body: dict[str, Any], *, deleted: bool) -> None:
        if not self._stop.is_set():
            self._call(lambda: self._hear(body, deleted=deleted))

    def _call(self, what: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what)
