"""Runs one command as the launcher does, and prints a line a sample: for how long it was idle. `activity_driver.py SECONDS COMMAND...`."""

import os
import signal
import sys

from everstep.launcher import processes
from everstep.launcher.activity import ActivityWatch
from everstep.launcher.loop import Loop
from everstep.launcher.output import Console
from everstep.launcher.processes import Launch
from everstep.launcher.trainers import Trainers


def main() -> int:
    """Until the command ends; its output goes to standard error."""
    processes.become_subreaper()
    loop = Loop()
    console = Console(loop)
    console.stdout = console.stderr
    watch = ActivityWatch(
        loop, lambda activity: print(activity.idle_seconds, flush=True), sample_seconds=float(sys.argv[1])
    )
    trainers = Trainers(
        loop,
        console,
        explain_finish=lambda failure: None,
        on_failed=lambda failure: None,
        on_gone=lambda: loop.stop(0),
    )

    def reap(number: int) -> None:
        for pid, status in processes.reap(trainers.pids):
            trainers.reaped(pid, status)

    loop.on_signals((signal.SIGCHLD,), reap)
    trainers.start([Launch(0, tuple(sys.argv[2:]), dict(os.environ))], prefixed=False)
    watch.begin(1, lambda: trainers.num_printed)
    try:
        return loop.run()
    finally:
        processes.kill_all(processes.descendants())


if __name__ == "__main__":
    sys.exit(main())
