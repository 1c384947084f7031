"""Everstep on the test cluster: this checkout's image and chart, and its operator's life and death."""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b64decode
from pathlib import Path

import product_image
import yaml
from testcluster.cluster import Cluster

ROOT = Path(__file__).resolve().parents[3]
RELEASE = "everstep"
NAMESPACE = "everstep-system"
DEPLOYMENT = f"deployment/{RELEASE}"

# The operator lives on the control node: tests cut the power of workers' nodes and mean the workers.
VALUES = {
    "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
    "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
    # A hung coordinator is told of after a minute, and must not be back before (`test_silent_parts`).
    "sidecar": {"silenceSeconds": 70},
    # The kubelet's own pauses between tries would fill minutes.
    "timers": {
        "startTries": 1,
        "startWindow": 90,  # with all cores busy four pods take more than half a minute to come up
    },
}


def install(cluster: Cluster) -> None:
    """Build the image, give it to all nodes, install or upgrade the chart, wait until the operator is ready."""
    image = product_image.build(cluster)
    cluster.load_image(image.archive)
    repository, tag = image.tag.rsplit(":", 1)
    values = ROOT / "build" / "test-values.yaml"
    values.write_text(yaml.safe_dump(VALUES | {"image": {"repository": repository, "tag": tag, "pullPolicy": "Never"}}))
    options = ("--namespace", NAMESPACE, "--create-namespace", "--values", values, "--wait", "--timeout", "120s")
    cluster.helm("upgrade", "--install", RELEASE, ROOT / "charts" / "everstep", *options)


def stop_operator(cluster: Cluster) -> None:
    """No operator runs any more."""
    cluster.kubectl("-n", NAMESPACE, "scale", DEPLOYMENT, "--replicas=0")
    cluster.kubectl("-n", NAMESPACE, "wait", "--for=delete", "pod", "-l", _SELECTOR, "--timeout=60s")


def start_operator(cluster: Cluster) -> None:
    """The operator runs again, two replicas."""
    cluster.kubectl("-n", NAMESPACE, "scale", DEPLOYMENT, "--replicas=2")
    cluster.kubectl("-n", NAMESPACE, "rollout", "status", DEPLOYMENT, "--timeout=90s")


def ensure_operator(cluster: Cluster) -> None:
    """Start it again if a test stopped it."""
    if cluster.kubectl("-n", NAMESPACE, "get", DEPLOYMENT, "-o", "jsonpath={.spec.replicas}").strip() == "0":
        start_operator(cluster)


_SELECTOR = "app.kubernetes.io/name=everstep,app.kubernetes.io/component!=worker"


def start_operator_dying_at(cluster: Cluster, point: str) -> subprocess.Popen[bytes]:
    """An operator outside the pods that kills itself, as kill -9 would, right after a call to the API (`dying_operator.py`)."""
    secret = cluster.kubectl("-n", NAMESPACE, "get", "secret", f"{RELEASE}-root-key", "-o", "jsonpath={.data.key}")
    key = ROOT / "build" / "root-key"
    key.write_bytes(b64decode(secret))
    key.chmod(0o600)
    words = cluster.command(sys.executable, str(Path(__file__).with_name("dying_operator.py")), point)
    environment = _operator_environment(cluster) | {"EVERSTEP_ROOT_KEY_FILE": str(key)}
    log = (ROOT / "build" / "dying-operator.log").open("ab")
    with log:
        return subprocess.Popen(words, env={**os.environ, **environment}, stdout=log, stderr=log)


def _operator_environment(cluster: Cluster) -> dict[str, str]:
    """What the chart sets, read from the deployment, so that both are one configuration; without the Lease."""
    path = '{range .spec.template.spec.containers[0].env[*]}{.name}={.value}{"\\n"}{end}'
    lines = cluster.kubectl("-n", NAMESPACE, "get", DEPLOYMENT, "-o", f"jsonpath={path}").splitlines()
    environment = dict(line.split("=", 1) for line in lines if "=" in line)
    folders = ("operator", "trainer_lib")
    extra = {
        "EVERSTEP_LEASE_ENABLED": "false",
        "EVERSTEP_ROOT_KEY_SECRET": "",
        "PYTHONPATH": ":".join(str(ROOT / folder) for folder in folders),
    }
    return {name: value for name, value in environment.items() if value} | extra
