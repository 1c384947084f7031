"""The start of a cluster, in the order in which its parts need each other."""

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from testcluster import network
from testcluster.cgroups import make_cgroup
from testcluster.control import ControlPlane
from testcluster.layout import CGROUP, CONTROL, NODES, Layout
from testcluster.node import CONTROL_TAINT, Node
from testcluster.pki import create_identities
from testcluster.processes import Ledger
from testcluster.shell import CommandError, Progress, wait_until

CONTROL_PLANE_ROLES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "coredns", CONTROL.name)

Kubectl = Callable[..., str]


class Startup:
    """Brings a cluster up on a machine where nothing of an earlier one is left."""

    def __init__(self, layout: Layout, ledger: Ledger, machines: Collection[Node], progress: Progress) -> None:
        self._layout = layout
        self._machines = machines
        self._progress = progress
        self._control = ControlPlane(layout, ledger)

    def start(self, programs: Mapping[str, Path], seed: Path) -> None:
        """Returns when the API server, all nodes and DNS serve."""
        self._make_folders(programs)
        make_cgroup(f"{CGROUP}/system")
        network.create_fabric()
        create_identities(self._layout)
        with ThreadPoolExecutor() as pool:
            self._control.start_api()
            installed = [pool.submit(machine.install, seed) for machine in self._machines]
            with self._progress.step("  API server"):
                self._control.wait_for_api()
            self._control.start_controllers()
            for waiting in installed:
                waiting.result()
        started_at = min(machine.start(self._layout.programs) for machine in self._machines)
        self._control.start_dns()
        with self._progress.step("  nodes and DNS"):
            self._wait_until_usable(started_at)
        self._layout.up_marker.touch()

    def _wait_until_usable(self, started_at: float) -> None:
        kubectl = self._control.kubectl
        wait_until_ready(kubectl, [node.name for node in NODES], started_at)
        kubectl("label", "node", CONTROL.name, f"{CONTROL_TAINT}=")
        self._control.wait_for_dns()
        # Without it the first pod of a test would be refused.
        wait_until(lambda: _exists(kubectl, "serviceaccount", "default"), "the default service account", 60)

    def _make_folders(self, programs: Mapping[str, Path]) -> None:
        layout = self._layout
        for folder in (layout.state, layout.logs, layout.storage, layout.programs, layout.state / "nodes"):
            folder.mkdir(parents=True, exist_ok=True)
        layout.storage.chmod(0o777)
        for name, program in programs.items():
            (layout.programs / name).symlink_to(program)


def wait_until_ready(kubectl: Kubectl, names: Iterable[str], started_at: float, timeout_seconds: float = 120) -> None:
    """Returns when the nodes have said that they are Ready *since* `started_at`, seconds since the epoch.

    The API server believes a dead node Ready for 45 s: its word alone says nothing about a node just booted.
    """
    wanted = set(names)

    def all_ready() -> bool:
        try:
            listed = kubectl("get", "nodes", "-o", "json")
        except CommandError:
            return False
        return wanted <= ready_since(json.loads(listed)["items"], started_at)

    wait_until(all_ready, f"{', '.join(sorted(wanted))} to be Ready", timeout_seconds, 0.3)


def ready_since(nodes: Iterable[Mapping[str, object]], started_at: float) -> set[str]:
    """The names of those Node objects whose kubelets reported Ready at or after a moment."""
    # Heartbeats carry whole seconds, and sort like the times that they name.
    earliest = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started_at))
    ready = set()
    for node in nodes:
        status, metadata = node["status"], node["metadata"]
        assert isinstance(status, dict)
        assert isinstance(metadata, dict)
        for condition in status.get("conditions", ()):
            is_ready = condition["type"] == "Ready" and condition["status"] == "True"
            if is_ready and condition["lastHeartbeatTime"] >= earliest:
                ready.add(str(metadata["name"]))
    return ready


def _exists(kubectl: Kubectl, kind: str, name: str) -> bool:
    return bool(kubectl("get", kind, name, "--ignore-not-found", "-o", "name"))
