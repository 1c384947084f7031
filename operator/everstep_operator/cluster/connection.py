"""Where the API server is and who we are: a service account inside a cluster, KUBECONFIG outside."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import kopf

SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_REREAD_SECONDS = 10.0  # a projected token is renewed when 80 % of its life is over


class NoCluster(Exception):
    """Neither KUBECONFIG nor a service account."""


def find_connection() -> kopf.ConnectionInfo:
    """KUBECONFIG wins over a service account. Raises NoCluster."""
    settings = kopf.OperatorSettings()
    if os.environ.get("KUBECONFIG"):
        info = kopf.login_with_kubeconfig(settings=settings)
    else:
        info = kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(settings=settings)
    if info is None:
        raise NoCluster("no cluster: set KUBECONFIG, or run in a pod with a service account")
    return info if os.environ.get("KUBECONFIG") else _by_address(info)


def _by_address(info: kopf.ConnectionInfo) -> kopf.ConnectionInfo:
    """By the service's IP where it is known: losing DNS should not lose the operator."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or info.server != "https://kubernetes.default.svc":
        return info
    return dataclasses.replace(info, server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")


class Credentials:
    """The Authorization header; a service account's token is read again from time to time."""

    def __init__(self, info: kopf.ConnectionInfo, token_file: Path | None = None) -> None:
        self.info = info
        self._token_file = token_file
        self._headers = info.as_http_headers()
        self._read_at = time.monotonic()

    def headers(self) -> dict[str, str]:
        """What goes with each request."""
        now = time.monotonic()
        if self._token_file is not None and now - self._read_at > _REREAD_SECONDS:
            self._headers = {"Authorization": f"Bearer {self._token_file.read_text().strip()}"}
            self._read_at = now
        return self._headers


def find_credentials() -> Credentials:
    """Raises NoCluster."""
    info = find_connection()
    in_cluster = not os.environ.get("KUBECONFIG") and SERVICE_ACCOUNT_TOKEN.exists()
    return Credentials(info, SERVICE_ACCOUNT_TOKEN if in_cluster else None)
