"""A TrainingJob on the cluster, as a test sees it: its status, its pods, its checkpoint folder, its trainers' own records."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from everstep_protocol import complete, storage
from kit import manifests
from kit.records import FinalLineage, StepRecord, final_lineage, read_records
from kit.waiting import wait_until
from testcluster.cluster import Cluster
from testcluster.shell import CommandError


@dataclass(frozen=True)
class Space:
    """One test's namespace, with claims `checkpoints` and `records` and the scripts at /scripts."""

    cluster: Cluster
    name: str

    @property
    def checkpoints(self) -> Path:
        return self.cluster.storage_root / self.name / "checkpoints"

    @property
    def records(self) -> Path:
        return self.cluster.storage_root / self.name / "records"

    def create(self) -> None:
        """Make the namespace and all that is in it; one of an earlier run that is still going is waited for."""
        self.cluster.kubectl("delete", "namespace", self.name, "--ignore-not-found", "--timeout=90s")
        for folder in (self.checkpoints, self.records):
            folder.mkdir(parents=True)
            folder.chmod(0o777)
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}})
        volumes = [
            document
            for name, folder in (("checkpoints", self.checkpoints), ("records", self.records))
            for document in manifests.shared_volume(self.name, name, folder)
        ]
        self.apply(*volumes, manifests.scripts_config_map(self.name))
        # On a busy machine the controller takes half a minute: a job must not begin with those that are scheduled meanwhile.
        self.kubectl("wait", "--for=jsonpath={.status.phase}=Bound", "pvc", "--all", "--timeout=180s")

    def remove(self) -> None:
        """Delete everything, checkpoints too: the test is over. Processes end at once; the namespace goes by itself."""
        self.kubectl("delete", "trainingjobs", "--all", "--ignore-not-found", "--wait=false")
        self.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "--ignore-not-found")
        self.cluster.kubectl("delete", "namespace", self.name, "--ignore-not-found", "--wait=false")
        self.cluster.kubectl("delete", "pv", "-l", f"everstep-test={self.name}", "--ignore-not-found", "--wait=false")
        shutil.rmtree(self.cluster.storage_root / self.name, ignore_errors=True)

    def apply(self, *documents: manifests.Manifest) -> str:
        """kubectl apply."""
        return self.cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(documents))

    def kubectl(self, *argv: str) -> str:
        """kubectl in this namespace."""
        return self.cluster.kubectl("-n", self.name, *argv)

    def job(self, name: str, **options: Any) -> Job:
        """Apply a TrainingJob (`manifests.training_job`)."""
        self.apply(manifests.training_job(self.name, name, **options))
        return Job(self, name)


