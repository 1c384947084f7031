"""What goes over the pod's unix socket (`names.SOCKET_NAME`): JSON lines, each `{"type": <class name>, ...fields}`.

The sidecar listens. The launcher holds one connection open; its end means that the launcher is gone, and with it every trainer
(the launcher is PID 1 of its container). Trainers connect only to say `Saved`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import get_args

from everstep_protocol import codec

# launcher -> sidecar


@dataclass(frozen=True)
class LauncherHello:
    """First line of a launcher. `nonce` is new each time the launcher starts (R7); `running` is the attempt whose processes it has, 0: none."""

    nonce: str
    processes: int
    running: int


@dataclass(frozen=True)
class Stopped:
    """No process of `attempt` or of an older one is left: whole process groups killed and reaped."""

    attempt: int


@dataclass(frozen=True)
class PortChosen:
    """Answer to ChoosePort: a port that is free in this pod now."""

    attempt: int
    port: int


@dataclass(frozen=True)
class ProcessExited:
    """The first process of the attempt that ended badly: not as `Finished` says. The others are stopped by the launcher."""

    attempt: int
    rank: int
    exit_code: int | None
    signal: int | None
    oom_killed: bool
    peer_lost: bool  # its last lines say that a peer's connection broke
    last_lines: str
    refused: bool = False  # it can never work: what does not depend on this start is wrong, as `last_lines` says


@dataclass(frozen=True)
class Finished:
    """R31: every process of the attempt ended with exit code 0, or was killed or lost its peers after its last step was saved."""

    attempt: int


@dataclass(frozen=True)
class Terminating:
    """The launcher got SIGTERM: the pod is leaving, `seconds` are left until the kubelet kills."""

    seconds: float


@dataclass(frozen=True)
class Activity:
    """Every few seconds while trainers run: for how long none of them has used CPU time or printed anything."""

    attempt: int
    idle_seconds: float


# sidecar -> launcher


@dataclass(frozen=True)
class Stop:
    """End every process of attempts up to this one: TERM, `grace_seconds` later KILL (0: KILL at once). Answered by Stopped, always."""

    attempt: int
    grace_seconds: float


@dataclass(frozen=True)
class ChoosePort:
    """To the coordinator's launcher only."""

    attempt: int


@dataclass(frozen=True)
class Start:
    """R7: go was given. `plan` is the plan's JSON text; the launcher writes it to `names.PLAN_FILE_NAME` and starts ranks [lo, hi)."""

    attempt: int
    plan: str
    ranks: tuple[int, int]
    world: int
    master_addr: str
    master_port: int
    resume_dir: str  # absolute, empty: none


@dataclass(frozen=True)
class Exit:
    """End what runs, then the launcher ends with code 0: the job's last commit is confirmed, the pod is leaving and has nothing left
    to do, or the job has failed.
    """

    result: str  # `finished`, `left` or `failed`
    grace_seconds: float = 0.0  # between TERM and KILL; 0: KILL at once
    why: str = ""  # for people; of `failed`


# trainer -> sidecar


@dataclass(frozen=True)
class Saved:
    """A nudge: `ready_<rank>.json` was written. The file is the truth, this only saves a look every now and then."""

    attempt: int
    step: int
    rank: int


Message = (
    LauncherHello
    | Stopped
    | PortChosen
    | ProcessExited
    | Finished
    | Terminating
    | Activity
    | Stop
    | ChoosePort
    | Start
    | Exit
    | Saved
)
_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    """One line, newline included."""
    return (json.dumps({"type": type(message).__name__, **codec.to_json(message)}) + "\n").encode()


def decode(line: bytes) -> Message | None:
    """The message of one line; None for a type that is not known here. Raises InvalidDocument."""
    document = codec.loads(dict, line)
    kind = _KINDS.get(str(document.get("type")))
    return codec.from_json(kind, document) if kind else None


@dataclass(frozen=True)
class TerminationMessage:
    """What the launcher leaves in /dev/termination-log as JSON: the operator's last word from a container that has ended."""

    attempt: int
    result: str  # finished | failed | left | refused
    exit_code: int | None = None
    signal: int | None = None
    last_lines: str = ""
