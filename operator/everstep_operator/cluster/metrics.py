"""The operator's own metrics. No series has a job's name: they would live on and grow with every job (B52)."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable
from itertools import product
from typing import get_args

from everstep_protocol.plan import Cause
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from everstep_operator.core.budget import PLANNED
from everstep_operator.core.model import JobStatus, Phase, StageSeconds

_RECOVERY_SECONDS = (0.25, 0.5, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 60, 120, 300, 600)
_VERBS = ("GET", "POST", "PATCH", "DELETE")
_CODES = ("403", "404", "409", "422", "timeout", "connection")  # others begin at their first
_STAGES = ("detected", "planned", "first_step")


class _JobsByPhase(Collector):
    """Counted when they are asked for, so that nothing is left of a job that is gone."""

    def __init__(self) -> None:
        self.phases: Callable[[], Iterable[str]] = tuple

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily("everstep_jobs", "TrainingJobs by phase.", labels=["phase"])
        tally = Tally(self.phases())
        for phase in get_args(Phase):
            family.add_metric([phase], tally[phase])
        yield family


class Metrics:
    """All of them, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._jobs = _JobsByPhase()
        self.registry.register(self._jobs)
        self.attempts = Counter("everstep_attempts", "Attempts begun, by cause.", ["cause"], registry=self.registry)
        self.recovery = Histogram(
            "everstep_recovery_seconds",
            "Seconds from a failure to its detection, to the new plan, to the first new step.",
            ["stage"],
            buckets=_RECOVERY_SECONDS,
            registry=self.registry,
        )
        self.reconcile = Histogram(
            "everstep_reconcile_seconds", "Duration of one pass over one job.", registry=self.registry
        )
        self.reconcile_errors = Counter(
            "everstep_reconcile_errors", "Passes that ended with an unexpected error.", registry=self.registry
        )
        self.api_errors = Counter(
            "everstep_api_errors",
            "Refused or failed API calls, by verb and code.",
            ["verb", "code"],
            registry=self.registry,
        )
        self._unwritten = Gauge(
            "everstep_unwritten_jobs", "TrainingJobs whose status the API server refuses.", registry=self.registry
        )
        for cause in get_args(Cause):
            self.attempts.labels(cause)
        for stage in _STAGES:
            self.recovery.labels(stage)
        for verb, code in product(_VERBS, _CODES):
            self.api_errors.labels(verb, code)

    def watch_unwritten(self, count: Callable[[], int]) -> None:
        """Where the number of jobs is to be had whose status the API server refuses."""
        self._unwritten.set_function(count)

    def watch_phases(self, phases: Callable[[], Iterable[str]]) -> None:
        """Where the phases of all jobs are to be had."""
        self._jobs.phases = phases

    def count_api_error(self, verb: str, code: str) -> None:
        """For `Client(on_error=...)`."""
        self.api_errors.labels(verb, code).inc()

    def count_change(self, before: JobStatus, after: JobStatus) -> None:
        """A status was written: new attempts, and recoveries that reached a stage."""
        old, new = before.attempt, after.attempt
        if new is not None and (old is None or new.number > old.number):
            self.attempts.labels(new.cause).inc()
        known = {entry.number: entry.seconds for entry in before.history}
        for entry in after.history:
            if entry.cause in PLANNED:
                continue  # nothing failed
            self._count_stages(known.get(entry.number, StageSeconds()), entry.seconds)

    def _count_stages(self, before: StageSeconds, after: StageSeconds) -> None:
        for stage in _STAGES:
            value = getattr(after, stage)
            if value is not None and getattr(before, stage) is None:
                self.recovery.labels(stage).observe(value)
