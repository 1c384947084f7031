"""Makes a worker's Pod from the user's template. Pure: values in, a manifest out. The user's fields are kept as written."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from everstep_protocol import names

from everstep_operator.api.quantities import parse_quantity
from everstep_operator.api.template import PodTemplate, dicts
from everstep_operator.cluster import scheduling
from everstep_operator.settings import PodSettings

Raw = dict[str, Any]


# A liveness probe kills the sidecar only after `PodSettings.sidecar_silence` seconds in which *no* look was answered within
# _PROBE_SECONDS. With all cores starved the slowest answer took 4.4 s (RECOVERY.md, False alarms), twice that is waited for; and
# a machine on which nothing gets on at all was borne for 100 s without a false loss, so this bears it, too.
_PROBE_SECONDS = 10
# What does not answer will not use a grace either: no more than the kubelet insists on. Part of probes since Kubernetes 1.28.
_PROBE_GRACE_SECONDS = 2

_NO_ATTEMPT = "0"  # so that a plan's JSON patch always finds a value to test (R2)


@dataclass(frozen=True)
class Owner:
    """The job that the pod belongs to."""

    name: str
    namespace: str
    uid: str
    cluster_uid: str
    key_id: str  # of the root key that its token is made from


def pod_name(job: str, worker_id: int) -> str:
    """R20: `<job>-w<id>`."""
    return f"{job}-w{worker_id}"


def token_name(owner: Owner) -> str:
    """The Secret with the job's token: `<job>-<uid8>-token-<key8>`. Another root key makes another token: it never meets pods of this one."""
    return f"{owner.name}-{owner.uid[:8]}-token-{owner.key_id}"


def owner_reference(owner: Owner) -> Raw:
    """Deleting the job deletes what has this; it blocks nothing."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def render_pod(
    owner: Owner,
    template: PodTemplate,
    settings: PodSettings,
    worker_id: int,
    avoid: Mapping[str, str] = MappingProxyType({}),
) -> Raw:
    """The manifest of worker `worker_id`'s pod, which is never scheduled on the nodes in `avoid`: by name, their hostname labels."""
    spec: Raw = copy.deepcopy(template.raw["spec"])
    injected = _Injected(owner, template, settings, worker_id, spec)
    spec["initContainers"] = [*dicts(spec.get("initContainers")), injected.injector(), injected.sidecar()]
    spec["containers"][template.trainer] = injected.trainer(spec["containers"][template.trainer])
    spec["volumes"] = [*(spec.get("volumes") or []), *injected.volumes()]
    spec["restartPolicy"] = "OnFailure"
    spec["automountServiceAccountToken"] = False
    spec["tolerations"] = scheduling.tolerate(spec.get("tolerations") or [])
    if avoid:
        spec["affinity"] = scheduling.keep_off(spec.get("affinity") or {}, tuple(avoid.values()))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(owner, template, worker_id, avoid),
        "spec": spec,
    }


def _metadata(owner: Owner, template: PodTemplate, worker_id: int, avoid: Mapping[str, str]) -> Raw:
    given = template.raw.get("metadata") or {}
    ours = {
        names.LABEL_JOB: owner.name,
        names.LABEL_JOB_UID: owner.uid,
        names.LABEL_WORKER: str(worker_id),
        names.LABEL_TEMPLATE_HASH: template.hash,
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
    }
    annotations = {names.ANNOTATION_ATTEMPT: _NO_ATTEMPT}
    if avoid:
        annotations[names.ANNOTATION_AVOID] = ",".join(avoid)
    return {
        "name": pod_name(owner.name, worker_id),
        "namespace": owner.namespace,
        "labels": {**(given.get("labels") or {}), **ours},
        "annotations": {**(given.get("annotations") or {}), **annotations},
        "ownerReferences": [owner_reference(owner)],
    }


