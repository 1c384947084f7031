"""Two threads that look at the job, several times a second: one at the API server's objects, one at the trainers' log.

They are apart because a log is read from its node, and asking a node without power only ends by time-out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from testcluster.cluster import Cluster

from everstep_demo.api import Access, Api, Unanswered
from everstep_demo.looks import LogStep, Look, last_step, look_at

_PAUSE_SECONDS = 0.4
_JOBS = "/apis/everstep.dev/v1alpha1/namespaces/{namespace}/trainingjobs/{job}"
_CORE = "/api/v1/namespaces/{namespace}"


@dataclass
class Seen:
    """The newest look, replaced as a whole; `trouble` says why it may be old."""

    look: Look = field(default_factory=Look)
    log: LogStep | None = None
    trouble: str = ""


class Watcher:
    """Keeps `seen` up to date from `start` until `stop`."""

    def __init__(self, cluster: Cluster, namespace: str, job: str) -> None:
        self.seen = Seen()
        self._cluster = cluster
        self._job_path = _JOBS.format(namespace=namespace, job=job)
        self._core_path = _CORE.format(namespace=namespace)
        self._job = job
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=(look, timeout_seconds), daemon=True)
            for look, timeout_seconds in ((self._look_at_objects, 10.0), (self._look_at_log, 2.0))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Returns when nobody looks any more."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _watch(self, look: Callable[[Api], None], timeout_seconds: float) -> None:
        self._cluster.enter_network()
        api = Api(Access.from_kubeconfig(self._cluster.kubeconfig), timeout_seconds)
        while not self._stopped.wait(_PAUSE_SECONDS):
            look(api)

    def _look_at_objects(self, api: Api) -> None:
        involved = f"involvedObject.name={self._job}"
        try:
            job = api.get(self._job_path)
            pods = api.items(f"{self._core_path}/pods", labelSelector=f"everstep.dev/job={self._job}")
            events = api.items(f"{self._core_path}/events", fieldSelector=involved)
        except Unanswered as error:
            self.seen.trouble = str(error)
            return
        self.seen.look = look_at(job, pods, events, self.seen.log)
        self.seen.trouble = ""

    def _look_at_log(self, api: Api) -> None:
        pod = self.seen.look.coordinator
        if not pod:
            return
        try:
            log = api.text(f"{self._core_path}/pods/{pod}/log", container="trainer", tailLines=50)
        except Unanswered:
            return  # its node may be without power: the objects tell
        self.seen.log = last_step(log) or self.seen.log
