"""Launchers that would make a world of their own in each worker, so that none knows of the others: refused, wherever it is sure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

# How each is called; behind its own name only what makes it one: `accelerate config` is none.
_PROGRAMS = {
    "accelerate": r"accelerate\s+(?:launch|test)",
    "deepspeed": "deepspeed",
    "horovodrun": "horovodrun",
    "mpirun": "mpirun",
    "mpiexec": "mpiexec",
    "srun": "srun",
    "colossalai": r"colossalai\s+run",
    "lightning": r"(?:lightning|fabric)\s+run",
}
_MODULES = {
    "accelerate": r"accelerate(?:\.commands\.(?:launch|accelerate_cli))",
    "deepspeed": r"deepspeed\.launcher\.(?:runner|launch)",
    "horovod": r"horovod\.runner",
}
_REMEDIES = {
    "accelerate": "; what its config says, say in the script (Accelerator(...)) or by ACCELERATE_* variables",
    "deepspeed": "; deepspeed.initialize() takes its place in the world from torchrun's variables",
}
_SHELLS = ("sh", "bash", "dash", "zsh", "ash")
# Where a command begins in a shell's text, perhaps behind variables; then perhaps a path.
_BEGINS = r"(?:^|[;&|(]|\b(?:exec|env|do|then|time|nohup)\s)\s*(?:\w+=\S*\s+)*(?:[\w./-]*/)?"
_PYTHON = r"python[\d.]*\s+(?:-\w+\s+)*-m\s+"
_ENDS = r"(?=[\s;&|)]|$)"


def refuse(command: Sequence[str]) -> None:
    """Raises ValueError with a sentence for the user. What is only a word somewhere, a file or an argument, is let through."""
    for text in _texts(command):
        for name, pattern in _patterns():
            if re.search(f"{_BEGINS}{pattern}{_ENDS}", text, re.ASCII | re.MULTILINE):
                raise ValueError(
                    f"{name} would start a world of its own in each worker, and none would know of the others: "
                    f"start the script by torchrun, as [torchrun, train.py]{_REMEDIES.get(name, '')}"
                )


def _patterns() -> list[tuple[str, str]]:
    return [*_PROGRAMS.items(), *((name, _PYTHON + pattern) for name, pattern in _MODULES.items())]


def _texts(command: Sequence[str]) -> list[str]:
    """The command itself, its words free of what a shell would read in them; and what a shell is given to read."""
    plain = " ".join(re.sub(r"[\s;&|()]", "_", word) for word in command)
    is_shell = PurePosixPath(command[0]).name in _SHELLS
    return [plain, *(word for word in command[1:] if is_shell and not word.startswith("-"))]
