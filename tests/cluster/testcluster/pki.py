"""The cluster's certificates and kubeconfigs: one authority, one real identity for each component."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testcluster.layout import API_SERVER, API_SERVICE_ADDRESS, CLUSTER_DOMAIN, CONTROL, CONTROL_ADDRESS, NODES, Layout
from testcluster.shell import run

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-days", "30")

API_SERVER_NAMES = (
    "DNS:kubernetes",
    "DNS:kubernetes.default",
    "DNS:kubernetes.default.svc",
    f"DNS:kubernetes.default.svc.{CLUSTER_DOMAIN}",
    "DNS:localhost",
    f"IP:{CONTROL_ADDRESS}",
    f"IP:{API_SERVICE_ADDRESS}",
    "IP:127.0.0.1",
)

# user of the kubeconfig -> subject; the names are those that Kubernetes' own roles are bound to.
CLIENTS = {
    "admin": "/O=system:masters/CN=everstep-admin",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
    "coredns": "/CN=system:coredns",
} | {node.name: f"/O=system:nodes/CN=system:node:{node.name}" for node in NODES}


@dataclass(frozen=True)
class Authority:
    """Signs certificates into one folder, as NAME.crt and NAME.key."""

    folder: Path

    def create(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Python 3.13 refuses an authority whose certificate does not say what its key may be used for.
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        run("openssl", "req", "-x509", *_KEY, "-subj", "/CN=everstep-ca", *usage, *self._out("ca"))

    def sign(self, name: str, subject: str, usage: str, alternative_names: Sequence[str] = ()) -> None:
        signer = ("-CA", self.folder / "ca.crt", "-CAkey", self.folder / "ca.key")
        extensions = ["-addext", "basicConstraints=critical,CA:FALSE", "-addext", f"extendedKeyUsage={usage}"]
        if alternative_names:
            extensions += ["-addext", f"subjectAltName={','.join(alternative_names)}"]
        run("openssl", "req", "-x509", *_KEY, *signer, "-subj", subject, *extensions, *self._out(name))

    def _out(self, name: str) -> tuple[str | Path, ...]:
        return "-keyout", self.folder / f"{name}.key", "-out", self.folder / f"{name}.crt"


def create_identities(layout: Layout) -> None:
    """Makes all certificates, the key of service account tokens, and a kubeconfig for each client."""
    authority = Authority(layout.pki)
    authority.create()
    authority.sign("apiserver", "/CN=kube-apiserver", "serverAuth", API_SERVER_NAMES)
    authority.sign("apiserver-kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client", "clientAuth")
    for node in NODES:
        names = (f"DNS:{node.name}", f"IP:{node.address}", "IP:127.0.0.1")
        authority.sign(f"kubelet-{node.name}", f"/O=system:nodes/CN=system:node:{node.name}", "serverAuth", names)
    run("openssl", "genrsa", "-out", layout.pki / "service-accounts.key", "2048")
    for user, subject in CLIENTS.items():
        authority.sign(f"client-{user}", subject, "clientAuth")
        _write_kubeconfig(layout, user)


def _write_kubeconfig(layout: Layout, user: str) -> None:
    pki = layout.pki
    cluster = {"server": API_SERVER, "certificate-authority": str(pki / "ca.crt")}
    client = {
        "client-certificate": str(pki / f"client-{user}.crt"),
        "client-key": str(pki / f"client-{user}.key"),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "everstep", "cluster": cluster}],
        "users": [{"name": user, "user": client}],
        "contexts": [{"name": CONTROL.network_namespace, "context": {"cluster": "everstep", "user": user}}],
        "current-context": CONTROL.network_namespace,
    }
    file = layout.kubeconfig(user)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.write_text(json.dumps(config, indent=1))
    file.chmod(0o600)
