"""One node: its configuration files, how it is started, and how its power is cut."""

import json
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from testcluster.cgroups import make_cgroup, pids_below, remove_cgroup
from testcluster.images import PAUSE_TAG, clone_containerd_root
from testcluster.layout import CLUSTER_DOMAIN, CONTROL, CONTROL_ADDRESS, Layout, NodeSpec
from testcluster.network import in_namespace
from testcluster.processes import Ledger, reap
from testcluster.shell import run, wait_until

_INIT = Path(__file__).parent / "node-init.sh"
_NAMESPACES = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")

# Lost at a power cut: these folders stand for memory.
_VOLATILE = ("run-containerd", "run-netns", "cni")

CONTROL_TAINT = "node-role.kubernetes.io/control-plane"

_CONTAINERD_CONFIG = """\
version = 2
oom_score = 0
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # We lack CAP_SYS_RESOURCE: without this no container gets past "can't get final child's PID from pipe".
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni-config"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
"""


class Node:
    """A machine of the cluster, on or off; its network is `network`'s business."""

    def __init__(self, spec: NodeSpec, layout: Layout, ledger: Ledger) -> None:
        self.spec = spec
        self._layout = layout
        self._ledger = ledger
        self.folder = layout.node(spec)

    def install(self, seed: Path) -> None:
        """Fills the node's disk: images and configuration."""
        self.folder.mkdir(parents=True)
        clone_containerd_root(seed, self.folder / "containerd")
        (self.folder / "containerd.toml").write_text(_CONTAINERD_CONFIG.format(pause=PAUSE_TAG, folder=self.folder))
        (self.folder / "kubelet.yaml").write_text(json.dumps(self._kubelet_config(), indent=1))
        (self.folder / "cni-config").mkdir()
        (self.folder / "cni-config" / "10-pods.conflist").write_text(json.dumps(self._cni_config(), indent=1))
        self._link_logs()

    def _link_logs(self) -> None:
        log = self.folder / "log"
        log.mkdir()
        (self._layout.logs / self.spec.name).symlink_to(log)

    def start(self, programs: Path) -> float:
        """Switches the power on and returns when that was, in seconds since the epoch, before the node is Ready."""
        started_at = time.time()
        for name in _VOLATILE:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        make_cgroup(self.spec.cgroup)
        kubeconfigs = (self._layout.kubeconfig("proxy"), self._layout.kubeconfig(self.spec.name))
        init = ("/bin/sh", "-eu", _INIT, self.spec.name, self.spec.address, self.folder, programs, *kubeconfigs)
        namespaces = (*in_namespace(self.spec.network_namespace), *_NAMESPACES)
        self._ledger.start(self.spec.name, (*namespaces, *init), self._layout.logs / f"{self.spec.name}-init.log")
        return started_at

    def is_on(self) -> bool:
        return self._ledger.alive(self.spec.name) is not None

    def kill(self) -> None:
        """Ends every process of the node at once, as a power cut does, and returns when they are gone."""
        process = self._ledger.alive(self.spec.name)
        if process is not None:
            process.kill()
            wait_until(lambda: not process.is_alive(), f"{self.spec.name} to end", 10, 0.02)
            reap(process.pid)
        wait_until(lambda: not pids_below(self.spec.cgroup), f"the containers of {self.spec.name} to end", 20, 0.05)
        remove_cgroup(self.spec.cgroup)

    def enter(self, *argv: str | Path) -> str:
        """Runs a program that sees what the node has mounted; for the others nothing changes."""
        process = self._ledger.alive(self.spec.name)
        if process is None:
            raise RuntimeError(f"{self.spec.name} is off")
        return run("nsenter", f"--mount=/proc/{process.pid}/ns/mnt", *argv)

    def ctr(self, *argv: str | Path) -> str:
        """Runs containerd's own client on the node, in the namespace of Kubernetes."""
        return run("ctr", "--address", self._layout.containerd_socket(self.spec), "--namespace", "k8s.io", *argv)

    def container_ids(self, pod_uid: str, container: str) -> list[str]:
        """The ids of a pod's containers of that name: the running one, and ended ones that are still kept."""
        labels = f'labels."io.kubernetes.pod.uid"=={pod_uid},labels."io.kubernetes.container.name"=={container}'
        return self.ctr("containers", "list", "--quiet", labels).split()

    def sandbox_ids(self, pod_uid: str) -> list[str]:
        """The ids of a pod's sandboxes: the one that lives, and ended ones that are still kept."""
        labels = f'labels."io.kubernetes.pod.uid"=={pod_uid},labels."io.cri-containerd.kind"==sandbox'
        return self.ctr("containers", "list", "--quiet", labels).split()

    def _kubelet_config(self) -> dict[str, object]:
        pki = self._layout.pki
        taints = [{"key": CONTROL_TAINT, "effect": "NoSchedule"}] if self.spec == CONTROL else []
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.spec.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki / f"kubelet-{self.spec.name}.crt"),
            "tlsPrivateKeyFile": str(pki / f"kubelet-{self.spec.name}.key"),
            "cgroupRoot": f"/{self.spec.cgroup}",
            "cgroupDriver": "cgroupfs",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "clusterDNS": [CONTROL_ADDRESS],
            "clusterDomain": CLUSTER_DOMAIN,
            "resolvConf": "",
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            # Our images cannot be pulled again: never collect them.
            "imageGCHighThresholdPercent": 100,
            "healthzBindAddress": "127.0.0.1",
            "registerWithTaints": taints,
        }

    def _cni_config(self) -> dict[str, object]:
        """Pods are routed, not bridged: replies between two pods of a node must pass the service rules too."""
        addresses = {
            "type": "host-local",
            "dataDir": "/var/lib/cni/addresses",
            "ranges": [[{"subnet": self.spec.pod_subnet}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        plugin = {"type": "ptp", "ipMasq": False, "ipam": addresses}
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": [plugin]}


def main_process_first(pids: Iterable[int]) -> list[int]:
    """Host pids of one container, the one that is its pid 1 first, then by age."""
    return sorted(pids, key=lambda pid: (_innermost_pid(pid) != 1, pid))


def _innermost_pid(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    line = next(line for line in status.splitlines() if line.startswith("NSpid:"))
    return int(line.split()[-1])
