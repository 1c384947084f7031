"""One run writes a folder: the lock, held by real processes."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from everstep.errors import EverstepError
from everstep.folder_lock import FolderLock
from everstep_protocol import storage

LIBRARY = Path(__file__).parents[3] / "trainer_lib"
HOLD = """
import os, signal, sys
from pathlib import Path
from everstep.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.acquire()
if sys.argv[2] == "fork" and os.fork() == 0:
    print("held", os.getpid(), flush=True)
    for line in sys.stdin:
        print("alive", flush=True)
    os._exit(0)
if sys.argv[2] == "alone":
    print("held", os.getpid(), flush=True)
while True:
    signal.pause()
"""


class Run:
    """Another process that holds the lock; the one that says so is its forked child where `how` is `fork`."""

    def __init__(self, folder: Path, how: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder), how],
            env={"PYTHONPATH": str(LIBRARY)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        self.told, self.ask = self.process.stdout, self.process.stdin
        assert self.told.readline().startswith("held")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self.ask.close()
        self.told.read()  # until a forked child has ended, too
        self.told.close()


@pytest.fixture
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path, request.param)
    yield run
    run.close()


@pytest.mark.parametrize("other", ["alone"], indirect=True)
def test_a_second_run_is_refused_and_told_whose_folder_it_is(other: Run, tmp_path: Path) -> None:
    with pytest.raises(EverstepError) as refused:
        FolderLock(tmp_path).acquire()
    assert re.fullmatch(
        rf"{re.escape(str(tmp_path))} is in use by another run \(process {other.process.pid} on {re.escape(os.uname().nodename)}, "
        r"since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d\): end that run, or choose another directory= for this one "
        r"\(or EVERSTEP_CHECKPOINT_DIR\)",
        str(refused.value),
    )


@pytest.mark.parametrize("other", ["alone"], indirect=True)
def test_a_run_that_is_killed_holds_nothing(other: Run, tmp_path: Path) -> None:
    other.kill()
    lock = FolderLock(tmp_path)
    lock.acquire()
    lock.release()


@pytest.mark.parametrize("other", ["fork"], indirect=True)
def test_a_child_that_outlives_its_parent_holds_nothing(other: Run, tmp_path: Path) -> None:
    """A data loader's worker, which shares all that was open when it was forked."""
    lock = FolderLock(tmp_path)
    with pytest.raises(EverstepError):
        lock.acquire()
    other.kill()
    lock.acquire()
    lock.release()
    other.ask.write("?\n")
    other.ask.flush()
    assert other.told.readline() == "alive\n"


def test_a_forked_child_that_gives_the_lock_back_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire()
    pid = os.fork()
    if pid == 0:
        lock.release()
        os._exit(0)
    os.waitpid(pid, 0)
    with pytest.raises(EverstepError, match="another loop of this very process"):
        FolderLock(tmp_path).acquire()
    lock.release()
    FolderLock(tmp_path).acquire()


def test_in_one_process_one_after_the_other(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    first.acquire()
    first.acquire()
    with pytest.raises(EverstepError):
        second.acquire()
    second.release()
    with pytest.raises(EverstepError):
        second.acquire()
    first.release()
    second.acquire()
    second.release()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("text", ["", "{", '{"pid": 1}', '{"pid": 1, "host": "a\\n", "since": "b"}', "\x00" * 9000])
def test_what_the_file_says_decides_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / storage.LOCK).write_text(text)
    first = FolderLock(tmp_path)
    first.acquire()
    (tmp_path / storage.LOCK).write_text(text)
    with pytest.raises(EverstepError, match=r"in use by another run \(which one it does not say\)"):
        FolderLock(tmp_path).acquire()
    first.release()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    def flock(handle: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    before = len(list(Path("/proc/self/fd").iterdir()))
    lock = FolderLock(tmp_path)
    lock.acquire()
    lock.release()
    lock.acquire()
    FolderLock(tmp_path).acquire()
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2, told
    assert f"{tmp_path}: its file system has no locks ({os.strerror(number)})" in told[0]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_another_failure_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(handle: int, how: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="Input/output"):
        FolderLock(tmp_path).acquire()
