"""`torchrun` inside a user's shell command: starts the ranks of this worker exactly as the launcher would.

It is first on PATH; and where a shell finds another one first, that one hands over to it (`everstep.start.hand_over`).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from everstep_protocol import codec, local, names
from everstep_protocol.command import UserCommand, parse_command

from everstep.launcher import environment, finish, processes
from everstep.launcher.cause import Failure
from everstep.launcher.environment import ENV_PLACEMENT, ENV_SHIM_REPORT, Placement
from everstep.launcher.interpreter import find_interpreter
from everstep.launcher.loop import Loop
from everstep.launcher.output import Console
from everstep.launcher.pages import Pages
from everstep.launcher.processes import Launch
from everstep.launcher.trainers import Trainers

_REFUSED = 2
_OURS = (ENV_PLACEMENT, ENV_SHIM_REPORT, names.ENV_TORCHRUN, names.ENV_HANDED_OVER)
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code of the first rank that failed (128 + signal, as shells say it), else 0."""
    try:
        placement = codec.loads(Placement, os.environ.get(ENV_PLACEMENT, ""))
        command = parse_command(arguments if names.ENV_HANDED_OVER in os.environ else ("torchrun", *arguments))
        _check_num_processes(command, placement)
        launches = _build_launches(command, placement, _clean(os.environ))
        if len(launches) == 1:
            return _become(launches[0])
        return _run(launches, placement, wrapped=command.no_python)
    except (ValueError, OSError) as error:
        print(f"everstep: {error}", file=sys.stderr)
        return _REFUSED


def _check_num_processes(command: UserCommand, placement: Placement) -> None:
    if command.num_processes not in (None, placement.local_world):
        raise ValueError(
            f"torchrun asks for {command.num_processes} processes on this worker, the job gives it "
            f"{placement.local_world}: set spec.processesPerWorker to {command.num_processes}"
        )


def _clean(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment as it was before the shell command got what is meant for this shim and for a real torchrun."""
    own = str(Path(sys.argv[0]).parent)
    kept = {name: value for name, value in variables.items() if not name.startswith("PET_")}
    kept["PATH"] = ":".join(folder for folder in kept.get("PATH", os.defpath).split(":") if folder != own)
    return {name: value for name, value in kept.items() if name not in _OURS}


def _build_launches(command: UserCommand, placement: Placement, common: dict[str, str]) -> list[Launch]:
    interpreter = find_interpreter(command, common)
    return [
        Launch(
            placement.ranks[0] + local_rank,
            environment.build_argv(command, interpreter, local_rank),
            environment.merge(common, environment.build_rank_variables(placement, local_rank)),
            own_group=False,  # the launcher ends the shell's whole group
        )
        for local_rank in range(placement.local_world)
    ]


def _become(launch: Launch) -> int:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    path = processes.find_program(launch.argv[0], launch.environment)
    os.execve(path, launch.argv, dict(launch.environment))


def _run(launches: Sequence[Launch], placement: Placement, *, wrapped: bool) -> int:
    for number in _IGNORED:  # they reach the ranks by themselves: one group
        signal.signal(number, signal.SIG_IGN)
    loop = Loop()
    console = Console(loop)
    codes: list[int] = []
    report = Path(os.environ[ENV_SHIM_REPORT])
    pages = Pages(Path(os.environ[names.ENV_MEMORY]), placement.attempt, placement.ranks)

    def failed(failure: Failure) -> None:
        codes.append(failure.exit.exit_code or 128 + (failure.exit.signal or 0))
        _write_report(report, placement.attempt, failure)

    trainers = Trainers(
        loop,
        console,
        explain_finish=lambda failure: finish.explain_rank(failure, pages, wrapped=wrapped),
        on_failed=failed,
        on_gone=lambda: loop.stop(codes[0] if codes else 0),
        adopts_orphans=False,
    )

    def reap(number: int) -> None:
        for pid, status in processes.reap(trainers.pids):
            trainers.reaped(pid, status)

    loop.on_signals((signal.SIGCHLD,), reap)
    trainers.start(launches, prefixed=True)
    code = loop.run()
    console.flush(60)
    return code


def _write_report(path: Path, attempt: int, failure: Failure) -> None:
    """For the launcher, which sees only that the shell ended."""
    exited = local.ProcessExited(
        attempt=attempt,
        rank=failure.exit.rank,
        exit_code=failure.exit.exit_code,
        signal=failure.exit.signal,
        oom_killed=False,
        peer_lost=failure.is_peer_lost,
        last_lines=failure.last_lines,
    )
    temporary = path.with_name(f"{path.name}.tmp")
    with suppress(OSError):  # a full memory volume: the launcher then tells of the shell's own end
        temporary.write_bytes(local.encode(exited))
        temporary.replace(path)
