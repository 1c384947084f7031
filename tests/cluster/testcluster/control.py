"""The control plane: etcd, API server, controllers, scheduler and DNS, as plain processes in one network namespace."""

from pathlib import Path

from testcluster.dns import answers
from testcluster.layout import (
    CLUSTER_DOMAIN,
    CONTROL,
    CONTROL_ADDRESS,
    POD_CIDR,
    SERVICE_CIDR,
    Layout,
)
from testcluster.network import in_namespace
from testcluster.processes import Ledger
from testcluster.shell import CommandError, run, wait_until

_ETCD = "http://127.0.0.1:2379"

# Reverse look-ups must be answered, if only by "no such name": gloo waits 10 s for each that is not.
_COREFILE = """\
.:53 {{
  bind {address}
  errors
  ready 127.0.0.1:8181
  kubernetes {domain} in-addr.arpa {{
    kubeconfig {kubeconfig}
    pods insecure
    ttl 1
  }}
}}
"""

_COREDNS_ROLE = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:coredns"}
rules:
- {apiGroups: [""], resources: [endpoints, services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "system:coredns"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:coredns"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "system:coredns"}]
"""


class ControlPlane:
    """Starts the control plane's processes and knows when they serve."""

    def __init__(self, layout: Layout, ledger: Ledger) -> None:
        self._layout = layout
        self._ledger = ledger
        self._programs = layout.programs

    def start_api(self) -> None:
        self._start("etcd", *self._etcd_options())
        self._start("kube-apiserver", *self._api_server_options())

    def start_controllers(self) -> None:
        self._start("kube-controller-manager", *self._controller_options())
        kubeconfig = self._layout.kubeconfig("scheduler")
        self._start("kube-scheduler", f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1")

    def start_dns(self) -> None:
        self.kubectl("apply", "-f", "-", input=_COREDNS_ROLE)
        corefile = self._layout.state / "Corefile"
        kubeconfig = self._layout.kubeconfig("coredns")
        corefile.write_text(_COREFILE.format(address=CONTROL_ADDRESS, domain=CLUSTER_DOMAIN, kubeconfig=kubeconfig))
        self._start("coredns", "-conf", str(corefile))

    def wait_for_api(self) -> None:
        wait_until(self._is_api_ready, "the API server to be ready (see logs/kube-apiserver.log)", 60)

    def wait_for_dns(self) -> None:
        name = f"kubernetes.default.svc.{CLUSTER_DOMAIN}"
        wait_until(lambda: answers(CONTROL.network_namespace, CONTROL_ADDRESS, name), "CoreDNS to answer", 60)

    def kubectl(self, *argv: str | Path, input: str | None = None, timeout: float | None = None) -> str:
        """Runs kubectl as administrator inside the control plane's network."""
        kubeconfig = f"--kubeconfig={self._layout.admin_kubeconfig}"
        namespace = in_namespace(CONTROL.network_namespace)
        return run(*namespace, self._programs / "kubectl", kubeconfig, *argv, input=input, timeout=timeout)

    def _is_api_ready(self) -> bool:
        try:
            return self.kubectl("get", "--raw", "/readyz") == "ok"
        except CommandError:
            return False

    def _start(self, program: str, *options: str) -> None:
        argv: tuple[str | Path, ...] = (*in_namespace(CONTROL.network_namespace), self._programs / program, *options)
        self._ledger.start(program, argv, self._layout.logs / f"{program}.log")

    def _etcd_options(self) -> list[str]:
        return [
            f"--data-dir={self._layout.state / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={_ETCD}",
            f"--advertise-client-urls={_ETCD}",
            "--listen-peer-urls=http://127.0.0.1:2380",
        ]

    def _api_server_options(self) -> list[str]:
        pki = self._layout.pki
        return [
            f"--etcd-servers={_ETCD}",
            f"--bind-address={CONTROL_ADDRESS}",
            f"--advertise-address={CONTROL_ADDRESS}",
            "--secure-port=6443",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            "--anonymous-auth=false",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-cluster-ip-range={SERVICE_CIDR}",
            f"--service-account-key-file={pki / 'service-accounts.key'}",
            f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
            f"--service-account-issuer=https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
            "--allow-privileged=true",
            # Nodes have no names that DNS knows.
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-certificate-authority={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / 'apiserver-kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'apiserver-kubelet-client.key'}",
        ]

    def _controller_options(self) -> list[str]:
        pki = self._layout.pki
        return [
            f"--kubeconfig={self._layout.kubeconfig('controller-manager')}",
            f"--root-ca-file={pki / 'ca.crt'}",
            f"--service-account-private-key-file={pki / 'service-accounts.key'}",
            # Each controller with its own role, as on a real cluster.
            "--use-service-account-credentials=true",
            f"--cluster-cidr={POD_CIDR}",
            "--allocate-node-cidrs=false",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
        ]
