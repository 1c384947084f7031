"""The environment and the arguments of one rank: what unmodified torchrun scripts read, and our own."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep_protocol import names
from everstep_protocol.command import UserCommand
from everstep_protocol.local import Start
from everstep_protocol.plan import Plan

from everstep.launcher.settings import Settings

# Of a shell command, for the torchrun shim in it: a Placement as JSON, and the file in which the shim says which rank failed first.
ENV_PLACEMENT = "EVERSTEP_PLACEMENT"
ENV_SHIM_REPORT = "EVERSTEP_SHIM_REPORT"
START_PATH = Path("everstep") / "start" / "path"  # holds what Python imports at its start, and nothing else
_MAX_RESTARTS = 100  # torchrun's own scale; what counts is spec.restartPolicy


@dataclass(frozen=True)
class Placement:
    """Where the processes of this worker stand in an attempt."""

    attempt: int
    ranks: tuple[int, int]  # first, one past the last
    world: int
    group_rank: int  # index of this worker among the members
    group_world: int
    master_addr: str
    master_port: int
    run_id: str

    @property
    def local_world(self) -> int:
        return self.ranks[1] - self.ranks[0]


def place(start: Start, plan: Plan) -> Placement:
    """This worker's placement. Raises ValueError where the plan has no member with these ranks."""
    for index, member in enumerate(plan.members):
        if member.ranks == start.ranks:
            return Placement(
                attempt=start.attempt,
                ranks=start.ranks,
                world=start.world,
                group_rank=index,
                group_world=len(plan.members),
                master_addr=start.master_addr,
                master_port=start.master_port,
                run_id=plan.job_uid,
            )
    raise ValueError(f"the plan of attempt {start.attempt} has no member with the ranks {start.ranks}")


def build_rank_variables(placement: Placement, local_rank: int) -> dict[str, str]:
    """What torchrun sets for a rank, and NODE_RANK."""
    rank = placement.ranks[0] + local_rank
    restarts = placement.attempt - 1
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(placement.world),
        "LOCAL_WORLD_SIZE": str(placement.local_world),
        "GROUP_RANK": str(placement.group_rank),
        "GROUP_WORLD_SIZE": str(placement.group_world),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(placement.world),
        "ROLE_NAME": "default",
        "NODE_RANK": str(placement.group_rank),
        "MASTER_ADDR": placement.master_addr,
        "MASTER_PORT": str(placement.master_port),
        "TORCHELASTIC_RUN_ID": placement.run_id,
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(max(_MAX_RESTARTS, restarts)),
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 makes the store: there is no agent that holds one
    }


def build_shell_variables(placement: Placement, shims: Path, report: Path, path: str) -> dict[str, str]:
    """What a shell command gets besides: our torchrun shim first on PATH, and the same told to a real torchrun."""
    return {
        "PATH": f"{shims}:{path}",
        "PET_NNODES": str(placement.group_world),
        "PET_NODE_RANK": str(placement.group_rank),
        "PET_NPROC_PER_NODE": str(placement.local_world),
        "PET_MASTER_ADDR": placement.master_addr,
        "PET_MASTER_PORT": str(placement.master_port),
        "PET_MAX_RESTARTS": "0",  # R7: an attempt starts once
        ENV_SHIM_REPORT: str(report),
        names.ENV_TORCHRUN: str(shims / "torchrun"),
    }


def build_common_variables(settings: Settings, start: Start, *, has_libuv: bool | None, cores: int) -> dict[str, str]:
    """What all local ranks share: the user's own variables win, except where they would break the attempt."""
    given = settings.environment
    variables = dict(given)
    variables |= {names.ENV_PLAN_FILE: str(settings.plan_file), names.ENV_MEMORY: str(settings.memory)}
    variables.pop(names.ENV_RESUME_DIR, None)
    if start.resume_dir:
        variables[names.ENV_RESUME_DIR] = start.resume_dir
    path = f"{settings.library / START_PATH}:{settings.library}"
    variables["PYTHONPATH"] = _prepend(path, given.get("PYTHONPATH"))
    variables.setdefault("PYTHONUNBUFFERED", "1")
    variables.setdefault("OMP_NUM_THREADS", str(max(1, cores // (start.ranks[1] - start.ranks[0]))))
    if has_libuv is False:
        variables.setdefault("USE_LIBUV", "0")
    return variables


def build_argv(command: UserCommand, interpreter: tuple[str, ...], local_rank: int) -> tuple[str, ...]:
    """The process of one rank. `interpreter`: what `interpreter.find_interpreter` found."""
    if command.kind != "torchrun":
        return interpreter + command.target
    target = tuple(_fill_in(word, local_rank) for word in command.target)
    if command.no_python:
        return target
    unbuffered = () if "-u" in interpreter[1:] else ("-u",)  # torchrun's own
    return interpreter + unbuffered + target


def _fill_in(word: str, local_rank: int) -> str:
    """torchrun's macro: `${local_rank}` in an argument."""
    return string.Template(word).safe_substitute(local_rank=str(local_rank))


def _prepend(first: str, rest: str | None) -> str:
    return f"{first}:{rest}" if rest else first


def merge(*parts: Mapping[str, str]) -> dict[str, str]:
    """One environment; later parts win."""
    return {name: value for part in parts for name, value in part.items()}
