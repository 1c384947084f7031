"""The record of every process we started, so that only those are ever ended.

A pid alone may have been given to somebody else since; a process is its pid, its start time and the boot it ran in.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from testcluster.cgroups import TRACKED_HIERARCHIES, cgroup_folder, pids_below
from testcluster.layout import CGROUP
from testcluster.shell import wait_until

# The child puts itself into our cgroup before it becomes the program: all that it will ever fork is then ours too.
_JOIN_CGROUP = 'for procs in {files}; do echo $$ > "$procs"; done; exec "$@"'


@dataclass(frozen=True)
class Process:
    """One process that we started; `role` is what it is for, such as `etcd` or `node-2`."""

    role: str
    pid: int
    start_time: int
    boot: str

    def is_alive(self) -> bool:
        return self.boot == boot_id() and start_time(self.pid) == self.start_time

    def kill(self) -> None:
        if self.is_alive():
            os.kill(self.pid, signal.SIGKILL)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> int | None:
    """Clock ticks from boot to the start of a process; None when there is none or only its zombie."""
    try:
        return parse_start_time(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


def parse_start_time(stat: str) -> int | None:
    """Field 22 of a `/proc/PID/stat` line, whose second field may hold blanks and brackets; None for a zombie."""
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


class Ledger:
    """The list of our processes in a file, one JSON line each, appended before anything else is done with them."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def processes(self) -> list[Process]:
        if not self._file.exists():
            return []
        return [Process(**json.loads(line)) for line in self._file.read_text().splitlines() if line.endswith("}")]

    def alive(self, role: str) -> Process | None:
        return next((found for found in self.processes() if found.role == role and found.is_alive()), None)

    def start(self, role: str, argv: Sequence[str | Path], log: Path) -> Process:
        """Starts a program that outlives us, in our cgroup and a session of its own, and records it."""
        files = " ".join(str(cgroup_folder(h, f"{CGROUP}/system") / "cgroup.procs") for h in TRACKED_HIERARCHIES)
        with log.open("ab") as out:
            child = subprocess.Popen(
                ["/bin/sh", "-euc", _JOIN_CGROUP.format(files=files), "sh", *(str(word) for word in argv)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd="/",
            )
        process = Process(role, child.pid, start_time(child.pid) or 0, boot_id())
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as lines:
            lines.write(json.dumps(asdict(process)) + "\n")
        return process

    def forget_all(self) -> None:
        self._file.unlink(missing_ok=True)


def reap(pid: int) -> None:
    """Takes the exit status of a dead child of ours, so that no zombie stays while this process lives."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # another process started it: init takes care


def kill_all(processes: Iterable[Process], timeout_seconds: float = 20) -> None:
    """Kills the given processes and all that is left in our cgroups, and returns when they are gone."""
    known = list(processes)
    for process in known:
        process.kill()

    def all_gone() -> bool:
        for process in known:
            reap(process.pid)
        left = pids_below(CGROUP)
        for pid in left:
            _kill_if_ours(pid)
        return not left and not any(process.is_alive() for process in known)

    wait_until(all_gone, "our processes to end", timeout_seconds)


def _kill_if_ours(pid: int) -> None:
    try:
        pinned = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # Asked again with the pid pinned: it may have ended, and its number gone to another, since we read the list.
        if pid in pids_below(CGROUP):
            signal.pidfd_send_signal(pinned, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(pinned)
