"""Where everything of the test cluster lies, and what its machines are called.

Names and addresses are fixed: there is one test cluster on a machine. Pure values; nothing here touches the disk.
"""

import os
from dataclasses import dataclass
from pathlib import Path

CONTROL_ADDRESS = "10.77.0.1"
API_SERVER = f"https://{CONTROL_ADDRESS}:6443"
POD_CIDR = "10.78.0.0/16"
SERVICE_CIDR = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
CLUSTER_DOMAIN = "cluster.local"

FABRIC_NAMESPACE = "everstep-fabric"
CGROUP = "everstep"


@dataclass(frozen=True)
class NodeSpec:
    """One machine of the cluster: `octet` is the last part of its address and the third of its pods' subnet."""

    name: str
    octet: int

    @property
    def network_namespace(self) -> str:
        return f"everstep-{self.name}"

    @property
    def fabric_port(self) -> str:
        """The bridge's end of the node's cable (15 characters at most)."""
        return f"es-{self.name}"

    @property
    def address(self) -> str:
        return f"10.77.0.{self.octet}"

    @property
    def mac(self) -> str:
        return f"02:00:0a:4d:00:{self.octet:02x}"

    @property
    def pod_subnet(self) -> str:
        return f"10.78.{self.octet}.0/24"

    @property
    def cgroup(self) -> str:
        return f"{CGROUP}/{self.name}"


CONTROL = NodeSpec("control", 1)
WORKERS = tuple(NodeSpec(f"node-{i}", 10 + i) for i in range(1, 5))
NODES = (CONTROL, *WORKERS)


def node_named(name: str) -> NodeSpec:
    """The node of that name; `ValueError` lists the names there are."""
    for node in NODES:
        if node.name == name:
            return node
    raise ValueError(f"no node is called {name!r}; there are {', '.join(node.name for node in NODES)}")


@dataclass(frozen=True)
class Layout:
    """The folders: `cache` outlives clusters, `state` is one cluster's, `run` says which processes are ours."""

    cache: Path
    state: Path
    run: Path = Path("/run/everstep-testcluster")

    @classmethod
    def from_environment(cls) -> "Layout":
        return cls(
            cache=Path(os.environ.get("EVERSTEP_CACHE", "/var/cache/everstep")),
            state=Path(os.environ.get("EVERSTEP_STATE", "/var/lib/everstep-testcluster")),
        )

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def storage(self) -> Path:
        return self.state / "storage"

    @property
    def programs(self) -> Path:
        """Links to the Go programs of this cluster."""
        return self.state / "programs"

    @property
    def up_marker(self) -> Path:
        """A file that is made last: there is a whole cluster."""
        return self.state / "up"

    @property
    def admin_kubeconfig(self) -> Path:
        return self.kubeconfig("admin")

    def kubeconfig(self, user: str) -> Path:
        return self.state / "kubeconfig" / user

    def node(self, node: NodeSpec) -> Path:
        """What would be the node's disk: its containerd and kubelet folders, logs and sockets."""
        return self.state / "nodes" / node.name

    def containerd_socket(self, node: NodeSpec) -> Path:
        return self.node(node) / "run-containerd" / "containerd.sock"
