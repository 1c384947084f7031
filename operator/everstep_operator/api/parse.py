"""A TrainingJob as the API server has it -> values that the rest may trust, or every wrong field at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from everstep_protocol.plan import SaveInterval
from pydantic import ValidationError

from everstep_operator.api.quantities import parse_duration
from everstep_operator.api.size import check_size
from everstep_operator.api.template import PodTemplate, Problems, Wanted, parse_template, warnings_of
from everstep_operator.api.types import TrainingJobSpec
from everstep_operator.core.model import JobSpec, RestartPolicy

NAME_LIMIT = 52
RESUME_NONE = "none"


@dataclass(frozen=True)
class Parsed:
    """`spec` and `pod` are None together, and then `problems` says why, a line a field."""

    spec: JobSpec | None
    pod: PodTemplate | None
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def parse_job(body: dict[str, Any]) -> Parsed:
    """Parse a raw TrainingJob; no exception for anything that a user can write."""
    problems = Problems()
    name = str(body.get("metadata", {}).get("name", ""))
    _check_name(name, problems)
    spec = _validate(body.get("spec"), problems)
    if spec is None:
        return Parsed(None, None, tuple(problems))
    pod = parse_template(spec.template, _wanted(spec, name, problems), problems)
    if pod is not None:
        check_size(body, pod.raw, spec.workers.max, problems)
    job = _job_spec(spec, pod, problems)
    if problems or pod is None or job is None:
        return Parsed(None, None, tuple(problems))
    return Parsed(job, pod, (), warnings_of(pod))


def check_path(where: str, path: str, problems: Problems) -> str:
    """A relative path without `.` and `..`, in one spelling."""
    parts = path.rstrip("/").split("/")
    if path.startswith("/") or "\\" in path or "\0" in path:
        problems.say(where, f"{path!r} must be relative to the volume, as runs/gpt")
    elif any(part in ("", ".", "..") for part in parts):
        problems.say(where, f"{path!r} must not contain `.`, `..` or empty parts")
    return "/".join(parts)


def _check_name(name: str, problems: Problems) -> None:
    if len(name) > NAME_LIMIT:
        problems.say("metadata.name", f"has {len(name)} characters, {NAME_LIMIT} are allowed: pods are named after it")
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name, re.ASCII):
        problems.say("metadata.name", f"{name!r} must be a DNS label (a-z, 0-9 and -): pods are named after it")


def _validate(spec: object, problems: Problems) -> TrainingJobSpec | None:
    try:
        return TrainingJobSpec.model_validate(spec)
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"])
            problems.say(f"spec{path}", f"{fault['msg']}, got {fault['input']!r:.60}")
        return None


def _wanted(spec: TrainingJobSpec, name: str, problems: Problems) -> Wanted:
    storage = spec.checkpoint.storage
    if storage.persistent_volume_claim is None:
        problems.say("spec.checkpoint.storage", "exactly one kind of storage must be given: persistentVolumeClaim")
    return Wanted(
        processes=spec.processes_per_worker,
        claim=storage.persistent_volume_claim.claim_name if storage.persistent_volume_claim else "",
        path=check_path("spec.checkpoint.storage.path", storage.path or name, problems),
        memory=spec.checkpoint.memory,
    )


def _job_spec(spec: TrainingJobSpec, pod: PodTemplate | None, problems: Problems) -> JobSpec | None:
    workers, interval = spec.workers, spec.checkpoint.interval
    least = workers.max if workers.min is None else workers.min
    if least > workers.max:
        problems.say("spec.workers.min", f"{least} is greater than workers.max {workers.max}")
    if interval.steps is None and interval.seconds is None:
        problems.say("spec.checkpoint.interval", "needs steps, or seconds, or both")
    if spec.resume_from not in (None, RESUME_NONE):
        check_path("spec.resumeFrom", str(spec.resume_from), problems)
    restart = _restart_policy(spec, problems)
    if pod is None or problems:
        return None
    return JobSpec(
        min_workers=least,
        max_workers=workers.max,
        processes_per_worker=pod.processes,
        template_hash=pod.hash,
        interval=SaveInterval(interval.steps, None if interval.seconds is None else float(interval.seconds)),
        keep_last=spec.checkpoint.keep_last,
        restart=restart,
        suspend=spec.suspend,
        resume_from=spec.resume_from,
        active_deadline_seconds=_seconds(spec.active_deadline_seconds),
        ttl_seconds_after_finished=_seconds(spec.ttl_seconds_after_finished),
        grace_seconds=pod.grace_seconds,
        grow_interval_seconds=None if workers.grow_interval is None else parse_duration(workers.grow_interval),
    )


def _restart_policy(spec: TrainingJobSpec, problems: Problems) -> RestartPolicy:
    policy = spec.restart_policy
    window = parse_duration(policy.window)  # the pattern was checked
    if window <= 0:
        problems.say("spec.restartPolicy.window", f"{policy.window} must be positive")
    return RestartPolicy(policy.max_crashes, window, policy.max_without_progress)


def _seconds(value: int | None) -> float | None:
    return None if value is None else float(value)
