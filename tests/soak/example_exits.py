"""Runs the example under torchrun again and again on the oldest torch, all cores kept busy: each run must end with exit code 0.

What this looks for shows once in ten runs or less: a process that trained and saved well, and is aborted while it ends, because
a thread of a library outlived the interpreter. `make soak-exits`, `RUNS=40`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from testcluster.rootfs import command_in_rootfs, rootfs_folder

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONPATH": "/src/trainer_lib",
    "OMP_NUM_THREADS": "1",
}
INSIDE = """
import os, shutil, subprocess, sys
runs, ranks = int(sys.argv[1]), 2
busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
failed = 0
try:
    for number in range(1, runs + 1):
        shutil.rmtree("/tmp/checkpoints", ignore_errors=True)
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
             "/src/examples/gpt/train.py", "--steps", "2", "--global-batch", "7"],
            env={**os.environ, "EVERSTEP_CHECKPOINT_DIR": "/tmp/checkpoints"}, capture_output=True, text=True, timeout=600,
        )
        failed += done.returncode != 0
        print(f"run {number} of {runs}: exit code {done.returncode}", flush=True)
        if done.returncode:
            print(done.stderr[-3000:], flush=True)
finally:
    for process in busy:
        process.kill()
        process.wait()
print(f"{runs - failed} passed, {failed} failed")
sys.exit(failed > 0)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--system", choices=("torch-old", "torch-new"), default="torch-old")
    options = parser.parse_args()
    began = time.monotonic()
    argv = ["python3", "-c", INSIDE, str(options.runs)]
    command = command_in_rootfs(rootfs_folder(options.system), argv, {ROOT: "/src"})
    done = subprocess.run(command, env=ENVIRONMENT)
    print(f"{options.runs} runs on {options.system}: {time.monotonic() - began:.0f} s")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
