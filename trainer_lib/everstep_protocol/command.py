"""The user's command line, read once for operator and launcher alike."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal

from everstep_protocol import own_worlds


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
    no_python: bool = False  # torchrun --no-python: the target is a program of its own
    torchrun: str = "torchrun"  # the torchrun that was named, perhaps with its path
    ignored: tuple[str, ...] = ()  # torchrun's options that have no effect, as `--nnodes`


def parse_command(command: Sequence[str]) -> UserCommand:
    """Raises ValueError with a sentence for the user: torchrun without a script, an unknown option, a bad --nproc-per-node,
    a launcher that would make a world of its own in each worker.

    Options of torchrun that say who takes part and where (--nnodes, --node-rank, --rdzv-*, --master-*, --standalone,
    --max-restarts) are read and ignored: Everstep decides that. So are those about its log files and its agent.
    """
    if not command:
        raise ValueError("the command is empty: give the command that starts training, e.g. torchrun train.py")
    own_worlds.refuse(command)
    name = PurePosixPath(command[0]).name
    if name == "torchrun":
        return replace(_parse_torchrun((), command[1:]), torchrun=command[0])
    if re.fullmatch(r"python(\d+(\.\d+)?t?)?", name, re.ASCII):
        return _parse_python(command)
    if name.endswith(".py"):
        return UserCommand("script", (), tuple(command), None)
    return UserCommand("shell", (), tuple(command), _find_num_processes(command))


# python ------------------------------------------------------------------------------------------

_LAUNCH = "torch.distributed.launch"
_RUN = ("torch.distributed.run", _LAUNCH)
_LONG_WITH_VALUE = ("--check-hash-based-pycs",)


def _parse_python(command: Sequence[str]) -> UserCommand:
    options, target = _split_python(command)
    if target[0] == "-m" and target[1] in _RUN:
        return _parse_torchrun(options, target[2:], old_launch=target[1] == _LAUNCH)
    if PurePosixPath(target[0]).name == "torchrun":
        return _parse_torchrun(options, target[1:])
    return UserCommand("python", options, target, None)


def is_torchrun(command: Sequence[str]) -> bool:
    """Whether `python ...` starts torchrun, in whatever way, and whatever is wrong with the options that it gives."""
    try:
        _, target = _split_python(command)
    except ValueError:
        return False
    is_module = target[0] == "-m" and target[1] in _RUN
    return is_module or (target[0] not in ("-m", "-c") and PurePosixPath(target[0]).name == "torchrun")


def _split_python(command: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The interpreter with its own options, and what it runs: `(script, ...)`, `("-m", module, ...)` or `("-c", code, ...)`."""
    words = list(command)
    options = [words.pop(0)]
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            return tuple(options), (word, *words)
        if word in ("-", "--"):
            break
        flags, letter, value = _split_short_options(word)
        options += flags
        if letter is None:
            options += words[:1] if word in _LONG_WITH_VALUE else []
            del words[: word in _LONG_WITH_VALUE]
            continue
        if value is None and not words:
            break
        value = words.pop(0) if value is None else value
        if letter in "mc":
            return tuple(options), (f"-{letter}", value, *words)
        options += [f"-{letter}", value]
    raise ValueError(
        f"{command[0]} is given neither a script nor a module: name the script that trains, e.g. python train.py"
    )


def _split_short_options(word: str) -> tuple[list[str], str | None, str | None]:
    """`-um` -> (["-u"], "m", None), `-Wignore` -> ([], "W", "ignore"), `-u` -> (["-u"], None, None)."""
    if word.startswith("--"):
        return [word], None, None
    match = re.fullmatch(r"-([^mcWX]*)([mcWX])?(.*)", word, re.DOTALL)
    assert match is not None
    return ([f"-{match[1]}"] if match[1] else []), match[2], match[3] or None


# torchrun ----------------------------------------------------------------------------------------

