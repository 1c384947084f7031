"""Signals to processes inside pods, sent from outside: the pod does not see them coming."""

from __future__ import annotations

import fcntl
import os
import signal
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from testcluster.cluster import Cluster

_GET_FLAGS, _SET_FLAGS, _IMMUTABLE = 0x80086601, 0x40086602, 0x10  # linux/fs.h

SIDECAR = "everstep-sidecar"
TRAINER = "trainer"


def trainer_pids(cluster: Cluster, pod_uid: str) -> list[int]:
    """The trainer processes of a pod: all of its container but the launcher."""
    return cluster.container_pids(pod_uid, TRAINER)[1:]


def kill_trainer(cluster: Cluster, pod_uid: str) -> None:
    """kill -9 of one trainer process; the launcher lives."""
    os.kill(trainer_pids(cluster, pod_uid)[0], signal.SIGKILL)


def kill_launcher(cluster: Cluster, pod_uid: str) -> None:
    """kill -9 of the trainer container's first process, and so of the container; the kubelet starts it again."""
    os.kill(cluster.container_pids(pod_uid, TRAINER)[0], signal.SIGKILL)


def kill_sandbox(cluster: Cluster, pod_uid: str) -> None:
    """kill -9 of the process that holds a pod's namespaces: the kubelet stops its containers, and starts them in another sandbox."""
    os.kill(cluster.sandbox_pids(pod_uid)[0], signal.SIGKILL)


@contextmanager
def undeletable(path: Path) -> Iterator[None]:
    """Within the context nobody may delete this file, wherever it is renamed to, nor the directory that it lies in."""
    handle = os.open(path, os.O_RDONLY)
    try:
        _set_immutable(handle, True)
        yield
    finally:
        _set_immutable(handle, False)
        os.close(handle)


def _set_immutable(handle: int, immutable: bool) -> None:
    """What `chattr +i` and `-i` do, for a file that may have moved meanwhile."""
    flags = array("l", [0])
    fcntl.ioctl(handle, _GET_FLAGS, flags)
    flags[0] = flags[0] | _IMMUTABLE if immutable else flags[0] & ~_IMMUTABLE
    fcntl.ioctl(handle, _SET_FLAGS, flags)


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
