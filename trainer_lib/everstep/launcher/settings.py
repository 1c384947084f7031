"""What the launcher is told once, at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep_protocol import names
from everstep_protocol.command import UserCommand

_TERMINATION_LOG = "/dev/termination-log"
_ENV_TERMINATION_LOG = "TERMINATION_LOG"
_GRACE_SECONDS = 30.0  # Kubernetes' own default


@dataclass(frozen=True)
class Settings:
    """The user's command and where things are. `library`: the folder that holds both packages, first on the trainers' path."""

    command: UserCommand
    processes: int  # a worker
    memory: Path
    library: Path
    grace_seconds: float
    environment: Mapping[str, str]

    @property
    def socket(self) -> Path:
        return self.memory / names.SOCKET_NAME

    @property
    def plan_file(self) -> Path:
        return self.memory / names.PLAN_FILE_NAME

    @property
    def folder(self) -> Path:
        """The launcher's own files on the memory volume: the torchrun shim and what it reports, and what trainers are told."""
        return folder(self.memory)


def folder(memory: Path) -> Path:
    """The launcher's own files on the memory volume."""
    return memory / "launcher"


def placement_file(memory: Path) -> Path:
    """Where the launcher says which place this worker has in the attempt that runs."""
    return folder(memory) / "placement.json"


def refusal_file(memory: Path, attempt: int) -> Path:
    """Where a process of this attempt leaves why it can never work."""
    return folder(memory) / f"refused-{attempt}.json"


def read_settings(command: UserCommand, environment: Mapping[str, str], library: Path) -> Settings:
    """Raises ValueError with a sentence for a number that is none."""
    processes = _read_number(environment, names.ENV_PROCESSES, float(command.num_processes or 1))
    return Settings(
        command=command,
        processes=max(1, int(processes)),
        memory=Path(environment.get(names.ENV_MEMORY, names.MOUNT_MEMORY)),
        library=library,
        grace_seconds=_read_number(environment, names.ENV_GRACE_SECONDS, _GRACE_SECONDS),
        environment=environment,
    )


def termination_log(environment: Mapping[str, str]) -> Path:
    """Where the kubelet looks for a container's last word."""
    return Path(environment.get(_ENV_TERMINATION_LOG, _TERMINATION_LOG))


def _read_number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name)
    try:
        return default if text is None else float(text)
    except ValueError:
        raise ValueError(f"the environment variable {name} is {text!r}: it must be a number") from None
