"""Where the script runs: as a rank of a plan, told by the launcher's environment, or by itself with a folder of its own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from everstep_protocol import names, plan
from everstep_protocol.codec import InvalidDocument
from everstep_protocol.plan import Plan, SaveInterval

from everstep.errors import EverstepError

ENV_DIRECTORY = "EVERSTEP_CHECKPOINT_DIR"  # set by people, for runs outside a cluster
DEFAULT_DIRECTORY = "checkpoints"


@dataclass(frozen=True)
class Cluster:
    """A rank of an attempt."""

    plan: Plan
    memory: Path
    resume_directory: Path | None  # None: step 0


@dataclass(frozen=True)
class Alone:
    """No cluster: `python train.py`, `torchrun train.py`."""

    folder: Path
    interval: SaveInterval
    keep_last: int


def read_setting(directory: str | os.PathLike[str] | None, interval: SaveInterval, keep_last: int) -> Cluster | Alone:
    """What the environment says; in a cluster the plan wins over the arguments. Raises EverstepError for one that contradicts itself."""
    plan_file = os.environ.get(names.ENV_PLAN_FILE)
    if plan_file:
        return _read_cluster(Path(plan_file))
    chosen = directory or os.environ.get(ENV_DIRECTORY) or DEFAULT_DIRECTORY
    return Alone(Path(chosen).absolute(), interval, keep_last)


def _read_cluster(plan_file: Path) -> Cluster:
    try:
        told = plan.parse_plan(plan_file.read_text())
    except (OSError, InvalidDocument) as error:
        raise EverstepError(f"{names.ENV_PLAN_FILE}={plan_file}: no plan can be read there: {error}") from error
    resume = os.environ.get(names.ENV_RESUME_DIR)
    if (told.resume.kind == "none") != (not resume):
        raise EverstepError(
            f"the plan resumes from {told.resume.dir or 'step 0'}, but {names.ENV_RESUME_DIR} is {resume!r}"
        )
    memory = Path(os.environ.get(names.ENV_MEMORY, str(plan_file.parent)))
    return Cluster(told, memory, Path(resume) if resume else None)
