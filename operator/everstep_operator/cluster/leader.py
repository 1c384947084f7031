"""Which replica acts: a Lease of our own. It only keeps two from working at once; correctness rests on compare-and-swap (R1).

So a Lease is lost when *another holds it*, and not when the API server does not answer, or refuses: then nobody else can take it
either, as far as we know, and a replica that ended itself would leave every job alone for nothing. Where only we are cut off, and
another does take it, we can write no status, and so do nothing that counts; the first answer that we get says that it is lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from datetime import datetime, timezone
from typing import Any

from everstep_operator.cluster.client import (
    MERGE_PATCH,
    AlreadyExists,
    ApiError,
    Client,
    Conflict,
    NotFound,
    Unavailable,
)
from everstep_operator.cluster.tasks import within
from everstep_operator.settings import LeaseSettings

Raw = dict[str, Any]

_log = logging.getLogger(__name__)


class LeaseLost(Exception):
    """Another replica acts now."""


class Leader:
    """`acquire` waits for the Lease, `keep` holds it until it is lost, `release` gives it back."""

    def __init__(self, client: Client, settings: LeaseSettings) -> None:
        self._client = client
        self._settings = settings
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{settings.namespace}/leases"
        self._seen: tuple[str, float] = ("", time.monotonic())  # resourceVersion, when we saw it first
        self._version = ""
        self.is_leader = False

    async def acquire(self) -> None:
        """Returns when the Lease is ours. The holder's silence is measured by our own clock."""
        while not await self._try():  # noqa: ASYNC110 - the event is another process's silence
            await asyncio.sleep(self._period)

    async def keep(self) -> None:
        """Renews for ever, and makes it anew where it was deleted; raises LeaseLost when another has it."""
        said = ""
        while True:
            await asyncio.sleep(self._period)
            try:
                await self._renew()
                said = ""
            except NotFound:
                await self._create()  # made anew by another meanwhile: the next renewal conflicts, and finds the holder
            except (ApiError, Unavailable) as error:
                if said != (said := str(error)):
                    _log.warning("the lease is not renewed, and nobody else is known to have it: %s", error)

    async def release(self) -> None:
        """Let the others take over at once."""
        if not self.is_leader:
            return
        self.is_leader = False
        try:
            await self._write(self._version, holder="")
        except (ApiError, Unavailable) as error:
            _log.info("the lease is not given back: %s", error)

    @property
    def _period(self) -> float:
        return self._settings.seconds / 4

    async def _try(self) -> bool:
        try:
            lease = await self._client.request("GET", f"{self._path}/{self._settings.name}")
            if not self._is_free(lease):
                return False
            await self._write(lease["metadata"]["resourceVersion"])
        except NotFound:
            return await self._create()
        except Conflict:
            return False
        except (ApiError, Unavailable) as error:
            _log.warning("the lease is not seen: %s", error)
            return False
        self.is_leader = True
        return True

    def _is_free(self, lease: Raw) -> bool:
        holder = (lease.get("spec") or {}).get("holderIdentity") or ""
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, time.monotonic())
        return holder in ("", self._settings.identity) or time.monotonic() - self._seen[1] > self._settings.seconds

    async def _create(self) -> bool:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._settings.name, "namespace": self._settings.namespace},
            "spec": self._spec(self._settings.identity),
        }
        try:
            lease = await self._client.request("POST", self._path, body=body)
        except AlreadyExists:
            return False
        except (ApiError, Unavailable) as error:
            _log.warning("the lease is not made: %s", error)
            return False
        self._version = lease["metadata"]["resourceVersion"]
        self.is_leader = True
        return True

    async def _write(self, version: str, holder: str | None = None) -> None:
        identity = self._settings.identity if holder is None else holder
        body = {"metadata": {"resourceVersion": version}, "spec": self._spec(identity)}
        path = f"{self._path}/{self._settings.name}"
        lease = await self._within_bound(self._client.request("PATCH", path, body=body, content_type=MERGE_PATCH))
        self._version = lease["metadata"]["resourceVersion"]

    async def _renew(self) -> None:
        """A write that was given up may have been done all the same: then the Lease is still ours, in a newer version."""
        try:
            await self._write(self._version)
        except Conflict as error:
            await self._find_again(error)
            await self._write(self._version)

    async def _find_again(self, conflict: Conflict) -> None:
        lease = await self._within_bound(self._client.request("GET", f"{self._path}/{self._settings.name}"))
        if (lease.get("spec") or {}).get("holderIdentity") != self._settings.identity:
            raise LeaseLost(str(conflict)) from conflict
        self._version = lease["metadata"]["resourceVersion"]

    async def _within_bound(self, call: Coroutine[Any, Any, Raw]) -> Raw:
        """No answer within half of the Lease's life is none. Raises Unavailable."""
        try:
            return await within(self._settings.seconds / 2, call)
        except asyncio.TimeoutError as error:
            raise Unavailable("timeout", f"no answer within {self._settings.seconds / 2:g} s") from error

    def _spec(self, identity: str) -> Raw:
        now = datetime.now(tz=timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
        seconds = max(1, round(self._settings.seconds))
        return {"holderIdentity": identity, "leaseDurationSeconds": seconds, "renewTime": now}
