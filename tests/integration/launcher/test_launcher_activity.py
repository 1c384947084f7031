"""R7: a hang before the library speaks shows in what the trainers use and print: real processes, and a real torch that waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from descendants import descendants, kill_all
from everstep_protocol import local
from integration.launcher.launcher_harness import HANG_SECONDS, LIBRARY, Pod
from loopback import address, free_port
from testcluster.rootfs import command_in_rootfs, rootfs_folder

DRIVER = Path(__file__).with_name("activity_driver.py")
SAMPLE_SECONDS = 0.5

SPIN = "while True: pass\n"
SLEEP = "import time\ntime.sleep(1000)\n"
PRINT = "import time\nwhile True:\n    time.sleep(0.2)\n    print('.', end='', flush=True)\n"
CHILD = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}], start_new_session=True)\n"
ORPHAN = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True: pass
    os._exit(0)
time.sleep(1000)
"""
MANY_SHORT = """
import subprocess, sys
while True: subprocess.run([sys.executable, "-c", "import json"])
"""

BUSY = {
    "itself": SPIN,
    "prints": PRINT,
    "a child in a session of its own": CHILD.format(child=SPIN),
    "a child that prints": CHILD.format(child=PRINT),
    "an orphan": ORPHAN,
    "many short ones": MANY_SHORT,
}
IDLE = {"itself": SLEEP, "a child": CHILD.format(child=SLEEP)}


@pytest.mark.parametrize("text", BUSY.values(), ids=BUSY)
def test_who_computes_or_prints_is_not_idle(text: str) -> None:
    with sampled([sys.executable, "-c", text]) as idle_seconds:
        for _ in range(6):  # the interpreter's own start
            next(idle_seconds)
        for _ in range(3):
            first_at_most(idle_seconds, 0.0)


@pytest.mark.parametrize("text", IDLE.values(), ids=IDLE)
def test_who_waits_is_idle_for_longer_and_longer(text: str) -> None:
    with sampled([sys.executable, "-c", text]) as idle_seconds:
        assert next(seconds for seconds in idle_seconds if seconds >= 4 * SAMPLE_SECONDS)


WAITS = """
import os, sys, torch.distributed as dist
if os.environ["RANK"] == "0" and os.fork() == 0:
    os.environ["RANK"] = "1"
dist.init_process_group("gloo", init_method="env://")
"""


@pytest.mark.parametrize("system", ["torch-new", "torch-old"])
@pytest.mark.parametrize("rank", [0, 2], ids=["two of three ranks, the store's among them", "a rank without the store"])
def test_a_torch_that_hangs_in_init_process_group_is_idle(system: str, rank: int) -> None:
    # A port of its own: with ranks of another test beside it, which may use another torch, the world would be whole.
    place = {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": address(1), "MASTER_PORT": str(free_port())}
    environment = {**place, "USE_LIBUV": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": "/lib-everstep"}
    command = command_in_rootfs(
        rootfs_folder(system),
        ["python3", "/driver.py", "2", "python3", "-c", WAITS],
        {DRIVER: "/driver.py", LIBRARY: "/lib-everstep"},
    )
    with reading(command, {"PATH": os.environ["PATH"], **environment}) as idle_seconds:
        assert next(seconds for seconds in idle_seconds if seconds >= 6)


def test_the_sidecar_is_told_and_a_new_one_at_the_next_sample(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", SLEEP))
    assert pod.sidecar.expect(local.Activity).attempt == 1
    pod.sidecar.close()
    pod.sidecar.listen()
    pod.sidecar.accept()
    first, second = pod.sidecar.expect(local.Activity), pod.sidecar.expect(local.Activity)
    assert second.idle_seconds > first.idle_seconds


@contextmanager
def sampled(command: list[str]) -> Iterator[Iterator[float]]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(LIBRARY)}
    driver = [sys.executable, str(DRIVER), str(SAMPLE_SECONDS)]
    with reading([*driver, *command], environment) as idle_seconds:
        yield idle_seconds


@contextmanager
def reading(command: list[str], environment: dict[str, str]) -> Iterator[Iterator[float]]:
    """The driver's lines, as numbers; they end when it hangs."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as driver:
        limit = threading.Timer(2 * HANG_SECONDS, driver.kill)
        limit.start()
        assert driver.stdout is not None
        try:
            yield (float(line) for line in driver.stdout)
        finally:
            limit.cancel()
            end(driver)


def end(driver: subprocess.Popen[bytes]) -> None:
    """By SIGINT, so that it takes along what it started; what runs in a system of its own dies with that. Busy orphans outlive a kill."""
    started = descendants(driver.pid)
    driver.send_signal(signal.SIGINT)
    try:
        driver.wait(5)
    except subprocess.TimeoutExpired:
        started += descendants(driver.pid)
        driver.kill()
        kill_all(started)


def first_at_most(values: Iterator[float], limit: float) -> float:
    return next(value for value in values if value <= limit)
