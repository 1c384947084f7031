"""What the sidecar is told by its environment. Writer: the operator (`everstep_protocol.names`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep_protocol import names
from everstep_protocol.records import FORMAT, Owner

# Only for runs outside a pod (tests): another place for each mount.
MOUNT_OVERRIDES = {
    "memory": ("EVERSTEP_MOUNT_MEMORY", names.MOUNT_MEMORY),
    "scratch": ("EVERSTEP_MOUNT_SCRATCH", names.MOUNT_SCRATCH),
    "pod": ("EVERSTEP_MOUNT_POD", names.MOUNT_POD),
    "token": ("EVERSTEP_MOUNT_TOKEN", names.MOUNT_TOKEN),
    "storage": ("EVERSTEP_MOUNT_STORAGE", names.MOUNT_STORAGE),
}
_REQUIRED = (names.ENV_JOB_UID, names.ENV_POD_UID, names.ENV_POD_IP)


@dataclass(frozen=True)
class Settings:
    """Who this pod is and where things are."""

    job_uid: str
    job_name: str
    job_namespace: str
    cluster_uid: str
    pod_uid: str
    pod_name: str
    pod_ip: str
    node: str
    storage_path: str  # relative to the storage mount
    api_port: int
    metrics_port: int
    grace_seconds: float
    memory: Path
    scratch: Path
    pod: Path
    token_file: Path
    storage: Path  # the mount, not the job's folder

    @property
    def job_storage(self) -> Path:
        """The job's folder on the storage."""
        return self.storage / self.storage_path

    @property
    def place(self) -> str:
        """This worker and its node, for people."""
        return f"{self.pod_name or self.pod_uid} on {self.node or self.pod_ip}"

    @property
    def owner(self) -> Owner:
        """R11: this job, as it signs its storage path."""
        return Owner(FORMAT, self.cluster_uid, self.job_namespace, self.job_name, self.job_uid)

    @property
    def socket(self) -> Path:
        """The unix socket on which launcher and trainers are heard."""
        return self.memory / names.SOCKET_NAME


def parse_settings(env: Mapping[str, str]) -> Settings:
    """Raises ValueError that names every variable that is missing or wrong."""
    problems = [f"{name} is not set" for name in _REQUIRED if not env.get(name)]
    numbers = {
        name: _number(env, name, default, problems)
        for name, default in (
            (names.ENV_API_PORT, names.PORT_API),
            (names.ENV_METRICS_PORT, names.PORT_METRICS),
            (names.ENV_GRACE_SECONDS, 30),
        )
    }
    mounts = {key: Path(env.get(name, default)) for key, (name, default) in MOUNT_OVERRIDES.items()}
    path = env.get(names.ENV_STORAGE_PATH, "")
    if path.startswith("/") or ".." in Path(path).parts:
        problems.append(f"{names.ENV_STORAGE_PATH} is {path!r}: must be relative, without ..")
    if problems:
        raise ValueError("the sidecar's environment is wrong: " + "; ".join(problems))
    return Settings(
        job_uid=env[names.ENV_JOB_UID],
        job_name=env.get(names.ENV_JOB_NAME, ""),
        job_namespace=env.get(names.ENV_JOB_NAMESPACE, ""),
        cluster_uid=env.get(names.ENV_CLUSTER_UID, ""),
        pod_uid=env[names.ENV_POD_UID],
        pod_name=env.get(names.ENV_POD_NAME, ""),
        pod_ip=env[names.ENV_POD_IP],
        node=env.get(names.ENV_NODE, ""),
        storage_path=path,
        api_port=int(numbers[names.ENV_API_PORT]),
        metrics_port=int(numbers[names.ENV_METRICS_PORT]),
        grace_seconds=numbers[names.ENV_GRACE_SECONDS],
        memory=mounts["memory"],
        scratch=mounts["scratch"],
        pod=mounts["pod"],
        token_file=mounts["token"] / "token",
        storage=mounts["storage"],
    )


def _number(env: Mapping[str, str], name: str, default: float, problems: list[str]) -> float:
    text = env.get(name, str(default))
    try:
        return float(text)
    except ValueError:
        problems.append(f"{name} is {text!r}: must be a number")
        return default
