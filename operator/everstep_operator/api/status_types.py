"""The status of a TrainingJob as it is stored. `api.status` fills it; a test holds it equal to `core.model.JobStatus`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.config import JsonDict

from everstep_operator.api.types import Model

_KEEP_UNKNOWN: JsonDict = {"x-kubernetes-preserve-unknown-fields": True}
# What is written is `codec.camel` of the core's names, which has acronyms: `planID`, not `planId`.


class Condition(Model):
    """One condition; types never repeat."""

    type: Annotated[str, Field(max_length=316)] = Field(
        description="Valid, Ready, Degraded, CheckpointHealthy, Suspended, Complete or Failed."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    reason: Annotated[str, Field(max_length=1024)] = Field(description="One word for machines.")
    message: Annotated[str, Field(max_length=32768)] = Field(
        description="A sentence for people: what it is, what to do."
    )
    last_transition_time: str = Field(
        description="When status last changed.", json_schema_extra={"format": "date-time"}
    )
    observed_generation: int | None = Field(None, description="The generation that this was said of.")


class Attempt(Model):
    """The current attempt: a fixed set of workers with ranks."""

    number: int = Field(description="Its number. It only grows and is never used twice.")
    state: Literal["Preparing", "Planned", "Started", "Ended"] = Field(
        description="Preparing: workers are gathered and older attempts fenced. Planned: the plan is fixed. Started: trainers run."
    )
    intent_id: str = Field(
        alias="intentID", description="Names this intent; a repeated request with it is the same one."
    )
    cause: Literal[
        "start",
        "resume",
        "crash",
        "oom",
        "evicted",
        "pod-restart",
        "hang",
        "node-lost",
        "drain",
        "preemption",
        "grow",
        "shrink",
        "template",
        "bad-checkpoint",
        "not-delivered",
        "storage",
    ] = Field(description="Why this attempt was made.")
    intent_generation: int = Field(description="The job's generation when it was formed.")
    plan: dict[str, Any] | None = Field(
        None,
        description="The whole plan, word for word: members, ranks, coordinator, resume, lineage. It has its own format number and digest.",
        json_schema_extra=_KEEP_UNKNOWN,
    )
    ended: str | None = Field(None, description="Why it ended: suspended, finished or failed.")
    failure_at: str | None = Field(None, description="When that happened which caused this attempt (RFC 3339).")
    message: str | None = Field(None, description="What happened, for people.")
    fenced_by: str | None = Field(
        None,
        description="UID of the pod that raised this attempt's fence; who sees another's fence sees another storage.",
    )
    ask_last: str | None = Field(
        None,
        description="UID of the pod whose storage failed the attempt before; another one coordinates, if there is one.",
    )
    go_at: str | None = Field(None, description="When the trainers were told to start (RFC 3339).")
    training_at: str | None = Field(
        None,
        description="When the first step was heard of, or a sign of life of a script that reports none (RFC 3339).",
    )


class Worker(Model):
    """A worker id, given once."""

    id: int = Field(description="The id; its pod is <job>-w<id>.")
    state: Literal["Wanted", "Joined", "Leaving", "Lost", "Finished"] = Field(description="What is known of it.")
    node: str | None = Field(None, description="The node of its pod.")


class NewestCheckpoint(Model):
    """A complete checkpoint on storage."""

    id: str = Field(description="Its identity: the digest of its manifest.")
    dir: str = Field(description="Its directory, relative to storage.path.")
    attempt: int = Field(description="The attempt that made it.")
    step: int = Field(description="Number of finished steps in it.")
    committed_at: str | None = Field(
        None, description="When it was committed (RFC 3339).", json_schema_extra={"format": "date-time"}
    )
    bytes: int = Field(description="Size of all its files.")


class Checkpoints(Model):
    """What is known of the checkpoints on storage; the storage itself is the truth."""

    ever: bool = Field(
        False, description="Whether there ever was a complete one: then the job never begins at 0 again by itself."
    )
    newest: NewestCheckpoint | None = Field(None, description="The newest complete one that counts.")
    condemned: list[str] = Field([], description="Ids that may be deleted.")
    bad: list[str] = Field([], description="Ids whose contents failed a hash check.")


class Crash(Model):
    """A crash that spends the budget."""

    attempt: int = Field(description="The attempt that crashed.")
    at: str = Field(description="When (RFC 3339).")


class Budget(Model):
    """How much of restartPolicy is spent."""

    crashes: list[Crash] = Field([], description="The last crashes: 20, or as many as maxCrashes allows and one more.")
    without_progress: int = Field(0, description="Crashes in a row without a new complete checkpoint.")
    attempts_without_commit: int = Field(0, description="Attempts of any cause without a new complete checkpoint.")


class Growth(Model):
    """What taking in more workers costs."""

    restart_seconds: float | None = Field(
        None,
        description="How long the job stood still for the last restart that it chose itself, to grow or to shrink.",
    )
    grown_at: str | None = Field(None, description="When it was last stopped to take in more workers (RFC 3339).")


class StageSeconds(Model):
    """Seconds since the failure."""

    detected: float | None = Field(None, description="Until the operator acted on it.")
    planned: float | None = Field(None, description="Until the new plan was fixed.")
    first_step: float | None = Field(None, description="Until the first new step was finished.")


class HistoryEntry(Model):
    """One attempt, for people."""

    number: int = Field(description="Its number.")
    cause: str = Field(description="Why it was made.")
    world_size: int | None = Field(None, description="Number of ranks; absent before there is a plan.")
    resumed_step: int | None = Field(None, description="The step that it began at; absent before there is a plan.")
    steps_lost: int | None = Field(None, description="Finished steps of the attempt before that had to be done again.")
    seconds: StageSeconds = Field(description="How long the recovery took.")
    nodes: list[str] = Field([], description="Nodes of its workers, if they are not more than 16.")
    message: str | None = Field(None, description="What happened.")
    started_at: str | None = Field(None, description="When it was begun (RFC 3339).")
    ended_at: str | None = Field(None, description="When it ended (RFC 3339).")
    num_workers: int | None = Field(None, description="Number of its workers; absent before there is a plan.")


class Accepted(Model):
    """The last spec that was valid."""

    generation: int = Field(description="The job's generation that had it first.")
    spec: dict[str, Any] = Field(
        description="What the operator understood of it. A job whose newest spec is invalid goes on with this.",
        json_schema_extra=_KEEP_UNKNOWN,
    )


class TrainingJobStatus(Model):
    """What is so. `phase` is a summary for people, conditions are the truth for machines."""

    observed_generation: int | None = Field(None, description="The generation that this status is of.")
    phase: (
        Literal["Pending", "Starting", "Running", "Recovering", "Waiting", "Suspended", "Succeeded", "Failed"] | None
    ) = Field(None, description="A summary for people.")
    conditions: list[Condition] = Field(
        [],
        description="The truth for machines.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    ready: str | None = Field(
        None, description="Workers that train, or while none trains those that could, of those wanted, as 3/4."
    )
    ready_workers: int | None = Field(None, description="The first number of `ready`.")
    wanted_workers: int | None = Field(None, description="The second number of `ready`.")
    accepted: Accepted | None = Field(None, description="The last spec that was valid.")
    attempt: Attempt | None = Field(None, description="The current attempt.")
    next_worker_id: int | None = Field(None, alias="nextWorkerID", description="The next worker id that will be given.")
    workers: list[Worker] = Field([], description="Worker ids in use.")
    lineage: list[list[int]] = Field(
        [], description="Checkpoints that count, as [attempt, newest step of it that counts]."
    )
    last_attempt: int | None = Field(None, description="The last attempt that was planned.")
    checkpoints: Checkpoints | None = Field(None, description="What is known of the checkpoints on storage.")
    budget: Budget | None = Field(None, description="How much of restartPolicy is spent.")
    history: list[HistoryEntry] = Field([], description="The last 20 attempts, for people.")
    restarts: dict[str, int] | None = Field(None, description="Number of new attempts by cause, and their `total`.")
    step: int | None = Field(
        None,
        description="Newest finished step that was heard of; written every 10 s at most, less often where there are over 50 jobs.",
    )
    honoured_resume_generation: int | None = Field(None, description="The generation whose resumeFrom was obeyed.")
    honoured_resume_from: str | None = Field(None, description="The resumeFrom that was obeyed.")
    started_at: str | None = Field(None, description="When the first attempt was made (RFC 3339).")
    completed_at: str | None = Field(None, description="When the job ended (RFC 3339).")
    result: Literal["", "Complete", "Failed"] | None = Field(
        None, description="How the job ended; empty while it has not."
    )
    result_reason: str | None = Field(None, description="One word for machines.")
    result_message: str | None = Field(None, description="A sentence for people.")
    growth: Growth | None = Field(None, description="What taking in more workers costs.")
