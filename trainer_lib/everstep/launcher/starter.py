"""From a Start to the processes that it asks for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from everstep_protocol import codec, local
from everstep_protocol.local import ProcessExited, Start
from everstep_protocol.plan import parse_plan

from everstep.launcher import environment, host
from everstep.launcher.environment import ENV_PLACEMENT, Placement
from everstep.launcher.processes import Launch
from everstep.launcher.settings import Settings, placement_file, refusal_file

_SHIM = """#!{python}
import sys
sys.path.insert(0, {library!r})
from everstep.launcher.shim import main
sys.exit(main(sys.argv[1:]))
"""


def prepare_launches(
    settings: Settings, start: Start, interpreter: tuple[str, ...], *, has_libuv: bool | None
) -> list[Launch]:
    """Write the plan file and build one launch a rank (a shell command: one in all). Raises OSError, ValueError."""
    placement = environment.place(start, parse_plan(start.plan))
    _write_atomically(settings.plan_file, start.plan)
    settings.folder.mkdir(parents=True, exist_ok=True)
    _write_atomically(placement_file(settings.memory), codec.dumps(placement))
    refusal_file(settings.memory, placement.attempt).unlink(missing_ok=True)
    common = environment.build_common_variables(settings, start, has_libuv=has_libuv, cores=host.count_cores())
    if settings.command.kind == "shell":
        return [_prepare_shell(settings, placement, common)]
    return build_launches(settings, placement, common, interpreter)


def build_launches(
    settings: Settings, placement: Placement, common: dict[str, str], interpreter: tuple[str, ...]
) -> list[Launch]:
    """One launch a local rank."""
    return [
        Launch(
            placement.ranks[0] + local_rank,
            environment.build_argv(settings.command, interpreter, local_rank),
            environment.merge(common, environment.build_rank_variables(placement, local_rank)),
        )
        for local_rank in range(placement.local_world)
    ]


def address_of_peer(start: Start) -> str:
    """Another worker's address, empty where there is none."""
    return next((member.ip for member in parse_plan(start.plan).members if member.ranks != start.ranks), "")


def read_report(settings: Settings, attempt: int) -> ProcessExited | None:
    """What was left by a process of this attempt that refused to go on, else by the torchrun shim: who failed first. None: neither."""
    return read_refusal(settings, attempt) or _read_exited(_shim_report(settings, attempt))


def read_refusal(settings: Settings, attempt: int) -> ProcessExited | None:
    """What was left by a process of this attempt that can never work."""
    return _read_exited(refusal_file(settings.memory, attempt))


def _read_exited(path: Path) -> ProcessExited | None:
    try:
        message = local.decode(path.read_bytes())
    except (OSError, codec.InvalidDocument):
        return None
    return message if isinstance(message, ProcessExited) else None


def _shim_report(settings: Settings, attempt: int) -> Path:
    return settings.folder / f"exited-{attempt}.json"


def _prepare_shell(settings: Settings, placement: Placement, common: dict[str, str]) -> Launch:
    shims = settings.folder / "bin"
    shims.mkdir(parents=True, exist_ok=True)
    shim = shims / "torchrun"
    _write_atomically(shim, _SHIM.format(python=sys.executable, library=str(settings.library)), 0o755)
    report = _shim_report(settings, placement.attempt)
    report.unlink(missing_ok=True)
    path = common.get("PATH", os.defpath)
    variables = environment.merge(
        common,
        environment.build_rank_variables(placement, 0),
        environment.build_shell_variables(placement, shims, report, path),
        {ENV_PLACEMENT: codec.dumps(placement)},
    )
    return Launch(placement.ranks[0], settings.command.target, variables)


def _write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text)
    temporary.chmod(mode)
    temporary.replace(path)
