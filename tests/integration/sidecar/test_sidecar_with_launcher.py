"""Sidecars and the real, injected launcher: a script that never imports everstep, in two pods."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from descendants import descendants, kill_all
from everstep_protocol import names
from everstep_protocol.messages import Ack, ExitRequest
from everstep_protocol.plan import Plan
from everstep_sidecar.inject import inject
from integration.sidecar.sidecar_harness import HANG_SECONDS, Pod, Trainer, World, until

SCRIPT = """
import os, pathlib, sys, time
rank, attempt = os.environ["RANK"], os.environ["EVERSTEP_PLAN_FILE"]
folder = pathlib.Path(sys.argv[1])
with open(folder / f"started-{rank}", "a") as file:
    print(os.environ["WORLD_SIZE"], os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], file=file)
while not (folder / "end").exists():
    if (folder / f"crash-{rank}").exists():
        (folder / f"crash-{rank}").unlink()
        sys.exit("the data set is empty")
    if (folder / f"segv-{rank}").exists():
        os.kill(os.getpid(), 11)
    time.sleep(0.01)
"""


class RealLaunchers:
    """One launcher process a pod, as the trainer container starts it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        inject(folder / "bin")
        (folder / "train.py").write_text(SCRIPT)

    def start(self, pod: Pod) -> None:
        command = [sys.executable, str(self.folder / "train.py"), str(self.folder)]
        environment = {
            "PATH": os.environ["PATH"],
            names.ENV_MEMORY: str(pod.memory),
            names.ENV_PROCESSES: "1",
            names.ENV_GRACE_SECONDS: "30",
            "TERMINATION_LOG": str(pod.base / "termination"),
        }
        with (pod.base / "launcher.log").open("wb") as log:
            launch = [sys.executable, str(self.folder / "bin" / "everstep"), "launch", "--", *command]
            self.processes.append(subprocess.Popen(launch, env=environment, stdout=log, stderr=log))

    def close(self) -> None:
        """Launchers and their trainers, which outlive a killed launcher: it is no PID 1 here."""
        for process in self.processes:
            trainers = descendants(process.pid)
            process.kill()
            process.wait(HANG_SECONDS)
            kill_all(trainers)


@pytest.fixture
def launchers(tmp_path: Path) -> Iterator[RealLaunchers]:
    found = RealLaunchers(tmp_path)
    try:
        yield found
    finally:
        found.close()


def _begin(world: World, attempt: int) -> Plan:
    answer = world.prepare(world.pods[0], attempt)
    assert answer.outcome == "ready", answer
    one = world.plan(attempt, world.pods, answer.resume)
    for pod in world.pods:
        pod.publish(one)
    return one


def _starts(folder: Path) -> list[int]:
    files = [folder / f"started-{rank}" for rank in range(2)]
    return [len(file.read_text().splitlines()) if file.exists() else 0 for file in files]


def test_start_crash_start_again_finish(make_world, launchers):
    world = make_world(2, launchers=False)
    for pod in world.pods:
        launchers.start(pod)
    _begin(world, 1)
    until(lambda: _starts(launchers.folder) == [1, 1], "both ranks run")
    (launchers.folder / "crash-1").touch()
    over = until(lambda: world.pods[0].status().over, "over")
    assert (over.cause, over.rank) == ("crash", 1)
    assert over.message == "rank 1 (pod w1 on node-1) exited with code 1"
    assert over.details == "the data set is empty"
    _begin(world, 2)
    until(lambda: _starts(launchers.folder) == [2, 2], "both ranks run again")
    (launchers.folder / "end").touch()
    assert [process.wait(HANG_SECONDS) for process in launchers.processes] == [0, 0]
    assert world.pods[0].status().finished
    words = [json.loads((pod.base / "termination").read_text()) for pod in world.pods]
    assert [(word["attempt"], word["result"]) for word in words] == [(2, "finished")] * 2
    assert len(set((launchers.folder / "started-0").read_text().split())) > 3  # another port each time


def test_pods_of_a_failed_job_end_by_themselves_with_their_output_and_say_why(make_world, launchers):
    world = make_world(2, launchers=False)
    for pod in world.pods:
        launchers.start(pod)
    _begin(world, 1)
    until(lambda: _starts(launchers.folder) == [1, 1], "both ranks run")
    (launchers.folder / "crash-1").touch()
    until(lambda: world.pods[0].status().over, "over")
    for pod in world.pods:
        assert pod.ask_ok("/v1/exit", ExitRequest(1, "CrashBudgetExceeded: one crash"), Ack).highest == 1
    assert [process.wait(HANG_SECONDS) for process in launchers.processes] == [0, 0]
    words = [json.loads((pod.base / "termination").read_text()) for pod in world.pods]
    assert [(word["attempt"], word["result"]) for word in words] == [(1, "failed")] * 2
    assert [word["lastLines"] for word in words] == ["CrashBudgetExceeded: one crash", "the data set is empty\n"]
    logs = [(pod.base / "launcher.log").read_text() for pod in world.pods]
    assert all("the job has failed, and this worker ends: CrashBudgetExceeded: one crash" in log for log in logs)
    assert "the data set is empty" in logs[1]


def test_r31_a_trainer_that_is_killed_after_the_last_commit_has_finished(make_world, launchers):
    world = make_world(2, launchers=False)
    for pod in world.pods:
        launchers.start(pod)
    one = _begin(world, 1)
    until(lambda: _starts(launchers.folder) == [1, 1], "both ranks run")
    trainers = [Trainer(pod.memory, rank, 0, one) for rank, pod in enumerate(world.pods)]
    for trainer in trainers:
        trainer.report(60, "saving")
    places = [trainer.snapshot(60) for trainer in trainers]
    until(lambda: not any(place.exists() for place in places), "the last save is committed")
    for trainer in trainers:
        trainer.report(60, "finished")
    (launchers.folder / "segv-0").touch()
    log = world.pods[0].base / "launcher.log"
    until(lambda: "rank 0 was killed by signal 11 (SIGSEGV) after its last step" in log.read_text(), "its death")
    (launchers.folder / "end").touch()
    assert [process.wait(HANG_SECONDS) for process in launchers.processes] == [0, 0]
    status = world.pods[0].status()
    assert (status.finished, status.over, status.attempt) == (True, None, 1)
    assert [info.step for info in status.checkpoints] == [60]
    assert _starts(launchers.folder) == [1, 1]
