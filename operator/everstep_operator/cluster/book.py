"""Who is where: pods by job, by IP and by node, and the nodes with their heartbeats. Fed by reflectors; says which jobs to wake."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from everstep_operator.cluster.leases import Beats
from everstep_operator.cluster.records import NodeRecord, PodRecord, view_node
from everstep_operator.core.model import NodeView, PodView

_VIEWS_SECONDS = 0.25  # a thousand jobs that look at once share one set of node views


class Wakes:
    """Wakes actors by job UID."""

    def __init__(self) -> None:
        self._sleepers: dict[str, Callable[[], None]] = {}

    def register(self, job_uid: str, wake: Callable[[], None]) -> None:
        self._sleepers[job_uid] = wake

    def forget(self, job_uid: str) -> None:
        self._sleepers.pop(job_uid, None)

    def count(self) -> int:
        """How many there are."""
        return len(self._sleepers)

    def wake(self, job_uid: str) -> None:
        """Nothing happens where there is no such job (any more)."""
        if (sleeper := self._sleepers.get(job_uid)) is not None:
            sleeper()


class PodBook:
    """Pods of all jobs. `take` is a reflector's `on_change`."""

    def __init__(self, wakes: Wakes) -> None:
        self._wakes = wakes
        self._by_job: dict[str, dict[str, PodRecord]] = defaultdict(dict)
        self._by_ip: dict[str, dict[str, PodRecord]] = defaultdict(dict)
        self._by_node: dict[str, dict[str, PodRecord]] = defaultdict(dict)

    def take(self, before: PodRecord | None, after: PodRecord | None) -> None:
        """One pod changed."""
        if before is not None:
            self._forget(before)
        if after is not None:
            self._by_job[after.job_uid][after.uid] = after
            self._by_ip[after.view.ip][after.uid] = after
            self._by_node[after.view.node][after.uid] = after
        record = after or before
        if record is not None:
            self._wakes.wake(record.job_uid)

    def pods_of(self, job_uid: str, now: float) -> tuple[PodView, ...]:
        """The pods of a job, by owner UID, with ages as of now; ascending worker ids."""
        records = self._by_job.get(job_uid, {}).values()
        return tuple(sorted((_aged(record, now) for record in records), key=lambda view: (view.worker_id, view.name)))

    def is_ip_taken(self, ip: str, uid: str) -> bool:
        """R22, R25: whether another pod that is alive has this IP: then the pod `uid` is gone."""
        others = self._by_ip.get(ip, {}) if ip else {}
        return any(other != uid and record.view.phase == "Running" for other, record in others.items())

    def api_port_at(self, ip: str) -> int:
        """The port of the sidecar that has this IP, as its pod says; 0: not known. It stays what it was when the operator's is changed."""
        return next((record.view.api_port for record in self._by_ip.get(ip, {}).values() if record.view.api_port), 0)

    def jobs_on(self, node: str) -> set[str]:
        """UIDs of jobs with a pod on this node."""
        return {record.job_uid for record in self._by_node.get(node, {}).values()}

    def _forget(self, record: PodRecord) -> None:
        view = record.view
        for index, key in ((self._by_job, record.job_uid), (self._by_ip, view.ip), (self._by_node, view.node)):
            pods = index.get(key, {})
            pods.pop(record.uid, None)
            if not pods:
                index.pop(key, None)


class NodeBook:
    """Nodes with the ages of their leases. `take` is a reflector's `on_change`."""

    def __init__(self, beats: Beats, on_change: Callable[[str], None]) -> None:
        self._beats = beats
        self._on_change = on_change
        self._records: dict[str, NodeRecord] = {}
        self._views: dict[str, NodeView] = {}
        self._viewed_at = -float("inf")

    def take(self, before: NodeRecord | None, after: NodeRecord | None) -> None:
        """One node changed."""
        if after is not None:
            self._records[after.name] = after
        elif before is not None:
            self._records.pop(before.name, None)
        record = after or before
        if record is not None:
            self.look_again()
            self._on_change(record.name)

    def look_again(self) -> None:
        """Make the views anew at the next look."""
        self._viewed_at = -float("inf")

    def hostnames(self, names: Iterable[str]) -> dict[str, str]:
        """By node name, its hostname label; a node that is not there has its name."""
        return {name: self._records[name].hostname if name in self._records else name for name in names}

    def views(self) -> dict[str, NodeView]:
        """All nodes by name; not to be changed by the caller."""
        now = time.monotonic()
        if now - self._viewed_at > _VIEWS_SECONDS:
            self._views = {
                name: view_node(record, *self._beats.age(name, now), now) for name, record in self._records.items()
            }
            self._viewed_at = now
        return self._views


class Rivals:
    """Jobs that hold room while they find no more, by what was decided about each of them."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def note(self, job_uid: str, name: str, *, is_rival: bool) -> None:
        """What was decided about this job, `namespace/name`."""
        if is_rival:
            self._names[job_uid] = name
        else:
            self.forget(job_uid)

    def forget(self, job_uid: str) -> None:
        self._names.pop(job_uid, None)

    def others(self, job_uid: str) -> tuple[str, ...]:
        """`namespace/name` of all but this one, sorted."""
        return tuple(sorted(name for uid, name in self._names.items() if uid != job_uid))


def _aged(record: PodRecord, now: float) -> PodView:
    since = record.deleting_since
    answering, unstarted, end = record.answering_since, record.unstarted_since, record.end_seen
    return dataclasses.replace(
        record.view,
        age_seconds=now - record.seen_at,
        deletion_age_seconds=None if since is None else now - since,
        sidecar_age_seconds=0.0 if answering is None else now - answering,
        unstarted_seconds=0.0 if unstarted is None else now - unstarted,
        trainer_end_age_seconds=math.inf if end is None else now - end[1],
    )
