"""The objects that a test puts into its namespace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TRAINER_IMAGE = "localhost/everstep-trainer:torch-new"
SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"

Manifest = dict[str, Any]


def shared_volume(namespace: str, name: str, folder: Path) -> list[Manifest]:
    """A claim that any number of pods may mount, bound to a folder that all nodes share."""
    volume = f"{namespace}-{name}"
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume, "labels": {"everstep-test": namespace}},
            "spec": {
                "capacity": {"storage": "10Gi"},
                "accessModes": ["ReadWriteMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "hostPath": {"path": str(folder), "type": "Directory"},
                "claimRef": {"namespace": namespace, "name": name},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "",
                "volumeName": volume,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        },
    ]


def scripts_config_map(namespace: str) -> Manifest:
    """Every script in `scripts/`, mounted at /scripts."""
    data = {path.name: path.read_text() for path in sorted(SCRIPTS.glob("*.py"))}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "scripts", "namespace": namespace},
        "data": data,
    }


def training_job(
    namespace: str,
    name: str,
    *,
    command: list[str],
    env: dict[str, str] | None = None,
    workers: tuple[int, int] = (2, 4),
    checkpoint: Manifest | None = None,
    grace_seconds: int = 10,
    cpu: str = "1100m",
    **spec: Any,
) -> Manifest:
    """A job of one worker a node (`cpu` is more than half of one), with claims `checkpoints` and `records`."""
    container = {
        "name": "trainer",
        "image": TRAINER_IMAGE,
        "imagePullPolicy": "Never",
        "command": command,
        "env": [{"name": key, "value": value} for key, value in {"RECORD_DIR": "/records", **(env or {})}.items()],
        "resources": {"requests": {"cpu": cpu, "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "volumeMounts": [{"name": "scripts", "mountPath": "/scripts"}, {"name": "records", "mountPath": "/records"}],
    }
    return {
        "apiVersion": "everstep.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "workers": {"min": workers[0], "max": workers[1], "growInterval": "0s"},
            "template": {
                "spec": {
                    "terminationGracePeriodSeconds": grace_seconds,
                    "containers": [container],
                    "volumes": [
                        {"name": "scripts", "configMap": {"name": "scripts"}},
                        {"name": "records", "persistentVolumeClaim": {"claimName": "records"}},
                    ],
                }
            },
            "checkpoint": {
                "storage": {"persistentVolumeClaim": {"claimName": "checkpoints"}, "path": name},
                "interval": {"steps": 20},
                "keepLast": 3,
                **(checkpoint or {}),
            },
            **spec,
        },
    }
