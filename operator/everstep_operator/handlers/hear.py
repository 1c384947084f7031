"""kopf: TrainingJobs only, and only to wake. No finalizer, no annotation, no patch, no kopf event."""

from __future__ import annotations

from typing import Any, Protocol

import kopf
from everstep_protocol import names

from everstep_operator.cluster.connection import find_connection


class _NoEssence(kopf.DiffBaseStorage):
    """We compare nothing. kopf would copy each object in full with each event, though no handler of ours asks what changed."""

    def build(self, *, body: Any, extra_fields: Any = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: Any) -> None:
        return None

    def store(self, *, body: Any, patch: Any, essence: Any) -> None:
        return None


class Hear(Protocol):
    """Takes a job's object as it was seen, or as it was when it went."""

    def __call__(self, body: dict[str, Any], *, deleted: bool) -> None: ...


def build_registry(tell: Hear) -> kopf.OperatorRegistry:
    """All handlers there are."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return find_connection()

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def hear(event: Any, **_: Any) -> None:
        tell(dict(event["object"]), deleted=event["type"] == "DELETED")

    return registry


def build_settings() -> kopf.OperatorSettings:
    """kopf without what it would do beside watching."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.persistence.diffbase_storage = _NoEssence()
    settings.queueing.exit_timeout = 0.2
    settings.networking.error_backoffs = (0.2, 0.5, 1, 1, 2, 2, 5)
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    return settings
