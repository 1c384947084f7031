"""A torchrun in a shell that set PATH anew (`bash -l`, a venv, conda, a path): Everstep's takes its place, whichever way it was called."""

from __future__ import annotations

import os
import sys

from everstep_protocol import names

_MODULES = ("torch.distributed.run", "torch.distributed.launch")


def hand_over_torchrun() -> None:
    """Returns where this process is no torchrun. Before torch is imported, which takes seconds."""
    ours = os.environ.get(names.ENV_TORCHRUN, "")
    if not ours or not _may_be_torchrun(ours):
        return
    from everstep_protocol.command import is_torchrun

    command = [sys.executable or sys.orig_argv[0], *sys.orig_argv[1:]]
    if is_torchrun(command) and os.access(ours, os.X_OK):
        os.execve(ours, [ours, *command], {**os.environ, names.ENV_HANDED_OVER: "1"})


def _may_be_torchrun(ours: str) -> bool:
    """Cheap: nearly all processes are none. Ours is a Python script, too."""
    words = sys.orig_argv[1:]
    return ours not in words and any(word in _MODULES or os.path.basename(word) == "torchrun" for word in words)  # noqa: PTH119
