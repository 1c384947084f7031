"""R31: a process that is killed after its last step is saved has finished. What its script itself calls a failure stays one."""

from __future__ import annotations

import re
import signal

from everstep.launcher.cause import Failure, says_peer_lost
from everstep.launcher.pages import Pages
from everstep.launcher.processes import Exit

_SHELL_BASE = 128  # a shell's exit code for what a signal killed is this and the signal's number

# An exception that Python only mentions, because it ends nothing: at exit they are common.
_MENTIONED = re.compile(
    r"Exception (?:ignored|in thread)[^\n]*\nTraceback \(most recent call last\):\n(?:[ \t][^\n]*\n)*[^\n]*"
)
_FRAME = re.compile(r'File "[^"\n]+", line \d+, in ')  # not the header: a long traceback's is not among the last lines


def explain_rank(failure: Failure, pages: Pages, *, wrapped: bool) -> str | None:
    """Why the bad end of one rank is none, in one sentence; None: it is a failure. `wrapped`: its process may be a shell script."""
    return _explain(failure, wrapped=wrapped) if pages.said_finished(failure.exit.rank) else None


def explain_shell(failure: Failure, pages: Pages) -> str | None:
    """As `explain_rank`, for a shell that stands for all ranks of this pod."""
    if not pages.all_said_finished():
        return None
    first, end = pages.ranks
    if end - first > 1 and killed_by(failure.exit, wrapped=True) is None:
        return None  # one rank's failure, and next to it what its peers said of it
    return _explain(failure, wrapped=True)


def killed_by(exit_: Exit, *, wrapped: bool) -> int | None:
    """The signal that killed it; None: it ended with an exit code of its own."""
    if exit_.signal is not None or not wrapped:
        return exit_.signal
    number = (exit_.exit_code or 0) - _SHELL_BASE
    return number if number in signal.valid_signals() else None


def says_raised(last_lines: str) -> bool:
    """Whether the script failed by an exception of its own: torch's threads may abort the process after it, on the way out."""
    return _FRAME.search(_MENTIONED.sub("", last_lines)) is not None


def _explain(failure: Failure, *, wrapped: bool) -> str | None:
    number = killed_by(failure.exit, wrapped=wrapped)
    if says_peer_lost(failure.last_lines) and number != signal.SIGKILL:
        how = "lost its connection to a peer"
    elif number is None or (number != signal.SIGKILL and says_raised(failure.last_lines)):
        return None
    else:
        how = f"was killed by signal {number} ({_name(number)})"
    return f"rank {failure.exit.rank} {how} after its last step was saved: it has finished"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return "unknown"
