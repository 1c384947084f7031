"""What trainers print arrives as it was printed."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from collections.abc import Callable

import pytest
from everstep_protocol import local
from integration.launcher.launcher_harness import Pod, below, is_alive, wait_until

GARBAGE = bytes(range(256)) * 8 + b"\r\n\xff\xfe no newline at the end"


def users_stderr(pod: Pod) -> bytes:
    return b"".join(
        line for line in pod.stderr.read_bytes().splitlines(keepends=True) if not line.startswith(b"everstep: ")
    )


def finish(pod: Pod) -> None:
    pod.sidecar.expect(local.Finished)
    pod.sidecar.send(local.Exit("finished"))
    assert pod.wait() == 0


def test_output_of_one_process_is_byte_exact(pod: Pod) -> None:
    text = f"import sys\nsys.stdout.buffer.write({GARBAGE!r})\nsys.stderr.buffer.write({GARBAGE[::-1] + b'x' * 200000!r} + b'\\n')\n"
    pod.run("python3", pod.script("train.py", text))
    finish(pod)
    assert pod.stdout.read_bytes() == GARBAGE
    assert users_stderr(pod) == GARBAGE[::-1] + b"x" * 200000 + b"\n"


def test_lines_of_several_processes_are_told_apart(pod: Pod) -> None:
    text = """
import os, sys
rank = os.environ["RANK"].encode()
out = sys.stdout.buffer
out.write(b"one " + rank + b"\\n" + b"L" * 300000 + b"\\n\\xff\\xfe\\n\\n")
out.flush()
out.write(b"partial")
"""
    pod.run("torchrun", pod.script("train.py", text), sizes=(2,))
    finish(pod)
    lines = pod.stdout.read_bytes().split(b"\n")
    for rank in (0, 1):
        prefix = b"[rank %d] " % rank
        mine = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
        assert mine == [b"one %d" % rank, b"L" * 300000, b"\xff\xfe", b"", b"partial"]
    assert len(lines) == 11
    assert lines[-1] == b""


def test_five_megabytes_of_stderr_go_through_and_the_report_stays_small(pod: Pod) -> None:
    text = (
        "import sys\nfor i in range(5 * 1024): sys.stderr.write('\\x00' * 1015 + f'{i:08d}\\n')\nsys.exit('the end')\n"
    )
    pod.run("python3", pod.script("train.py", text))
    exited = pod.sidecar.expect(local.ProcessExited)
    assert exited.last_lines.endswith("00005119\nthe end\n")
    assert len(exited.last_lines.encode()) <= 2048
    wait_until(lambda: b"the end" in pod.stderr.read_bytes(), "the last line")
    assert len(users_stderr(pod)) == 5 * 1024 * 1024 + len("the end\n")
    assert 0 < pod.log.stat().st_size <= 4096


def test_undecodable_last_lines_are_reported(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", "import os\nos.write(2, b'\\xff\\xfe' * 4000 + b' bad')\nos._exit(9)\n"))
    exited = pod.sidecar.expect(local.ProcessExited)
    assert exited.last_lines.endswith("\ufffd bad")
    assert len(exited.last_lines.encode()) <= 2048


@pytest.mark.parametrize(("open_log", "enough"), [(os.pipe, 50_000), (os.openpty, 3000)], ids=["pipe", "terminal"])
def test_a_stuck_log_does_not_keep_a_stop_from_being_obeyed(
    pod: Pod, open_log: Callable[[], tuple[int, int]], enough: int
) -> None:
    reader, writer = open_log()  # nobody reads
    pod.sidecar.listen()
    pod.launch("python3", pod.script("train.py", "while True: print('x' * 10000, flush=True)"), output=writer)
    os.close(writer)
    pod.sidecar.accept()
    pod.start(1)
    wait_until(lambda: _num_waiting(reader) > enough, "a full pipe")
    (trainer,) = below(pod.pid)
    pod.sidecar.send(local.Stop(1, 0))
    assert pod.sidecar.expect(local.Stopped) == local.Stopped(1)
    assert not is_alive(trainer)
    os.close(reader)


def _num_waiting(handle: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(handle, termios.FIONREAD, b"\0\0\0\0"))[0])


@pytest.mark.parametrize("processes", [1, 2])
def test_output_after_a_closed_log_ends_nothing(pod: Pod, processes: int) -> None:
    pod.run("torchrun", pod.script("train.py", "import os\nos.close(1)\nos.close(2)\n"), sizes=(processes,))
    pod.sidecar.expect(local.Finished)


def test_a_progress_bar_of_several_trainers_is_shown_while_it_is_drawn(pod: Pod) -> None:
    text = """
import os, sys, time
for number in range(10**6):
    sys.stderr.write(f"\\rstep {number}")
    time.sleep(0.01)
"""
    pod.run("torchrun", pod.script("train.py", text), sizes=(2,))
    for rank in (0, 1):
        wait_until(lambda rank=rank: b"[rank %d] step " % rank in pod.stderr.read_bytes(), f"the bar of rank {rank}")
    assert b"\r" not in users_stderr(pod)
