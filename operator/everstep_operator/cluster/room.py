"""What the edges share: one `Cluster` an operator, one `JobRoom` a job. Ages and answers only; a restart loses nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from everstep_protocol import names

from everstep_operator.api import status as status_json
from everstep_operator.api.parse import Parsed, parse_job
from everstep_operator.api.template import PodTemplate
from everstep_operator.cluster.absences import Absences
from everstep_operator.cluster.backoff import Backoff, Clock, Rate
from everstep_operator.cluster.book import NodeBook, PodBook, Rivals, Wakes
from everstep_operator.cluster.client import Client
from everstep_operator.cluster.errands import Errands
from everstep_operator.cluster.follow import Follower
from everstep_operator.cluster.metrics import Metrics
from everstep_operator.cluster.pace import Pace
from everstep_operator.cluster.pod import Owner
from everstep_operator.cluster.probes import Prober
from everstep_operator.cluster.refused import Refusals
from everstep_operator.cluster.sidecars import SidecarClient
from everstep_operator.cluster.stable import without_numbers
from everstep_operator.cluster.tasks import LoopWatch
from everstep_operator.cluster.tries import Tries
from everstep_operator.cluster.unwritten import Unwritten
from everstep_operator.core.model import AttemptStatus, JobStatus
from everstep_operator.settings import Settings

Raw = dict[str, Any]

_MOST_WARNINGS = 100


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
    clock: Clock = field(default_factory=Clock)  # of all back-offs
    unwritten: Unwritten = field(default_factory=Unwritten)
    rivals: Rivals = field(default_factory=Rivals)

    def __post_init__(self) -> None:
        self.pace = Pace(self.wakes.count)


@dataclass
class Checked:
    """What the API server and the claims say about a generation's pods."""

    generation: int
    problems: tuple[str, ...]
    at: float


@dataclass
class Token:
    """The job's Secret, which is made before its first pod."""

    backoff: Backoff
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_made: bool = False
    failure: Exception | None = None


class JobRoom:
    """One job: its newest object, and what is known of it beside that."""

    def __init__(self, cluster: Cluster, body: Raw, wake: Callable[[], None]) -> None:
        meta = body["metadata"]
        self.name: str = meta["name"]
        self.namespace: str = meta["namespace"]
        self.uid: str = meta["uid"]
        self.tries = Tries(cluster.clock, wake)
        self.refused = Refusals(cluster.clock)
        self.writing = Backoff(cluster.clock, first=0.1, most=30.0)  # status
        self.write_rate = Rate(cluster.clock, free=5)
        self.prober = Prober(cluster.sidecars, cluster.clock, wake)
        self.follower = Follower(cluster.sidecars, self.prober, cluster.clock, wake, cluster.pace)
        self.errands = Errands(cluster.sidecars, self.uid, self.tries)
        self.absences = Absences(cluster.client, self.namespace, self.tries)
        self.names_taken: set[int] = set()
        self.checked: Checked | None = None
        self.checking = Backoff(cluster.clock, first=1.0, most=30.0)
        self.check_failure = ""  # in the API server's words
        self.token = Token(Backoff(cluster.clock, first=0.5, most=15.0))
        self._warned: dict[str, None] = {}  # texts without their numbers, oldest first
        self.step_written_at = time.monotonic()
        self._cluster = cluster
        self._parsed: tuple[int, Parsed] | None = None
        self._template: PodTemplate | None = None
        self._read: tuple[Raw, JobStatus] | None = None
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
        return Owner(self.name, self.namespace, self.uid, self._cluster.uid, self._cluster.sidecars.key_id)

    def take(self, body: Raw) -> bool:
        """A newer object, by watch or our own write's answer. False: that, or a newer one, is known already."""
        if _version(body) <= _version(self.body):
            return False
        self.body = body
        return True

    def believe(self, body: Raw) -> None:
        """R1: what a GET says, whatever its number: after a restore of etcd versions go backwards."""
        self.body = body
        self._parsed = None

    def parsed(self) -> Parsed:
        """The spec of the newest object."""
        if self._parsed is None or self._parsed[0] != self.generation:
            self._parsed = (self.generation, parse_job(self.body))
        return self._parsed[1]

    def note_checked(self, parsed: Parsed, problems: tuple[str, ...]) -> None:
        """Keep the template of a spec against which nothing is known: pods are made from it when a later one is wrong."""
        if parsed.pod is not None and not problems:
            self._template = parsed.pod

    def template(self) -> PodTemplate | None:
        """Of the newest spec that this process has seen to be valid; before it has seen any, of the newest."""
        return self._template or self.parsed().pod

    def status_in(self, body: Raw) -> JobStatus:
        """The status that this object says, read once. Raises InvalidDocument."""
        if self._read is None or self._read[0] is not body:
            self._read = (body, status_json.from_json(body.get("status")))
        return self._read[1]

    def attempt_age_seconds(self, attempt: AttemptStatus | None) -> float:
        """Since we saw the attempt enter its present state."""
        key = (attempt.number, attempt.state) if attempt else (0, "")
        if key != self._attempt:
            self._attempt, self._attempt_at = key, time.monotonic()
        return time.monotonic() - self._attempt_at

    def is_news(self, reason: str) -> bool:
        """Whether no Event of a condition had this reason yet, in this attempt and of this spec: conditions may flicker."""
        about = (self.generation, self._attempt[0])
        reasons = self._told[1] if self._told[0] == about else set()
        self._told = (about, reasons | {reason})
        return reason not in reasons

    def is_first_warning(self, text: str) -> bool:
        """Whether this was not said yet, or only with other numbers; the oldest of very many are forgotten."""
        said = without_numbers(text)
        if said in self._warned:
            return False
        self._warned[said] = None
        if len(self._warned) > _MOST_WARNINGS:
            del self._warned[next(iter(self._warned))]
        return True

    def note_step_written(self) -> None:
        """status.step was written just now."""
        self.step_written_at = time.monotonic()

    def close(self) -> None:
        """The job is gone, or we are."""
        self.follower.follow(None)
        self.prober.stop()
        self.tries.stop()


def jobs_path(namespace: str) -> str:
    """The collection of jobs in a namespace, or in all."""
    root = f"/apis/{names.API_VERSION}"
    return f"{root}/namespaces/{namespace}/{names.PLURAL}" if namespace else f"{root}/{names.PLURAL}"


def _version(body: Raw) -> int:
    """Object versions grow; only to drop a stale event early, the compare-and-swap is what counts (R1)."""
    text = str(body["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
