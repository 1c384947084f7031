"""The key that every job's token is made from. It is made in the cluster, once, by whichever replica comes first, and then only read.

Not by the chart: what renders templates without a cluster (GitOps) would make another one each time, and cut all running jobs off.
"""

from __future__ import annotations

import base64
import binascii
import logging
import secrets

from everstep_protocol import names

from everstep_operator.cluster.backoff import Backoff, Clock
from everstep_operator.cluster.client import AlreadyExists, ApiError, Client, NotFound, Raw, Unavailable

LEAST_BYTES = 16
_FIELD = "key"
_RETRY_SECONDS = (0.5, 5.0)  # first, longest

_log = logging.getLogger(__name__)


class Unusable(Exception):
    """The Secret is there, and holds no key that can be used."""


async def find_root_key(client: Client, namespace: str, name: str, clock: Clock) -> bytes:
    """The key in this Secret, which is made if it is not there. Waits for the API server, and for the right to read it. Raises Unusable."""
    backoff = Backoff(clock, first=_RETRY_SECONDS[0], most=_RETRY_SECONDS[1])
    while True:
        try:
            return await _read_or_make(client, namespace, name)
        except (ApiError, Unavailable) as error:
            _log.warning("the root key, Secret %s/%s, is neither read nor made: %s", namespace, name, error)
        await clock.sleep(backoff.fail())


async def _read_or_make(client: Client, namespace: str, name: str) -> bytes:
    path = f"/api/v1/namespaces/{namespace}/secrets"
    try:
        return key_of(await client.request("GET", f"{path}/{name}"), f"Secret {namespace}/{name}")
    except NotFound:
        pass
    try:
        made = await client.request("POST", path, body=_manifest(namespace, name))
        _log.info("the root key was made: Secret %s/%s", namespace, name)
    except AlreadyExists:  # another replica was faster
        made = await client.request("GET", f"{path}/{name}")
    return key_of(made, f"Secret {namespace}/{name}")


def key_of(secret: Raw, where: str) -> bytes:
    """Raises Unusable."""
    try:
        key = base64.b64decode((secret.get("data") or {}).get(_FIELD) or "", validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise Unusable(f"{where}: {_FIELD} cannot be read: {error}") from error
    return checked(key, f"{where}: {_FIELD}")


def checked(key: bytes, where: str) -> bytes:
    """Raises Unusable for one that is too short."""
    if len(key) < LEAST_BYTES:
        raise Unusable(f"{where} has {len(key)} bytes, at least {LEAST_BYTES} are needed")
    return key


def _manifest(namespace: str, name: str) -> Raw:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": name, "namespace": namespace, "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY}},
        "data": {_FIELD: base64.b64encode(secrets.token_hex(32).encode()).decode()},
    }
