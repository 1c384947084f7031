"""The user's command line, read once for operator and launcher alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class UserCommand:
    """What to start for each rank.

    `torchrun` covers `torchrun ...`, `/path/torchrun ...`, `python -m torch.distributed.run ...` and `python -m torch.distributed.launch ...`;
    `python` a `python [options] script.py ...` or `python -m module ...`; `script` a bare `train.py ...` (run by its own shebang or
    by python3); `shell` anything else (`sh -c "torchrun ..."`), which runs once a worker, with our torchrun shim first on PATH.
    """

    kind: Literal["torchrun", "python", "script", "shell"]
    interpreter: tuple[str, ...]  # e.g. ("python3", "-u"); empty: to be found from torchrun's shebang
    target: tuple[str, ...]  # the script (or `-m`, module) and its arguments, without torchrun's own options
    num_processes: int | None  # --nproc-per-node, None: not said (`auto`, `gpu` and `cpu` count as not said)


def parse_command(command: Sequence[str]) -> UserCommand:
    """Raises ValueError with a sentence for the user: torchrun without a script, an unknown option, a bad --nproc-per-node."""
    raise NotImplementedError
