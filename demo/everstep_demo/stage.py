"""Everything that the demo needs around the job: cluster, image, chart, namespace, claim; and that it goes away again."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import product_image
import yaml
from testcluster.cluster import Cluster
from testcluster.shell import Progress

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "gpt"
TRAINER_IMAGE = "localhost/everstep-trainer:torch-new"
NAMESPACE = "demo"
OPERATOR_NAMESPACE = "everstep-system"
RELEASE = "everstep"
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"

Document = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """The example's job: `until` is the step at which it ends."""

    manifest: Document
    until: int

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])


def read_example() -> Example:
    """The example, with this machine's own trainer image; nothing else of it is changed."""
    manifest = yaml.safe_load((EXAMPLE / "trainingjob.yaml").read_text())
    (trainer,) = manifest["spec"]["template"]["spec"]["containers"]
    trainer |= {"image": TRAINER_IMAGE, "imagePullPolicy": "IfNotPresent"}
    return Example(manifest, int(_option(trainer["command"], "--steps")))


def _option(command: list[str], name: str) -> str:
    """The value of `--name=value` or `--name value`."""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word.startswith(f"{name}="):
            return word.split("=", 1)[1]
        if word == name:
            return following
    raise ValueError(f"examples/gpt/trainingjob.yaml: the command has no {name}")


def chart_values(tag: str) -> Document:
    """The operator lives on the control plane's machine, whose power stays on."""
    repository, _, version = tag.rpartition(":")
    return {
        "image": {"repository": repository, "tag": version},
        "replicas": 1,
        "nodeSelector": {CONTROL_PLANE: ""},
        "tolerations": [{"key": CONTROL_PLANE, "operator": "Exists", "effect": "NoSchedule"}],
    }


class Stage:
    """`build` it, act on it, `strike` it."""

    def __init__(self, cluster: Cluster, progress: Progress) -> None:
        self.cluster = cluster
        self._progress = progress
        self._found_up: bool | None = None  # None: there is nothing of ours yet
        self._found_release = False

    def build(self, example: Example) -> None:
        """Returns when the operator is ready and the job is applied. Each part says how long it took."""
        step = self._progress.step
        with step("a Kubernetes of four nodes"):
            found_up = self.cluster.is_up()
            self.cluster.up()  # removes itself if it fails or is interrupted
            self._found_up = found_up
        with step("the image of operator and sidecar"):
            image = product_image.build(self.cluster)
            self.cluster.load_image(image.archive)
        with step("Everstep, by its Helm chart"):
            self._install(image.tag)
        with step("the job, examples/gpt/trainingjob.yaml"):
            self._apply(example)

    def _install(self, tag: str) -> None:
        self._found_release = RELEASE in self.cluster.helm("list", "--short", "--namespace", OPERATOR_NAMESPACE).split()
        values = ROOT / "build" / "demo-values.yaml"
        values.write_text(yaml.safe_dump(chart_values(tag)))
        self.cluster.helm(
            "upgrade", "--install", RELEASE, ROOT / "charts" / "everstep",
            "--namespace", OPERATOR_NAMESPACE, "--create-namespace", "--values", values,
        )  # fmt: skip
        kubectl = ("--namespace", OPERATOR_NAMESPACE, "rollout", "status", f"deployment/{RELEASE}", "--timeout=120s")
        self.cluster.kubectl(*kubectl)

    def _apply(self, example: Example) -> None:
        self._remove_job()
        self._checkpoints.mkdir(parents=True)
        self._checkpoints.chmod(0o777)
        train = {"train.py": (EXAMPLE / "train.py").read_text()}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gpt-train"}, "data": train}
        self.cluster.kubectl("apply", "-f", "-", input=json.dumps(namespace))
        in_namespace = ("--namespace", NAMESPACE)
        self.cluster.kubectl(*in_namespace, "apply", "-f", "-", input=yaml.safe_dump_all([*self._storage(), config]))
        bound = "--for=jsonpath={.status.phase}=Bound"
        self.cluster.kubectl(*in_namespace, "wait", bound, "persistentvolumeclaim", "--all", "--timeout=60s")
        self.cluster.kubectl(*in_namespace, "apply", "-f", "-", input=yaml.safe_dump(example.manifest))

    def _storage(self) -> list[Document]:
        """The example's volume and claim, on the folder that all nodes of the test cluster see."""
        volume, claim = yaml.safe_load_all((EXAMPLE / "storage.yaml").read_text())
        volume["spec"]["hostPath"]["path"] = str(self._checkpoints)
        # Named from both sides they are bound at once, and not when the controller next looks at all of them.
        volume["spec"]["claimRef"] = {"namespace": NAMESPACE, "name": claim["metadata"]["name"]}
        return [volume, claim]

    @property
    def _checkpoints(self) -> Path:
        return self.cluster.storage_root / NAMESPACE

    def _remove_job(self) -> None:
        """What an earlier demo left on a cluster that was kept: the job, its claim and its checkpoints."""
        if self.cluster.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found", "-o", "name"):
            self.cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=120s")
        (volume, _) = self._storage()
        self.cluster.kubectl("delete", "pv", volume["metadata"]["name"], "--ignore-not-found", "--timeout=60s")
        shutil.rmtree(self._checkpoints, ignore_errors=True)

    def keep_logs(self, folder: Path) -> None:
        """Keeps what operator and workers said, for those who want to know why it failed."""
        if self._found_up is None or not self.cluster.is_up():
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for namespace in (OPERATOR_NAMESPACE, NAMESPACE):
            self._keep(folder / f"{namespace}.txt", "--namespace", namespace, "describe", "trainingjobs,pods")
            pods = self.cluster.kubectl("--namespace", namespace, "get", "pods", "-o", "name").split()
            for pod in pods:
                log = folder / f"{pod.removeprefix('pod/')}.log"
                self._keep(log, "--namespace", namespace, "logs", pod, "--all-containers", "--prefix", "--tail=-1")
        self._progress.say(f"what operator and workers said is in {folder.relative_to(ROOT)}")

    def _keep(self, file: Path, *argv: str) -> None:
        """What kubectl prints; the log of a node without power only ends by time-out."""
        with file.open("wb") as out, contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(self.cluster.command("kubectl", *argv), check=False, stdout=out, stderr=out, timeout=10)

    def strike(self) -> None:
        """Leaves nothing running that was not there before."""
        if self._found_up is None:
            return
        if not self._found_up:
            self.cluster.down()
            return
        with self._progress.step("removing the job; the cluster was there before and stays"):
            for node in self.cluster.nodes:
                if not self.cluster.is_on(node):
                    self.cluster.boot(node)
            self._remove_job()
            if not self._found_release:
                self._uninstall()

    def _uninstall(self) -> None:
        self.cluster.helm("uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--ignore-not-found")
        self.cluster.kubectl("delete", "namespace", OPERATOR_NAMESPACE, "--ignore-not-found", "--timeout=60s")
