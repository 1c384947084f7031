"""What is idle, and a sample that neither blocks nor raises."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from everstep.launcher import processes
from everstep.launcher.activity import IDLE_CORE, ActivityWatch, is_busy
from everstep.launcher.loop import Loop
from everstep.launcher.processes import CpuSeconds
from everstep_protocol import local
from hang_limit import hang_seconds

ONE, OTHER = (7, 100), (8, 100)
LEAST = IDLE_CORE * 5


@pytest.mark.parametrize(
    ("before", "after", "busy"),
    [
        ({ONE: 10.0}, {ONE: 10.0 + LEAST / 2}, False),
        ({ONE: 10.0}, {ONE: 10.1 + LEAST}, True),
        ({ONE: 10.0, OTHER: 3.0}, {ONE: 10.0 + LEAST * 0.6, OTHER: 3.0 + LEAST * 0.6}, False),  # each waits
        ({ONE: 10.0}, {(7, 200): 1.0}, True),  # a new process under an old number
        ({ONE: 10.0, OTHER: 3.0}, {ONE: 10.0}, False),  # one that ended hides nobody and shows nobody
        ({ONE: 10.0, OTHER: 3.0}, {ONE: 10.1 + LEAST}, True),
        ({}, {}, False),
        (None, {}, True),  # not known: nobody is called idle
        ({}, None, True),
    ],
)
def test_one_process_that_works_is_enough(before: CpuSeconds | None, after: CpuSeconds | None, busy: bool) -> None:
    assert is_busy(before, after, 5.0) is busy


def test_processes_that_end_while_they_are_looked_at_disturb_nothing() -> None:
    with fork_storm():
        for _ in range(300):
            assert processes.read_cpu_seconds() is not None
            processes.describe_descendants()


@pytest.mark.parametrize("text", [b"", b"1 (python3", b"1 (python3) S", b"x y z"])
def test_a_process_that_is_told_in_an_unknown_way_disturbs_nothing(
    text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, odd = Path.read_bytes, Path("/proc/1/stat")
    monkeypatch.setattr(Path, "read_bytes", lambda path: text if path == odd else real(path))
    seconds = processes.read_cpu_seconds()
    assert seconds is not None
    assert os.getpid() in {pid for pid, _ in seconds}


def test_what_ended_children_used_is_not_forgotten() -> None:
    before = used_by(os.getpid())
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert used_by(os.getpid()) >= before + 0.4
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert used_by(parent.pid) >= 0.5
        parent.kill()


def used_by(pid: int) -> float:
    return next(seconds for (found, _), seconds in (processes.read_cpu_seconds() or {}).items() if found == pid)


@pytest.mark.parametrize("name", ["plain", "with (brackets", ") S 1 2 3"])
def test_a_process_may_be_called_anything(name: str) -> None:
    code = f"from pathlib import Path\nPath('/proc/self/comm').write_text({name!r})\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in processes.descendants()
        end = time.monotonic() + hang_seconds(20.0)
        while f"{child.pid} ({name}, state S)" not in processes.describe_descendants():  # it may not wait for input yet
            assert time.monotonic() < end, processes.describe_descendants()
            time.sleep(0.01)
        child.kill()


def test_nothing_is_told_of_an_attempt_that_is_over() -> None:
    loop, told = Loop(), []
    watch = ActivityWatch(loop, told.append, sample_seconds=0.01)
    watch.begin(1, int)
    watch.end()
    watch.begin(2, int)
    loop.call_later(0.1, watch.end)
    loop.call_later(0.2, lambda: (told.append(local.Finished(2)), loop.call_later(0.1, lambda: loop.stop(0))))
    loop.run()
    assert {activity.attempt for activity in told[:-1]} == {2}
    assert told[-1] == local.Finished(2), "after the end nothing more is told"


@contextmanager
def fork_storm() -> Iterator[None]:
    """Within it, processes of this one start and end all the time."""
    done = threading.Event()

    def storm() -> None:
        while not done.is_set():
            subprocess.run(["/bin/sh", "-c", "/bin/true & /bin/true & wait"], check=True)

    thread = threading.Thread(target=storm)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