@dataclass(frozen=True)
class Job:
    """One TrainingJob."""

    space: Space
    name: str

    def get(self) -> dict[str, Any]:
        """The object as the API server has it."""
        document: dict[str, Any] = json.loads(self.space.kubectl("get", "trainingjob", self.name, "-o", "json"))
        return document

    def status(self) -> dict[str, Any]:
        """Its status, empty before the first write."""
        status: dict[str, Any] = self.get().get("status") or {}
        return status

    def patch_spec(self, spec: dict[str, Any]) -> None:
        self.space.kubectl("patch", "trainingjob", self.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def pods(self) -> list[dict[str, Any]]:
        """Its pods, those that are being deleted included."""
        selector = f"everstep.dev/job={self.name}"
        items: list[dict[str, Any]] = json.loads(self.space.kubectl("get", "pods", "-l", selector, "-o", "json"))[
            "items"
        ]
        return items

    def pod_uids(self) -> set[str]:
        """The UIDs of its pods that stay."""
        return {pod["metadata"]["uid"] for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]}

    def pod_on(self, node: str) -> str:
        """The name of its pod on a node, empty: there is none that stays."""
        there = [pod for pod in self.pods() if pod["spec"].get("nodeName") == node]
        names = [str(pod["metadata"]["name"]) for pod in there if "deletionTimestamp" not in pod["metadata"]]
        return names[0] if names else ""

    def container_restarts(self, pod_uid: str, container: str) -> int:
        """How often the kubelet has started a container of this pod again."""
        statuses = [
            status
            for pod in self.pods()
            if pod["metadata"]["uid"] == pod_uid
            for kind in ("initContainerStatuses", "containerStatuses")
            for status in pod["status"].get(kind, [])
        ]
        return sum(int(status["restartCount"]) for status in statuses if status["name"] == container)

    # status, in the words of the tests

    def attempt(self) -> int:
        return int((self.status().get("attempt") or {}).get("number", 0))

    def plan(self) -> dict[str, Any]:
        """The current attempt's plan; empty while there is none."""
        return ((self.status().get("attempt") or {}).get("plan")) or {}

    def member_nodes(self) -> dict[int, str]:
        """Worker id -> node of the current plan's members, the coordinator first."""
        plan = self.plan()
        members = sorted(plan.get("members", []), key=lambda member: int(member["ranks"][0]))
        return {int(member["id"]): str(member["node"]) for member in members}

    def history(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self.status().get("history") or []
        return entries

    def condition(self, kind: str) -> dict[str, Any]:
        conditions = self.status().get("conditions") or []
        return next((condition for condition in conditions if condition["type"] == kind), {})

    def reasons(self) -> dict[str, str]:
        """Reason -> message of every condition."""
        conditions = self.status().get("conditions") or []
        return {str(condition["reason"]): str(condition["message"]) for condition in conditions}

    def newest_step(self) -> int:
        newest = (self.status().get("checkpoints") or {}).get("newest") or {}
        return int(newest.get("step", 0))

    def summary(self) -> str:
        """What a person would want to see when a wait has failed."""
        try:
            return self.space.kubectl("describe", "trainingjob", self.name) + self.space.kubectl(
                "get", "pods", "-o", "wide"
            )
        except CommandError as error:
            return str(error)

    # waiting

    def wait_until(self, what: str, look: Any, *, hang_seconds: float = 90) -> Any:
        return wait_until(f"{self.name}: {what}", look, hang_seconds=hang_seconds, seen=self.summary)

    def wait_phase(self, phase: str, *, hang_seconds: float = 120) -> None:
        self.wait_until(f"phase {phase}", lambda: self.status().get("phase") == phase, hang_seconds=hang_seconds)

    def wait_training(self, world: int, *, after_attempt: int = 0, hang_seconds: float = 240) -> int:
        """Wait until an attempt later than `after_attempt` trains with `world` ranks and has finished a step; its number."""

        def look() -> int | None:
            number = max((record.attempt for record in self.records()), default=0)
            plan = self.plan()
            trains = number == plan.get("attempt") and plan.get("world") == world and number > after_attempt
            return number if trains else None

        return int(
            self.wait_until(f"{world} ranks train after attempt {after_attempt}", look, hang_seconds=hang_seconds)
        )

    def wait_condition(self, kind: str, status: str, *, hang_seconds: float = 120) -> dict[str, Any]:
        """Wait until a condition has this status; the condition."""

        def look() -> dict[str, Any] | None:
            condition = self.condition(kind)
            return condition if condition.get("status") == status else None

        found: dict[str, Any] = self.wait_until(f"{kind} is {status}", look, hang_seconds=hang_seconds)
        return found

    def wait_commit(self, *, above: int = 0, hang_seconds: float = 90) -> int:
        """Wait for a newest complete checkpoint above a step; its step."""
        look = lambda: self.newest_step() if self.newest_step() > above else None  # noqa: E731
        return int(self.wait_until(f"a checkpoint above step {above}", look, hang_seconds=hang_seconds))

    # storage and records

    @property
    def folder(self) -> Path:
        """The job's checkpoint folder."""
        return self.space.checkpoints / self.name

    def complete_verdicts(self) -> list[complete.Verdict]:
        """Every complete directory, by the one definition of complete."""
        uids = frozenset({self.get()["metadata"]["uid"]})
        names = [path for path in self.folder.iterdir() if storage.parse_step_name(path.name) is not None]
        verdicts = [complete.inspect(path, job_uids=uids) for path in names]
        return [verdict for verdict in verdicts if verdict.state == "complete"]

    def complete_steps(self) -> set[int]:
        """The steps of all complete directories."""
        return {verdict.step for verdict in self.complete_verdicts()}

    def records(self) -> list[StepRecord]:
        """What its trainers wrote so far."""
        return read_records(self.space.records)

    def final_lineage(self) -> FinalLineage:
        """The steps that count, from the trainers' records and the plans that trained."""
        trained = {record.attempt for record in self.records()}
        attempts = [(entry["number"], entry["resumedStep"]) for entry in self.history() if entry["number"] in trained]
        return final_lineage(self.records(), sorted(attempts))
