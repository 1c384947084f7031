"""How the launcher itself ends: told by the sidecar, or SIGTERM and the grace."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from everstep_protocol import local, names
from everstep_protocol.shared_memory import PHASES, Page, Progress
from integration.launcher.launcher_harness import Pod, below, is_alive, wait_until

FOREVER = "import time\nprint('up', flush=True)\nwhile True: time.sleep(60)\n"
SAVES_ON_TERM = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True: time.sleep(60)
"""
DEAF = "import signal\nsignal.signal(15, signal.SIG_IGN)\n" + FOREVER


def wait_for_trainer(pod: Pod) -> None:
    wait_until(lambda: b"up\n" in pod.stdout.read_bytes(), "the trainer")


def report_progress(pod: Pod, attempt: int = 1) -> None:
    page = Page(pod.memory / f"{names.PROGRESS_PREFIX}0", Progress)
    page.open(create=True)
    page.write(Progress(attempt, 5, time.monotonic_ns(), 1000, PHASES.index("training"), 0, 0))
    page.close()


def last_word(pod: Pod) -> dict:  # type: ignore[type-arg]
    return json.loads(pod.log.read_text())


def test_r31_the_launcher_stays_until_the_last_commit_is_confirmed(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", "pass"))
    pod.sidecar.expect(local.Finished)
    assert pod.sidecar.is_silent(0.2)
    assert pod.launcher is not None
    assert pod.launcher.poll() is None
    pod.sidecar.send(local.Exit("finished"))
    assert pod.wait() == 0
    assert last_word(pod)["result"] == "finished"
    assert last_word(pod)["attempt"] == 1


def test_told_to_leave_it_takes_the_trainers_along(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", DEAF))
    wait_for_trainer(pod)
    trainers = below(pod.pid)
    pod.sidecar.send(local.Exit("left"))
    assert pod.wait() == 0
    assert last_word(pod)["result"] == "left"
    assert not any(is_alive(pid) for pid in trainers)


def test_of_a_failed_job_trainers_get_a_moment_and_the_last_word_says_why(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", SAVES_ON_TERM))
    wait_for_trainer(pod)
    pod.sidecar.send(local.Exit("failed", grace_seconds=60.0, why="DeadlineExceeded: it took too long"))
    assert pod.wait() == 0
    assert pod.stdout.read_bytes() == b"up\nsaved\n"
    word = last_word(pod)
    assert (word["attempt"], word["result"], word["lastLines"]) == (1, "failed", "DeadlineExceeded: it took too long")


def test_sigterm_reaches_a_script_without_the_library_at_once(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", SAVES_ON_TERM))
    wait_for_trainer(pod)
    os.kill(pod.pid, signal.SIGTERM)
    assert pod.sidecar.expect(local.Terminating).seconds == 30
    os.kill(pod.pid, signal.SIGTERM)
    assert pod.wait() == 0  # long before the grace: nothing is left to wait for
    assert pod.sidecar.receive() is None  # neither a crash nor a success
    assert pod.stdout.read_bytes() == b"up\nsaved\n"
    assert last_word(pod)["result"] == "left"


def test_sigterm_leaves_a_script_with_the_library_to_the_sidecar(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", SAVES_ON_TERM))
    wait_for_trainer(pod)
    report_progress(pod)
    os.kill(pod.pid, signal.SIGTERM)
    pod.sidecar.expect(local.Terminating)
    assert pod.sidecar.is_silent(0.3)
    assert len(below(pod.pid)) == 1
    pod.sidecar.send(local.Stop(1, 0))
    pod.sidecar.expect(local.Stopped)
    assert pod.sidecar.is_silent(2.5)  # something may still have to be brought to storage
    pod.sidecar.send(local.Exit("left"))
    assert pod.wait() == 0
    assert pod.stdout.read_bytes() == b"up\n"


@pytest.mark.parametrize("library", [True, False])
def test_sigterm_ends_everything_before_the_kubelet_does(pod: Pod, library: bool) -> None:
    pod.sidecar.listen()
    pod.launch("python3", pod.script("train.py", DEAF), grace=2)
    pod.sidecar.accept()
    pod.start(1)
    wait_for_trainer(pod)
    if library:
        report_progress(pod)
    trainers = below(pod.pid)
    os.kill(pod.pid, signal.SIGTERM)
    assert pod.wait() == 0
    assert last_word(pod)["result"] == "left"
    assert not any(is_alive(pid) for pid in trainers)


def test_sigterm_without_a_sidecar(pod: Pod) -> None:
    pod.launch("python3", "train.py", grace=2)
    wait_until(lambda: _catches_sigterm(pod.pid), "the launcher's handler")
    os.kill(pod.pid, signal.SIGTERM)
    assert pod.wait() == 0


def test_a_crash_before_the_end_is_the_last_word(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", "import sys\nsys.exit('broken')"))
    pod.sidecar.expect(local.ProcessExited)
    os.kill(pod.pid, signal.SIGTERM)
    assert pod.wait() == 0
    word = last_word(pod)
    assert (word["result"], word["attempt"], word["exitCode"], word["lastLines"]) == ("failed", 1, 1, "broken\n")


CRASHES_ONCE = """
import os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit("broken")
print("up", flush=True)
time.sleep(600)
"""


def test_a_new_attempt_has_no_last_word_yet(pod: Pod) -> None:
    """Killed now, it would else be taken for the failure of the attempt before."""
    pod.run("python3", pod.script("train.py", CRASHES_ONCE))
    pod.sidecar.expect(local.ProcessExited)
    wait_until(lambda: b"failed" in pod.log.read_bytes(), "the last word")
    pod.sidecar.send(local.Stop(1, 0))
    pod.sidecar.expect(local.Stopped)
    pod.start(2)
    wait_for_trainer(pod)
    assert pod.log.read_bytes() == b""


def test_a_new_sidecar_hears_that_the_pod_is_leaving(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", FOREVER))
    wait_for_trainer(pod)
    report_progress(pod)
    os.kill(pod.pid, signal.SIGTERM)
    pod.sidecar.expect(local.Terminating)
    pod.sidecar.close()
    pod.sidecar.listen()
    pod.sidecar.accept()
    assert 0 < pod.sidecar.expect(local.Terminating).seconds < 30


def _catches_sigterm(pid: int) -> bool:
    with open(f"/proc/{pid}/status") as file:  # noqa: PTH123
        caught = next(line for line in file if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
