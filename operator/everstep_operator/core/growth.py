"""When workers that can join do: what is on its way is taken in with them, and restarts for them are rare enough to be cheap.

A restart costs every worker what it measured last; a job that grows for each node of a row that comes would mostly restart.
"""

from __future__ import annotations

import math
from dataclasses import replace

from everstep_protocol.plan import Cause

from everstep_operator.core import clock, pods, sights
from everstep_operator.core.model import Growth, JobSpec, JobStatus, Observed, PodView, Settings

RESTARTS_APART = 20  # an interval is as long as so many restarts: growing costs at most 5 % of the time
MEASURED: frozenset[Cause] = frozenset({"grow", "shrink"})  # nothing was lost, and nobody was waited for
MOST_NAMES = 5
KNOB = "spec.workers.growInterval"


def interval_seconds(spec: JobSpec, growth: Growth, settings: Settings) -> float:
    """The least time between two restarts for growth: what the user says, else what keeps their cost small."""
    if spec.grow_interval_seconds is not None:
        return spec.grow_interval_seconds
    cost = RESTARTS_APART * (growth.restart_seconds or 0.0)
    return min(max(settings.grow_least, cost), settings.grow_most)


def begun(status: JobStatus, cause: Cause, *, now: float) -> JobStatus:
    """The status once an attempt with this cause is made."""
    if cause != "grow":
        return status
    return replace(status, growth=replace(status.growth, grown_at=clock.rfc3339(now)))


def measured(status: JobStatus) -> JobStatus:
    """The status once the current attempt has made its first step: how long the job stood still for a planned restart."""
    attempt = status.attempt
    entry = next((entry for entry in status.history if attempt and entry.number == attempt.number), None)
    if entry is None or entry.cause not in MEASURED or entry.seconds.first_step is None:
        return status
    return replace(status, growth=replace(status.growth, restart_seconds=round(entry.seconds.first_step, 1)))


def seconds_left(seen: Observed, settings: Settings) -> float:
    """Of the interval; 0 or less: it is over. A spec that was edited since the attempt was made is obeyed at once.

    Only this depends on a time in status, so that it survives the operator; a clock that was set back holds nothing up.
    """
    assert seen.spec is not None
    grown_at = seen.status.growth.grown_at
    if not grown_at or seen.generation > pods.current_attempt(seen).intent_generation:
        return -math.inf
    since = seen.now - clock.since_epoch(grown_at)
    return interval_seconds(seen.spec, seen.status.growth, settings) - since if since >= 0 else -math.inf


def awaited(seen: Observed, settings: Settings, joiners: tuple[PodView, ...]) -> tuple[PodView, ...]:
    """Those on their way to a node, or nearly there, for whom these joiners wait: not for ever, and not where they fill the room."""
    assert seen.spec is not None
    room = seen.spec.max_workers - len(pods.current_plan(seen).members)
    ready = max((pod.sidecar_age_seconds - settings.grow_settle for pod in joiners), default=0.0)
    if len(joiners) >= room or min(ready, -seconds_left(seen, settings)) >= settings.grow_wait:
        return ()
    wanted = {row.id for row in seen.status.workers if row.state == "Wanted"}
    coming = (pod for pod in seen.pods if pod.worker_id in wanted and _is_coming(seen, settings, pod))
    return tuple(sorted(coming, key=lambda pod: pod.worker_id))


def _is_coming(seen: Observed, settings: Settings, pod: PodView) -> bool:
    if not pod.node or pod.hindrance or pods.is_leaving(pod) or pods.is_over(pod) or pods.is_node_bad(seen, pod.node):
        return False
    if not (pod.phase == "Running" and pod.sidecar_running):
        return pod.unstarted_seconds < settings.grow_wait
    patience = settings.grow_settle + (settings.sight_retry if sights.of(seen, pod) is None else 0.0)
    return pod.sidecar_age_seconds < patience


def why_not_yet(seen: Observed, settings: Settings, joiners: tuple[PodView, ...]) -> str:
    """Why these do not join now, for people: who or until when is waited for; empty: the job may be stopped for them."""
    assert seen.spec is not None
    count = f"{len(joiners)} more can join"
    if seconds_left(seen, settings) > 0:
        growth = seen.status.growth
        due = clock.since_epoch(growth.grown_at) + interval_seconds(seen.spec, growth, settings)
        return f"{count}; they join after {clock.rfc3339(math.ceil(due))}, because {_reason(seen.spec, growth)}"
    coming = awaited(seen, settings, joiners)
    if not coming:
        return ""
    names = ", ".join(f"worker {pod.worker_id} on node {pod.node}" for pod in coming[:MOST_NAMES])
    others = f" and {len(coming) - MOST_NAMES} others" if len(coming) > MOST_NAMES else ""
    return (
        f"{count}; they join together with {names}{others}, on the way there, and wait {settings.grow_wait:g} s at most, "
        "because each time the job restarts"
    )


def _reason(spec: JobSpec, growth: Growth) -> str:
    if spec.grow_interval_seconds is not None:
        return f"{KNOB} is {spec.grow_interval_seconds:g} s"
    cost = "" if growth.restart_seconds is None else f", which took {max(1, round(growth.restart_seconds))} s last time"
    return f"each time the job restarts{cost}; {KNOB} sets another interval"


def seconds_to_look(seen: Observed, settings: Settings) -> float:
    """Until the interval is over; inf where none holds anybody up."""
    left = seconds_left(seen, settings) if seen.spec is not None else 0.0
    return left if left > 0 else math.inf
