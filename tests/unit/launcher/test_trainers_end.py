"""The end of an attempt's processes, where their death and the order to stop come together."""

from __future__ import annotations

import os
import sys

import pytest
from everstep.launcher.loop import Loop
from everstep.launcher.output import Console
from everstep.launcher.processes import Launch
from everstep.launcher.trainers import Trainers


@pytest.mark.parametrize("grace_seconds", [0.0, 5.0])
def test_r7_stop_is_confirmed_although_the_last_process_has_just_died_by_itself(grace_seconds: float) -> None:
    """Within the window in which the cause is judged nothing is left to reap: the order itself must settle it."""
    loop, told = Loop(), []
    trainers = Trainers(
        loop,
        Console(loop),
        explain_finish=lambda failure: None,
        on_failed=lambda failure: told.append("failed"),
        on_gone=lambda: told.append("gone"),
        adopts_orphans=False,
    )
    trainers.start([Launch(0, (sys.executable, "-c", "raise SystemExit(1)"), dict(os.environ))], prefixed=False)
    (pid,) = trainers.pids
    _, status = os.waitpid(pid, 0)
    trainers.reaped(pid, status)
    assert told == []
    trainers.end(grace_seconds)
    assert told == ["gone"]
