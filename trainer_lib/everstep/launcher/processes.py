"""Processes: made, signalled and reaped here only. `spawn` is the seam behind which a warm fork may come."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")

CpuSeconds = dict[tuple[int, int], float]  # (pid, start time in ticks) -> CPU time
# The kernel resets handlers at exec, but what is ignored stays ignored: Python ignores SIGPIPE and SIGXFSZ, the shim more.
_RESET = frozenset(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}


@dataclass(frozen=True)
class Launch:
    """What to run for one rank. `own_group`: in a session and process group of its own."""

    rank: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    own_group: bool = True


@dataclass(frozen=True)
class Process:
    """A process that runs, and the reading ends of its standard output and standard error."""

    rank: int
    pid: int
    output: tuple[int, int]


@dataclass(frozen=True)
class Exit:
    """How a process ended: an exit code, or the signal that ended it."""

    rank: int
    exit_code: int | None
    signal: int | None

    @property
    def is_good(self) -> bool:
        return self.exit_code == 0


class CannotExecute(OSError):
    """A program that can never be started in this image; its text is a sentence for the user."""


def spawn(launch: Launch) -> Process:
    """Start one process: default signal handlers, none of the launcher's files or sockets. Raises OSError; CannotExecute, where that is sure."""
    path = find_program(launch.argv[0], launch.environment)
    ends = [*os.pipe(), *os.pipe()]
    try:
        actions = [(os.POSIX_SPAWN_DUP2, ends[1], 1), (os.POSIX_SPAWN_DUP2, ends[3], 2)]
        pid = os.posix_spawn(
            path,
            launch.argv,
            dict(launch.environment),
            file_actions=actions,
            setsid=launch.own_group,
            setsigmask=(),
            setsigdef=_RESET,
        )
    except OSError as error:
        os.close(ends[0])
        os.close(ends[2])
        raise _explain(path, error) from error
    finally:
        os.close(ends[1])
        os.close(ends[3])
    return Process(launch.rank, pid, (ends[0], ends[2]))


def find_program(name: str, environment: Mapping[str, str]) -> str:
    """Where a program is, as a shell would find it. Raises CannotExecute."""
    path = shutil.which(name, path=environment.get("PATH", os.defpath))
    if path is None:
        raise CannotExecute(
            f"{name}: no such program here, or it may not be executed: correct the command or the file's mode"
        )
    return path


def _explain(path: str, error: OSError) -> OSError:
    """The sentence for a program that is there and cannot be executed."""
    if error.errno == errno.ENOENT:
        return CannotExecute(
            f"{path}: the interpreter that its first line names is not in the image: correct that line (its end, too: no carriage "
            "return), or name the interpreter in the command"
        )
    if error.errno == errno.ENOEXEC:
        return CannotExecute(
            f"{path}: no program for this machine ({os.uname().machine}): a script needs a first line like #!/bin/sh, and a binary must "
            "be built for this architecture"
        )
    if error.errno == errno.EACCES:
        return CannotExecute(
            f"{path}: it, or its interpreter, may not be executed: correct the file's mode, or the volume's (noexec)"
        )
    return error


def send_signal(pid: int, number: int, *, group: bool) -> None:
    """Signal a process, or the group that it leads; nothing where it is gone."""
    with suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def reap(leaders: Container[int]) -> Iterator[tuple[int, int]]:
    """(pid, wait status) of every child that has ended, adopted orphans included.

    The group of a leader is killed while its id is still held by the dead leader: what it left behind must not live on (and the
    id cannot yet be another's).
    """
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        if ended.si_pid in leaders:
            send_signal(ended.si_pid, signal.SIGKILL, group=True)
        yield os.waitpid(ended.si_pid, 0)


def describe_exit(rank: int, status: int) -> Exit:
    """An Exit from a wait status."""
    code = os.waitstatus_to_exitcode(status)
    return Exit(rank, code, None) if code >= 0 else Exit(rank, None, -code)


def become_subreaper() -> bool:
    """Adopt the orphans of all descendants, as PID 1 does by nature. False where the system does not offer it."""
    try:
        import ctypes  # some small interpreters are built without it

        return int(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0
    except (ImportError, OSError, AttributeError):
        return False


def descendants() -> frozenset[int]:
    """Every process below this one, zombies included."""
    return frozenset(stat.pid for stat in _below(list(_stats())))


def read_cpu_seconds() -> CpuSeconds | None:
    """CPU time of every process below this one, that of its own ended children included; None where /proc cannot be read.

    Under this process itself stands what its own ended children have used: what ends between two looks is never forgotten.
    """
    try:
        stats = list(_stats())
    except OSError:
        return None
    own = [stat for stat in stats if stat.pid == os.getpid()]
    seconds = {(stat.pid, stat.start): (stat.own_ticks + stat.ended_ticks) / _TICKS_A_SECOND for stat in _below(stats)}
    return seconds | {(stat.pid, stat.start): stat.ended_ticks / _TICKS_A_SECOND for stat in own}


def describe_descendants() -> str:
    """Who is below this process, for people: `17 (python3, state D)`; empty: nobody."""
    return ", ".join(f"{stat.pid} ({stat.name}, state {stat.state})" for stat in _below(list(_stats())))


def kill_all(pids: Sequence[int] | frozenset[int]) -> None:
    """SIGKILL each of them."""
    for pid in pids:
        send_signal(pid, signal.SIGKILL, group=False)


@dataclass(frozen=True)
class _Stat:
    """What /proc/PID/stat says: unlike its neighbours it waits for no lock of the process."""

    pid: int
    name: str
    state: str
    parent: int
    own_ticks: int
    ended_ticks: int  # of children that it has reaped
    start: int


def _stats() -> Iterator[_Stat]:
    """All processes that can be seen. Raises OSError where /proc cannot be listed."""
    for entry in os.listdir("/proc"):  # noqa: PTH208 - many names, no need for paths
        if entry.isdigit():
            with suppress(OSError, ValueError, IndexError):  # it ended meanwhile, or is told otherwise here
                yield _parse_stat(int(entry), Path("/proc", entry, "stat").read_bytes())


def _parse_stat(pid: int, text: bytes) -> _Stat:
    begin, end = text.index(b"("), text.rindex(b")")  # the name may hold blanks and brackets
    fields = text[end + 2 :].split()
    own_ticks, ended_ticks = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    name = text[begin + 1 : end].decode(errors="replace")
    return _Stat(pid, name, fields[0].decode(), int(fields[1]), own_ticks, ended_ticks, int(fields[19]))


def _below(stats: Sequence[_Stat]) -> list[_Stat]:
    """Those that this process has started, and theirs."""
    children: dict[int, list[_Stat]] = {}
    for stat in stats:
        children.setdefault(stat.parent, []).append(stat)
    found: list[_Stat] = []
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += [stat.pid for stat in below]
    return found