@dataclass(frozen=True)
class _Injected:
    """What Everstep adds to the user's spec."""

    owner: Owner
    template: PodTemplate
    settings: PodSettings
    worker_id: int
    spec: Raw  # as the user wrote it

    def injector(self) -> Raw:
        return {
            **self._container(names.INJECTOR_CONTAINER, ["everstep_sidecar.inject", names.MOUNT_BIN]),
            "volumeMounts": [_mount(names.VOLUME_BIN, names.MOUNT_BIN)],
        }

    def sidecar(self) -> Raw:
        """Last of the init containers: while the user's own still run, nobody expects this worker to answer."""
        return {
            **self._container(names.SIDECAR_CONTAINER, ["everstep_sidecar.main"]),
            "restartPolicy": "Always",
            "env": self._sidecar_environment(),
            "ports": [
                {"name": names.PORT_NAME_API, "containerPort": self.settings.api_port},
                {"name": "everstep-stats", "containerPort": self.settings.metrics_port},
            ],
            "livenessProbe": self._liveness_probe(),
            "volumeMounts": [
                _mount(names.VOLUME_MEMORY, names.MOUNT_MEMORY),
                _mount(names.VOLUME_SCRATCH, names.MOUNT_SCRATCH),
                _mount(names.VOLUME_POD, names.MOUNT_POD, read_only=True),
                _mount(names.VOLUME_TOKEN, names.MOUNT_TOKEN, read_only=True),
                _mount(names.VOLUME_STORAGE, names.MOUNT_STORAGE),
            ],
        }

    def _liveness_probe(self) -> Raw:
        """Answered by the sidecar's event loop, so that one that hangs is killed and made anew; trainers do not notice.

        Without a host: the kubelet asks the pod's own IP, of either family, and the sidecar listens on all.
        """
        return {
            "httpGet": {"path": "/healthz", "port": self.settings.metrics_port},
            "periodSeconds": _PROBE_SECONDS,
            "timeoutSeconds": _PROBE_SECONDS,
            "failureThreshold": max(1, math.ceil(self.settings.sidecar_silence / _PROBE_SECONDS)),
            "terminationGracePeriodSeconds": _PROBE_GRACE_SECONDS,
        }

    def trainer(self, container: Raw) -> Raw:
        """The user's container with the launcher in front of its command."""
        mounts = [
            _mount(names.VOLUME_BIN, names.MOUNT_BIN, read_only=True),
            _mount(names.VOLUME_MEMORY, names.MOUNT_MEMORY),
            _mount(names.VOLUME_STORAGE, names.MOUNT_STORAGE, read_only=True),
        ]
        if self._needs_shm(container):
            mounts.append(_mount(names.VOLUME_SHM, "/dev/shm"))
        environment = [
            {"name": names.ENV_PROCESSES, "value": str(self.template.processes)},
            {"name": names.ENV_GRACE_SECONDS, "value": f"{self.template.grace_seconds:g}"},
        ]
        kept = {key: value for key, value in container.items() if key != "args"}
        return {
            **kept,
            "command": ["python3", names.LAUNCHER, "launch", "--", *self.template.command],
            "env": [*(container.get("env") or []), *environment],
            "volumeMounts": [*(container.get("volumeMounts") or []), *mounts],
            # The launcher's last word is a file; where it was killed, the log's end is what is left.
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }

    def volumes(self) -> list[Raw]:
        """Ours, whole claim and all: a subPath would make directories as root and hide an unmounted volume (R11)."""
        memory: Raw = {"medium": "Memory"}
        if self.template.memory_bytes is not None:
            memory["sizeLimit"] = str(self.template.memory_bytes)
        annotations = {"plan": names.ANNOTATION_PLAN, "attempt": names.ANNOTATION_ATTEMPT}
        items = [
            {"path": path, "fieldRef": {"fieldPath": f"metadata.annotations['{name}']"}}
            for path, name in annotations.items()
        ]
        volumes: list[Raw] = [
            {"name": names.VOLUME_BIN, "emptyDir": {}},
            {"name": names.VOLUME_MEMORY, "emptyDir": memory},
            {"name": names.VOLUME_SCRATCH, "emptyDir": {}},
            {"name": names.VOLUME_POD, "downwardAPI": {"items": items}},
            {"name": names.VOLUME_TOKEN, "secret": {"secretName": token_name(self.owner)}},
            {"name": names.VOLUME_STORAGE, "persistentVolumeClaim": {"claimName": self.template.claim}},
        ]
        if self._needs_shm(self._trainer):
            volumes.append({"name": names.VOLUME_SHM, "emptyDir": {"medium": "Memory"}})
        return volumes

    @property
    def _trainer(self) -> Raw:
        container: Raw = self.template.raw["spec"]["containers"][self.template.trainer]
        return container

    def _needs_shm(self, container: Raw) -> bool:
        mounted = [str(mount.get("mountPath", "")).rstrip("/") for mount in dicts(container.get("volumeMounts"))]
        return "/dev/shm" not in mounted

    def _container(self, name: str, module: list[str]) -> Raw:
        return {
            "name": name,
            "image": self.settings.image,
            "imagePullPolicy": self.settings.image_pull_policy,
            "command": ["python3", "-m", *module],
            "securityContext": _security_context(self.spec, self._trainer),
            "resources": self._resources(),
        }

    def _resources(self) -> Raw:
        """A real CPU request: a starved sidecar fakes losses. Limits where they are asked for, and where the pod is Guaranteed
        and would no longer be."""
        requests = {"cpu": self.settings.sidecar_cpu, "memory": self.settings.sidecar_memory}
        if is_guaranteed(self.spec):
            return {"requests": requests, "limits": dict(requests)}
        given = {"cpu": self.settings.sidecar_cpu_limit, "memory": self.settings.sidecar_memory_limit}
        limits = {name: value for name, value in given.items() if value}
        return {"requests": requests, "limits": limits} if limits else {"requests": requests}

    def _sidecar_environment(self) -> list[Raw]:
        values = {
            names.ENV_JOB_UID: self.owner.uid,
            names.ENV_JOB_NAME: self.owner.name,
            names.ENV_JOB_NAMESPACE: self.owner.namespace,
            names.ENV_CLUSTER_UID: self.owner.cluster_uid,
            names.ENV_WORKER_ID: str(self.worker_id),
            names.ENV_STORAGE_PATH: self.template.path,
            names.ENV_API_PORT: str(self.settings.api_port),
            names.ENV_METRICS_PORT: str(self.settings.metrics_port),
            names.ENV_GRACE_SECONDS: f"{self.template.grace_seconds:g}",
            "NVIDIA_VISIBLE_DEVICES": "void",
        }
        fields = {
            names.ENV_POD_UID: "metadata.uid",
            names.ENV_POD_NAME: "metadata.name",
            names.ENV_POD_IP: "status.podIP",
            names.ENV_NODE: "spec.nodeName",
        }
        return [
            *({"name": name, "value": value} for name, value in values.items()),
            *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        ]


