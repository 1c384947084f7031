"""Every label, annotation, environment variable, path and port, with its writer and its reader."""

from __future__ import annotations

GROUP = "everstep.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "TrainingJob"
PLURAL = "trainingjobs"

# Labels on pods: written and read by the operator.
LABEL_JOB = f"{GROUP}/job"  # the job's name, at most 52 characters
LABEL_JOB_UID = f"{GROUP}/job-uid"
LABEL_WORKER = f"{GROUP}/worker"  # the worker's id, a decimal number
LABEL_TEMPLATE_HASH = f"{GROUP}/template-hash"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "everstep"

# Annotations on pods: written by the operator, brought into the pod by the kubelet, read by the sidecar.
ANNOTATION_PLAN = f"{GROUP}/plan"
ANNOTATION_ATTEMPT = f"{GROUP}/attempt"  # decimal; "0" until there is a plan
# Written and read by the operator alone.
ANNOTATION_AVOID = f"{GROUP}/avoid"  # nodes that this pod was kept off, with commas between

TRAINER_CONTAINER = "trainer"  # the user's container; or the only one, whatever its name
SIDECAR_CONTAINER = "everstep-sidecar"
INJECTOR_CONTAINER = "everstep-injector"

# Volumes that the operator adds to a pod, and where they are mounted.
VOLUME_BIN = "everstep-bin"  # emptyDir: launcher and library; written by the injector, read-only in the trainer
VOLUME_MEMORY = "everstep-memory"  # emptyDir in memory: snapshots, progress, the sidecar's socket
VOLUME_SHM = "everstep-shm"  # emptyDir in memory at /dev/shm, unless the user mounts one
VOLUME_SCRATCH = "everstep-scratch"  # emptyDir on disk, sidecar only: the highest attempt seen (R8)
VOLUME_POD = "everstep-pod"  # downward API, sidecar only: files `plan` and `attempt`
VOLUME_TOKEN = "everstep-token"  # Secret, sidecar only: file `token`
VOLUME_STORAGE = "everstep-storage"  # the user's claim: read-only in the trainer, writable in the sidecar
MOUNT_ROOT = "/everstep"
MOUNT_BIN = "/everstep/bin"  # holds the script `everstep` and the folder `lib` with both packages
MOUNT_MEMORY = "/everstep/memory"
MOUNT_SCRATCH = "/everstep/scratch"
MOUNT_POD = "/everstep/pod"
MOUNT_TOKEN = "/everstep/token"
MOUNT_STORAGE = "/everstep/storage"
LAUNCHER = f"{MOUNT_BIN}/everstep"  # run as: python3 /everstep/bin/everstep launch -- <the user's command>

PORT_NAME_API = "everstep-api"
PORT_API = 7471
PORT_METRICS = 7472

# Environment of the sidecar: written by the operator.
ENV_JOB_UID = "EVERSTEP_JOB_UID"
ENV_JOB_NAME = "EVERSTEP_JOB_NAME"
ENV_JOB_NAMESPACE = "EVERSTEP_JOB_NAMESPACE"
ENV_CLUSTER_UID = "EVERSTEP_CLUSTER_UID"  # uid of the namespace kube-system
ENV_POD_UID = "EVERSTEP_POD_UID"
ENV_POD_NAME = "EVERSTEP_POD_NAME"
ENV_POD_IP = "EVERSTEP_POD_IP"
ENV_NODE = "EVERSTEP_NODE"
ENV_WORKER_ID = "EVERSTEP_WORKER_ID"
ENV_STORAGE_PATH = "EVERSTEP_STORAGE_PATH"  # relative to MOUNT_STORAGE
ENV_API_PORT = "EVERSTEP_API_PORT"
ENV_METRICS_PORT = "EVERSTEP_METRICS_PORT"
ENV_GRACE_SECONDS = "EVERSTEP_GRACE_SECONDS"  # the pod's terminationGracePeriodSeconds; read by the launcher too

# Environment of the launcher: written by the operator.
ENV_PROCESSES = "EVERSTEP_PROCESSES"  # processes a worker

# Environment of a trainer process: written by the launcher beside RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...
ENV_PLAN_FILE = "EVERSTEP_PLAN_FILE"  # path of the plan (JSON, `plan.Plan`) on the memory volume
ENV_MEMORY = "EVERSTEP_MEMORY"  # the memory volume
ENV_RESUME_DIR = "EVERSTEP_RESUME_DIR"  # absolute directory to load, unset if there is none
ENV_TORCHRUN = "EVERSTEP_TORCHRUN"  # path of Everstep's torchrun, of a shell command only: for users, and for a torchrun that hands over to it
ENV_HANDED_OVER = (
    "EVERSTEP_HANDED_OVER"  # from that one to Everstep's: its arguments are a whole command line, interpreter first
)
ENV_OWN_WORLDS = "EVERSTEP_OWN_WORLDS"  # the user's: process groups that are not the job's are meant, none is refused; read in trainers

# On the memory volume.
SOCKET_NAME = "sidecar.sock"  # unix stream socket, JSON lines (`local`): the sidecar listens
SNAPSHOTS_NAME = "snapshots"  # snapshots/a<attempt>/step_<N>/ : files of a DCP save and `ready_<rank>.json`
CONTROL_NAME = "control"  # `shared_memory.Control`: written by the sidecar, read by trainers each step
PROGRESS_PREFIX = "progress-"  # `shared_memory.Progress`, one file a local rank: written by that trainer
UNSAVED_PREFIX = (
    "unsaved-"  # `records.Unsaved`, one file a local rank, there while saves fail in the trainer: written by it
)
PLAN_FILE_NAME = "plan.json"  # written by the launcher before it starts trainers

# In the scratch volume.
HIGHEST_NAME = "highest.json"
