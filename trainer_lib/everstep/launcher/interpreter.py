"""Which interpreter runs the user's script: that of his torchrun (venv, conda), not the first python3."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from everstep_protocol.command import UserCommand

_PYTHON = "python3"
_HEAD_BYTES = 4096


def find_interpreter(command: UserCommand, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The words in front of the target, empty where the target runs by itself. Symlinks are not resolved: a venv lives by them.

    Raises ValueError with a sentence where a program is not to be found.
    """
    path = environment.get("PATH", "")
    if command.kind == "shell" or command.no_python:
        _find(command.target[0], path)
        return ()
    if command.kind == "script":
        return () if shutil.which(command.target[0], path=path) else (_find(_PYTHON, path),)
    if command.interpreter:
        return (_find(command.interpreter[0], path), *command.interpreter[1:])
    if chosen := environment.get("PYTHON_EXEC"):  # torchrun's own variable
        return (_find(chosen, path),)
    return find_torchrun_interpreter(command.torchrun, path)


def find_torchrun_interpreter(name: str, path: str) -> tuple[str, ...]:
    """The interpreter of a torchrun, searched on `path` as a shell would; without one, or where it does not say, the first python3."""
    torchrun = _find(name, path) if "/" in name else shutil.which(name, path=path)
    words = read_shebang(Path(torchrun)) if torchrun else ()
    if words and Path(words[0]).name == "env":
        words = tuple(word for word in words[1:] if word != "-S")
    if words and "python" in Path(words[0]).name:
        return (_find(words[0], path), *words[1:])
    return (_find(_PYTHON, path),)


def read_shebang(script: Path) -> tuple[str, ...]:
    """The words of a script's first line; of the second, where an installer hid a long path behind `#!/bin/sh`. Empty: none."""
    with script.open("rb") as file:
        lines = file.read(_HEAD_BYTES).decode(errors="surrogateescape").split("\n")
    if not lines[0].startswith("#!"):
        return ()
    if lines[1:] and (hidden := re.fullmatch(r"'''exec' (.+) \"\$0\" \"\$@\"", lines[1])):
        return tuple(shlex.split(hidden[1]))
    return tuple(lines[0][2:].split())


def _find(name: str, path: str) -> str:
    found = shutil.which(name, path=path)
    if found is None:
        raise ValueError(
            f"{name}: no such program in the image (PATH is {path or 'empty'}): correct the command, or install it"
        )
    return found