def is_guaranteed(spec: Raw) -> bool:
    """Whether the user's containers make a pod of the QoS class Guaranteed: limits of CPU and memory, equal to the requests."""
    containers = [*dicts(spec.get("initContainers")), *dicts(spec.get("containers"))]
    return bool(containers) and all(_has_equal_limits(container) for container in containers)


def _has_equal_limits(container: Raw) -> bool:
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name in ("cpu", "memory"):
        if name not in limits or parse_quantity(requests.get(name, limits[name])) != parse_quantity(limits[name]):
            return False
    return True


def _security_context(spec: Raw, trainer: Raw) -> Raw:
    """The trainer's own user and group, so that all may read what each writes; else root without any capability."""
    pod, own = spec.get("securityContext") or {}, trainer.get("securityContext") or {}
    user = own.get("runAsUser", pod.get("runAsUser"))
    group = own.get("runAsGroup", pod.get("runAsGroup"))
    if user is None:
        user = 65532 if own.get("runAsNonRoot", pod.get("runAsNonRoot")) else 0
    context: Raw = {
        "runAsUser": user,
        "runAsNonRoot": user != 0,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return context if group is None else {**context, "runAsGroup": group}


def _mount(name: str, path: str, *, read_only: bool = False) -> Raw:
    mount: Raw = {"name": name, "mountPath": path}
    return {**mount, "readOnly": True} if read_only else mount
