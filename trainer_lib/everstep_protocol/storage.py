"""Names on storage, below the job's path. One place that makes them, one that reads them."""

from __future__ import annotations

import re

OWNER = "everstep.json"
ATTEMPTS = "attempts"  # attempts/0007/{fence.json, plan.json, go}
FENCED = "fenced"  # fenced/0007/<what attempt 7's fence took away>
FENCE = "fence.json"
PLAN = "plan.json"
GO = "go"
FINISHED = "finished"  # attempts/0007/finished: every member finished and the last save is committed
METADATA = ".metadata"
MANIFEST = "manifest.json"
RUN = "run.json"  # in a checkpoint that was written outside a cluster: which run of its folder made it
LOCK = ".everstep.lock"  # in a folder outside a cluster: locked by the run that writes there
TRASH_PREFIX = ".trash-"

_STEP = re.compile(r"step_(\d+)(?:\.a(\d+))?", re.ASCII)
_TEMPORARY = re.compile(r"step_(\d+)\.tmp-(\d+)", re.ASCII)


def attempt_name(attempt: int) -> str:
    """`0007`."""
    return f"{attempt:04d}"


def parse_attempt_name(name: str) -> int | None:
    """The attempt of a folder in `attempts/`, None for anything else."""
    return int(name) if re.fullmatch(r"\d{4,}", name, re.ASCII) else None


def step_name(step: int) -> str:
    """`step_400`: the committed name."""
    return f"step_{step}"


def step_name_of_attempt(step: int, attempt: int) -> str:
    """`step_400.a7`: the committed name where `step_400` is taken (R6)."""
    return f"step_{step}.a{attempt}"


def parse_step_name(name: str) -> int | None:
    """The step in a committed name, None for every other name (`best`, `step_12a`, `step_600.tmp`, `Step_7`)."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def parse_attempt_of_step_name(name: str) -> int:
    """The attempt in a committed name (`step_400.a7`), 0 where it names none."""
    match = _STEP.fullmatch(name)
    return int(match[2] or 0) if match else 0


def temporary_name(step: int, attempt: int) -> str:
    """`step_400.tmp-7`: not a checkpoint yet."""
    return f"step_{step}.tmp-{attempt}"


def parse_temporary_name(name: str) -> tuple[int, int] | None:
    """(step, attempt) of a temporary name, None for every other name."""
    match = _TEMPORARY.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def rank_record_name(rank: int) -> str:
    """`rank_3.json`."""
    return f"rank_{rank}.json"


def is_rank_record_name(name: str) -> bool:
    """Whether a file of a checkpoint is a rank's record."""
    return re.fullmatch(r"rank_\d+\.json", name, re.ASCII) is not None


def ready_name(rank: int) -> str:
    """`ready_3.json`, in a snapshot."""
    return f"ready_{rank}.json"


def is_data_name(name: str, rank: int) -> bool:
    """Whether a file of a snapshot is a DCP data file of this rank: `__3_0.distcp`."""
    return re.fullmatch(rf"__{rank}_\d+\.distcp", name, re.ASCII) is not None


def snapshot_name(attempt: int) -> str:
    """`a7`: the folder of an attempt's snapshots in memory."""
    return f"a{attempt}"
