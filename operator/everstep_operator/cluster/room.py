"""What the edges share: one `Cluster` an operator, one `JobRoom` a job. Ages and answers only; a restart loses nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from everstep_protocol import names

from everstep_operator.api.parse import Parsed, parse_job
from everstep_operator.cluster.book import NodeBook, PodBook, Wakes
from everstep_operator.cluster.client import Client
from everstep_operator.cluster.errands import Errands
from everstep_operator.cluster.follow import Follower
from everstep_operator.cluster.metrics import Metrics
from everstep_operator.cluster.pod import Owner
from everstep_operator.cluster.refused import RefusedPods
from everstep_operator.cluster.sidecars import SidecarClient
from everstep_operator.cluster.tasks import LoopWatch
from everstep_operator.core.model import AttemptStatus
from everstep_operator.settings import Settings

Raw = dict[str, Any]


@dataclass
class Cluster:
    """Everything that is not of one job."""

    settings: Settings
    client: Client
    sidecars: SidecarClient
    pods: PodBook
    nodes: NodeBook
    wakes: Wakes
    loop: LoopWatch
    metrics: Metrics
    uid: str = ""  # of the namespace kube-system: which cluster this is (R11)


@dataclass
class Checked:
    """What the API server and the claims say about a generation's pods."""

    generation: int
    problems: tuple[str, ...]
    at: float


class JobRoom:
    """One job: its newest object, and what is known of it beside that."""

    def __init__(self, cluster: Cluster, body: Raw, wake: Callable[[], None]) -> None:
        meta = body["metadata"]
        self.name: str = meta["name"]
        self.namespace: str = meta["namespace"]
        self.uid: str = meta["uid"]
        self.follower = Follower(cluster.sidecars, wake)
        self.errands = Errands(cluster.sidecars, self.uid, wake)
        self.names_taken: set[int] = set()
        self.refused = RefusedPods()
        self.checked: Checked | None = None
        self.has_token = False
        self.token_lock = asyncio.Lock()
        self.warned: set[str] = set()
        self.step_written_at = time.monotonic()
        self._cluster = cluster
        self._parsed: tuple[int, Parsed] | None = None
        self._told: tuple[tuple[int, int], set[str]] = ((0, 0), set())  # (generation, attempt), reasons of Events
        self._attempt: tuple[int, str] = (0, "")
        self._attempt_at = time.monotonic()
        self.body = body

    @property
    def path(self) -> str:
        """Of the object in the API."""
        return f"{jobs_path(self.namespace)}/{self.name}"

    @property
    def resource_version(self) -> str:
        return str(self.body["metadata"]["resourceVersion"])

    @property
    def generation(self) -> int:
        return int(self.body["metadata"].get("generation") or 0)

    @property
    def owner(self) -> Owner:
        return Owner(self.name, self.namespace, self.uid, self._cluster.uid)

    def take(self, body: Raw) -> bool:
        """A newer object, by watch, GET or our own write's answer. False: that is known already."""
        if _version(body) <= _version(self.body):
            return False
        self.body = body
        return True

    def parsed(self) -> Parsed:
        """The spec of the newest object."""
        if self._parsed is None or self._parsed[0] != self.generation:
            self._parsed = (self.generation, parse_job(self.body))
        return self._parsed[1]

    def attempt_age_seconds(self, attempt: AttemptStatus | None) -> float:
        """Since we saw the attempt enter its present state."""
        key = (attempt.number, attempt.state) if attempt else (0, "")
        if key != self._attempt:
            self._attempt, self._attempt_at = key, time.monotonic()
            self.errands.forget_before(key[0])
        return time.monotonic() - self._attempt_at

    def is_news(self, reason: str) -> bool:
        """Whether no Event of a condition had this reason yet, in this attempt and of this spec: conditions may flicker."""
        about = (self.generation, self._attempt[0])
        reasons = self._told[1] if self._told[0] == about else set()
        self._told = (about, reasons | {reason})
        return reason not in reasons

    def note_step_written(self) -> None:
        """status.step was written just now."""
        self.step_written_at = time.monotonic()

    def close(self) -> None:
        """The job is gone, or we are."""
        self.follower.stop()
        self.errands.stop()


def jobs_path(namespace: str) -> str:
    """The collection of jobs in a namespace, or in all."""
    root = f"/apis/{names.API_VERSION}"
    return f"{root}/namespaces/{namespace}/{names.PLURAL}" if namespace else f"{root}/{names.PLURAL}"


def _version(body: Raw) -> int:
    """Object versions grow; only to drop a stale event early, the compare-and-swap is what counts (R1)."""
    text = str(body["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
