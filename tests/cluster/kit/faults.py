"""Signals to processes inside pods, sent from outside: the pod does not see them coming."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from testcluster.cluster import Cluster

SIDECAR = "everstep-sidecar"
TRAINER = "trainer"


def trainer_pids(cluster: Cluster, pod_uid: str) -> list[int]:
    """The trainer processes of a pod: all of its container but the launcher."""
    return cluster.container_pids(pod_uid, TRAINER)[1:]


def kill_trainer(cluster: Cluster, pod_uid: str) -> None:
    """kill -9 of one trainer process; the launcher lives."""
    os.kill(trainer_pids(cluster, pod_uid)[0], signal.SIGKILL)


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """The processes stand still within the context."""
    assert pids, "nothing to stop: the container does not run"
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
