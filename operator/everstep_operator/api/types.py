"""The spec of a TrainingJob as users write it. The CRD is generated from these models; every field says what it is for."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"


def _rules(*rules: tuple[str, str]) -> JsonDict:
    """CEL rules in the form of a CRD schema."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


# Pods are made from these: a plan is of one template (R29).
_FROZEN = (
    "(has(self.suspend) && self.suspend) || (has(oldSelf.suspend) && oldSelf.suspend)"
    " || (has({field}) ? (has({old}) && {field} == {old}) : !has({old}))"
)
_SUSPEND_FIRST = " can be changed only while the job is suspended: set suspend to true first"


class Model(BaseModel):
    """Names are camelCase in JSON, unknown fields are an error."""

    model_config = ConfigDict(
        alias_generator=lambda name: re.sub(r"_(\w)", lambda match: match[1].upper(), name),
        populate_by_name=True,
        extra="forbid",
        strict=True,
    )


class Workers(Model):
    """How many pods the job runs on."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            ("!has(self.min) || self.min <= self.max", "workers.min must not be greater than workers.max")
        )
    )
    min: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="Smallest number of workers to train with. With fewer the job waits. Default: max."
    )
    max: Annotated[int, Field(ge=1, le=1000)] = Field(
        description="Wanted number of workers. After a loss the job goes on with fewer and grows back to this."
        " At most 1000: each pod's plan names all of them, and Kubernetes bounds what an object may hold."
    )
    grow_interval: Annotated[str, Field(pattern=DURATION_PATTERN)] | None = Field(
        None,
        description="Least time between two restarts that only take in more workers, as 90s or 10m; `0s`: none."
        " Default: 20 times what such a restart cost last, 30s at least and 1h at most.",
    )


class PersistentVolumeClaim(Model):
    """A claim in the job's namespace."""

    claim_name: Annotated[str, Field(min_length=1, max_length=253)] = Field(
        description="Name of the claim. More than one worker needs the access mode ReadWriteMany."
    )


class Storage(Model):
    """Where checkpoints are kept."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            (
                "[has(self.persistentVolumeClaim)].filter(given, given).size() == 1",
                "exactly one kind of storage must be given: persistentVolumeClaim",
            ),
            (
                "!has(self.path) || !self.path.startsWith('/')",
                "storage.path is relative to the volume: it must not start with /",
            ),
            (
                "!has(self.path) || self.path.split('/').all(part, part != '..')",
                "storage.path must not contain ..",
            ),
        )
    )
    persistent_volume_claim: PersistentVolumeClaim | None = Field(
        None, description="A volume that all workers share. It is never owned nor deleted by Everstep."
    )
    path: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        None,
        description="Folder of this job on the volume, relative, without `..`. It may not lie inside another job's. Default: the job's name.",
    )


class Interval(Model):
    """When to save, whichever comes first."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            ("has(self.steps) || has(self.seconds)", "checkpoint.interval needs steps, or seconds, or both")
        )
    )
    steps: Annotated[int, Field(ge=1)] | None = Field(None, description="Save every so many steps.")
    seconds: Annotated[int, Field(ge=1)] | None = Field(None, description="Save every so many seconds.")


class Checkpoint(Model):
    """Where, how often and how many checkpoints are kept."""

    storage: Storage = Field(
        description="Where checkpoints are kept. Required for scripts that never save, too: attempts are fenced there.",
        json_schema_extra=_rules(
            ("self == oldSelf", "checkpoint.storage is immutable: make a new job, with resumeFrom if it shall continue")
        ),
    )
    interval: Interval = Field(
        default_factory=lambda: Interval(steps=None, seconds=60),
        description="When to save, whichever comes first. Default: every 60 seconds.",
        json_schema_extra={"default": {"seconds": 60}},
    )
    keep_last: Annotated[int, Field(ge=1, le=1000)] = Field(
        3,
        description="Number of complete checkpoints to keep. The newest two, and the one that the current attempt began from, are kept in any case.",
    )
    memory: Annotated[str, Field(pattern=QUANTITY_PATTERN)] | None = Field(
        None,
        description="Size of each pod's memory volume for snapshots. It counts against the trainer's memory limit. Default: half of that."
        " Immutable unless the job is suspended.",
    )


class RestartPolicy(Model):
    """When a job that crashes is given up. Node loss, drain and preemption never count; want of memory and eviction for own limits do."""

    max_crashes: Annotated[int, Field(ge=0, le=500)] = Field(
        5, description="The job fails when its trainers crashed more often than this within the window."
    )
    window: Annotated[str, Field(pattern=DURATION_PATTERN)] = Field(
        "1h",
        description="Length of the window, as 90s, 30m or 1h30m.",
        json_schema_extra=_rules(("duration(self) > duration('0s')", "restartPolicy.window must be positive")),
    )
    max_without_progress: Annotated[int, Field(ge=1)] = Field(
        3, description="The job fails after so many crashes in a row without a new complete checkpoint."
    )


class TrainingJobSpec(Model):
    """What shall run."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            (
                "(has(self.suspend) && self.suspend) || (has(oldSelf.suspend) && oldSelf.suspend) || self.template == oldSelf.template",
                "template can be changed only while the job is suspended: set suspend to true first",
            ),
            (
                _FROZEN.format(field="self.processesPerWorker", old="oldSelf.processesPerWorker"),
                "processesPerWorker" + _SUSPEND_FIRST,
            ),
            (
                _FROZEN.format(field="self.checkpoint.memory", old="oldSelf.checkpoint.memory"),
                "checkpoint.memory" + _SUSPEND_FIRST,
            ),
        )
    )
    workers: Workers = Field(description="How many pods the job runs on.")
    template: dict[str, Any] = Field(
        description="An ordinary pod template. Its container named `trainer`, or its only one, must have a command, which the launcher runs."
        " Immutable unless the job is suspended.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    checkpoint: Checkpoint = Field(description="Where, how often and how many checkpoints are kept.")
    restart_policy: RestartPolicy = Field(
        default_factory=lambda: RestartPolicy.model_validate({}),
        description="When a job that crashes is given up.",
        json_schema_extra={"default": {}},
    )
    suspend: bool = Field(
        False, description="True: save, stop and delete the pods. False again: go on from where the job stopped."
    )
    resume_from: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        None,
        description="`none`: begin at 0. A directory in storage.path: begin there. Honoured once, by the next attempt:"
        " a job that runs must be suspended and resumed to obey it at once. Default: the newest checkpoint.",
    )
    processes_per_worker: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None,
        description="Trainer processes in each pod. Default: its GPU limit, else --nproc-per-node, else 1."
        " Immutable unless the job is suspended.",
    )
    active_deadline_seconds: Annotated[int, Field(ge=1)] | None = Field(
        None, description="The job fails when it is not done so many seconds after its first attempt."
    )
    ttl_seconds_after_finished: Annotated[int, Field(ge=0)] | None = Field(
        None, description="The job is deleted so many seconds after its end; its checkpoints stay. Default: never."
    )
