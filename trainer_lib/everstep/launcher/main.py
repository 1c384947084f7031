"""`everstep launch -- <the user's command>`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import everstep_protocol
from everstep_protocol.command import parse_command
from everstep_protocol.local import TerminationMessage

from everstep.launcher import processes
from everstep.launcher.interpreter import find_interpreter
from everstep.launcher.loop import Loop
from everstep.launcher.output import Console
from everstep.launcher.settings import read_settings, termination_log
from everstep.launcher.supervisor import Supervisor
from everstep.launcher.termination import write_termination_message

_REFUSED = 2
_USAGE = "usage: everstep launch -- <the command that starts training, e.g. torchrun train.py>"


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code of the container: 0 at the job's end, 2 where the command is refused (the sentence is on
    standard error and in the termination message)."""
    log = termination_log(os.environ)
    try:
        command = parse_command(_split_arguments(arguments))
        settings = read_settings(command, dict(os.environ), library=_library())
        interpreter = find_interpreter(command, settings.environment)
    except ValueError as error:
        print(f"everstep: {error}", file=sys.stderr)
        write_termination_message(log, TerminationMessage(0, "refused", exit_code=_REFUSED, last_lines=str(error)))
        return _REFUSED
    loop = Loop()
    try:
        Supervisor(settings, interpreter, loop=loop, console=Console(loop), log=log).open()
        return loop.run()
    finally:
        processes.kill_all(processes.descendants())


def _split_arguments(arguments: Sequence[str]) -> Sequence[str]:
    if list(arguments[:2]) != ["launch", "--"]:
        raise ValueError(_USAGE)
    return arguments[2:]


def _library() -> Path:
    """The folder that holds this package and the protocol's."""
    return Path(everstep_protocol.__file__).resolve().parent.parent
