"""Running other programs: one way to run, one way to wait, one way to say what takes long."""

import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

# A new mount and pid namespace: whatever the program mounts or leaves running ends with it, also when it is killed.
CONTAINED = ("unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc")

# Ends with us, also when we are killed: an orphan would write where the next run cleans up or builds.
_ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL")

Arg = str | Path


class CommandError(RuntimeError):
    """A program failed; the message holds its command line and the end of what it said."""


def run(
    *argv: Arg,
    input: str | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    check: bool = True,
) -> str:
    """Runs a program and returns its standard output; a failure raises `CommandError` unless `check` is false."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            [*_ENDS_WITH_US, *words],
            input=input,
            cwd=cwd,
            env=env,
            timeout=timeout,
            check=False,
            text=True,
            capture_output=True,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{shlex.join(words)}: not finished after {timeout} s") from error
    if check and done.returncode:
        raise CommandError(describe_failure(words, done.returncode, done.stderr or done.stdout))
    return done.stdout


def run_logged(*argv: Arg, log: Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    """Runs a long program with its output in a file; a failure raises `CommandError` with the file's end."""
    words = [str(word) for word in argv]
    with log.open("ab") as out:
        code = subprocess.run(
            [*_ENDS_WITH_US, *words], cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        ).returncode
    if code:
        raise CommandError(f"{describe_failure(words, code, log.read_text(errors='replace'))}\n(all of it: {log})")


def describe_failure(words: Sequence[str], code: int, output: str) -> str:
    tail = "\n".join(output.strip().splitlines()[-15:])
    return f"{shlex.join(words)}: exit status {code}\n{tail}"


def wait_until(condition: Callable[[], bool], what: str, timeout_seconds: float, interval_seconds: float = 0.1) -> None:
    """Returns as soon as `condition()` is true; `TimeoutError` names what was waited for."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {timeout_seconds:g} s still waiting for: {what}")
        time.sleep(interval_seconds)


class Progress:
    """Tells people what is being done and how long it took; quiet when nobody wants to read it."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet

    def say(self, text: str) -> None:
        if not self.quiet:
            print(text, flush=True)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        self.say(f"{what} ...")
        yield
        self.say(f"{what}: {time.monotonic() - started:.1f} s")
