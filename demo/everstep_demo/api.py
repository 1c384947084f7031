"""Asks the API server, from within the cluster's network, with the administrator's certificate."""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import yaml


class Unanswered(RuntimeError):
    """The API server did not answer, or not with what was asked for."""


@dataclass(frozen=True)
class Access:
    """Where the API server is and who we are."""

    host: str
    port: int
    tls: ssl.SSLContext

    @classmethod
    def from_kubeconfig(cls, file: Path) -> Access:
        """From a kubeconfig with one cluster and one user, whose certificates are files."""
        config = yaml.safe_load(file.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        tls.load_cert_chain(user["client-certificate"], user["client-key"])
        address = urlsplit(cluster["server"])
        assert address.hostname
        return cls(address.hostname, address.port or 443, tls)


class Api:
    """One connection, kept open. Used by one thread, which is in the cluster's network."""

    def __init__(self, access: Access, timeout_seconds: float) -> None:
        self._connection = http.client.HTTPSConnection(
            access.host, access.port, context=access.tls, timeout=timeout_seconds
        )

    def text(self, path: str, **query: str | int) -> str:
        """The body of a GET. Raises Unanswered."""
        try:
            self._connection.request("GET", f"{path}?{urlencode(query)}" if query else path)
            answer = self._connection.getresponse()
            body = answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Unanswered(f"{path}: {error or type(error).__name__}") from error
        if answer.status != http.client.OK:
            raise Unanswered(f"{path}: {answer.status} {body.strip()[:200]}")
        return body

    def get(self, path: str, **query: str | int) -> dict[str, Any]:
        """An object. Raises Unanswered."""
        document: dict[str, Any] = json.loads(self.text(path, **query))
        return document

    def items(self, path: str, **query: str | int) -> list[dict[str, Any]]:
        """The objects of a list. Raises Unanswered."""
        items: list[dict[str, Any]] = self.get(path, **query)["items"]
        return items