_OURS = [
    "nnodes",
    "node-rank",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "master-addr",
    "master-port",
    "local-addr",
    "max-restarts",
]
_AGENTS = [
    "nproc-per-node",
    "monitor-interval",
    "start-method",
    "event-log-handler",
    "role",
    "log-dir",
    "redirects",
    "tee",
    "log-line-prefix-template",
    "local-ranks-filter",
    "duplicate-stdout-filters",
    "duplicate-stderr-filters",
    "logs-specs",
    "signals-to-handle",
    "shutdown-timeout",
]
_VALUE_OPTIONS = frozenset((*_OURS, *_AGENTS))
_OBEYED = frozenset(("nproc-per-node", "module", "no-python", "use-env"))
_FLAGS = frozenset(("standalone", "module", "no-python", "use-env"))
_REFUSED = {
    "run-path": "run the script by itself, or a module with -m",
    "virtual-local-rank": "read LOCAL_RANK and choose the device in the script",
    "numa-binding": "bind in the script, or by the kubelet's topology manager",
}
_SHORT = {"-m": "module", "-r": "redirects", "-t": "tee"}
_LOCAL_RANK = "--local-rank=${local_rank}"  # torchrun's own macro, filled in for each process


def _parse_torchrun(interpreter: tuple[str, ...], args: Sequence[str], *, old_launch: bool = False) -> UserCommand:
    options, target = _split_torchrun(args)
    if not target:
        raise ValueError("torchrun is given no script: name the script that trains, e.g. torchrun train.py")
    if "no-python" in options and "module" in options:
        raise ValueError("torchrun: --no-python and --module exclude each other: give one of them")
    script = ("-m", target[0]) if "module" in options else target[:1]
    extra = (_LOCAL_RANK,) if old_launch and "use-env" not in options else ()
    command = UserCommand("torchrun", interpreter, (*script, *extra, *target[1:]), None, "no-python" in options)
    ignored = tuple(f"--{name}" for name in options if name not in _OBEYED)
    return replace(command, num_processes=_parse_num_processes(options.get("nproc-per-node")), ignored=ignored)


def _split_torchrun(args: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """torchrun's options by their long names with dashes, and the script with its arguments."""
    options: dict[str, str] = {}
    words = list(args)
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        name, value = _split_option(word)
        if name in _FLAGS:
            options[name] = ""
            continue
        if value is None and not words:
            raise ValueError(f"torchrun: {word} needs a value: give one, or leave the option out")
        options[name] = words.pop(0) if value is None else value
    return options, tuple(words)


def _split_option(word: str) -> tuple[str, str | None]:
    """The option's long name and the value that is glued to it: `--nproc_per_node=2`, `--nproc=2`, `-t3`, `-m`."""
    if word[:2] in _SHORT:
        return _SHORT[word[:2]], word[2:].removeprefix("=") or None
    text, equals, value = word.partition("=")
    name = text.removeprefix("--").replace("_", "-") if text.startswith("--") else ""
    known = sorted(option for option in (*_VALUE_OPTIONS, *_FLAGS, *_REFUSED) if name and option.startswith(name))
    full = name if name in known else (known[0] if len(known) == 1 else None)
    if full is None:
        meant = f" (it may mean {', '.join('--' + option for option in known)})" if known else ""
        raise ValueError(f"torchrun: the option {text} is not known{meant}: correct it, or leave it out")
    if full in _REFUSED:
        raise ValueError(f"torchrun: --{full} is not supported: {_REFUSED[full]}")
    return full, value if equals else None


def _parse_num_processes(text: str | None) -> int | None:
    if text is None or text in ("auto", "gpu", "cpu", "xpu"):
        return None
    if not re.fullmatch(r"[1-9]\d{0,3}", text, re.ASCII):
        raise ValueError(
            f"torchrun: --nproc-per-node={text} is not a number of processes: give a whole number from 1 up, or gpu"
        )
    return int(text)


def _find_num_processes(command: Sequence[str]) -> int | None:
    """What a shell text says to a torchrun in it, where it says one number."""
    found = set(re.findall(r"--nproc[-_]per[-_]node[=\s]+(\d+)\b", " ".join(command), re.ASCII))
    return _parse_num_processes(found.pop()) if len(found) == 1 else None
