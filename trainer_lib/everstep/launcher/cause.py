"""R32: which of several processes that ended badly is the cause, and which ended only because a peer was gone."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from everstep.launcher.processes import Exit

WINDOW_SECONDS = 0.075  # the first that is seen dead may be a peer of the one that died first

# Each needs the name of a library that speaks to peers: a data loader's own "Connection reset by peer" is the user's failure.
_PEER_LOST = re.compile(
    r"gloo[^\n]*(closed by peer|reset by peer|broken pipe|connection timed out|connect timeout|connection refused|connectFullMesh|no route to host)"
    r"|(TCPStore|c10d|TCPStoreClient|DistNetworkError)[^\n]*(closed|reset by peer|broken pipe|failed to recv|failed to send|shut ?down)"
    r"|remote process exited or there was a network error"
    r"|ncclRemoteError|NCCL communicator was aborted"
    r"|(NCCL|ncclSystemError)[^\n]*(closed by remote peer|reset by peer|broken pipe)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Failure:
    """A process that ended badly, with the last that it said."""

    exit: Exit
    last_lines: str

    @property
    def is_peer_lost(self) -> bool:
        return is_peer_lost(self.exit, self.last_lines)


def is_peer_lost(exit_: Exit, last_lines: str) -> bool:
    """R32: its last lines say that a peer's connection broke. A signal other than a library's own abort speaks for itself."""
    return exit_.signal in (None, signal.SIGABRT) and says_peer_lost(last_lines)


def says_peer_lost(last_lines: str) -> bool:
    """Whether a library that speaks to peers says that a connection broke."""
    return _PEER_LOST.search(last_lines) is not None


def choose_cause(failures: Sequence[Failure]) -> Failure:
    """R32: of failures in the order in which they were seen: a signal before an exit, either before what only a peer's loss caused."""
    return min(failures, key=lambda failure: (failure.is_peer_lost, failure.exit.signal is None))
