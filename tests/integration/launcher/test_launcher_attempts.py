"""Start, stop, failure, finish: the launcher and the socket, with real processes."""

from __future__ import annotations

import json
import os
import signal

import pytest
from everstep_protocol import local, names
from everstep_protocol.plan import parse_plan
from integration.launcher.launcher_harness import Pod, below, is_alive, read_when_there, wait_until

FOREVER = "import time\nprint('up', flush=True)\nwhile True: time.sleep(60)\n"

DUMP = """
import json, os, sys
name = f"env-{os.environ['TORCHELASTIC_RESTART_COUNT']}-{os.environ['RANK']}"
with open(name + ".tmp", "w") as file:
    file.write(json.dumps({"env": dict(os.environ), "argv": sys.argv, "python": sys.executable, "unbuffered": sys.stdout.write_through}) + "\\n")
os.rename(name + ".tmp", name)
"""


def dumped(pod: Pod, rank: int, restarts: int = 0) -> dict:  # type: ignore[type-arg]
    return json.loads(read_when_there(pod.folder / f"env-{restarts}-{rank}"))


def test_ranks_get_the_environment_that_torchrun_scripts_read(pod: Pod) -> None:
    script = pod.script("train.py", DUMP)
    pod.run("torchrun", "--nproc-per-node=2", "--standalone", script, "--lr", "1", sizes=(1, 2), index=1)
    assert pod.sidecar.expect(local.Finished) == local.Finished(1)
    for local_rank in (0, 1):
        seen = dumped(pod, 1 + local_rank)
        environment = seen["env"]
        expected = {
            "RANK": str(1 + local_rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": "3",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "1",
            "NODE_RANK": "1",
            "GROUP_WORLD_SIZE": "2",
            "ROLE_RANK": str(1 + local_rank),
            "ROLE_WORLD_SIZE": "3",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "job-uid",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "PYTHONUNBUFFERED": "1",
            names.ENV_MEMORY: str(pod.memory),
            names.ENV_PLAN_FILE: str(pod.memory / names.PLAN_FILE_NAME),
        }
        assert {name: environment.get(name) for name in expected} == expected
        assert names.ENV_RESUME_DIR not in environment
        assert int(environment["OMP_NUM_THREADS"]) >= 1
        assert environment["PYTHONPATH"].startswith(str((pod.bin / "lib").resolve()))
        assert seen["argv"] == [str(script), "--lr", "1"]
    assert parse_plan((pod.memory / names.PLAN_FILE_NAME).read_text()).attempt == 1


def test_the_users_tuning_wins_and_the_resume_directory_is_told(pod: Pod) -> None:
    pod.sidecar.listen()
    pod.launch("python3", pod.script("train.py", DUMP), OMP_NUM_THREADS="7", PYTHONPATH="/app", PYTHONUNBUFFERED="x")
    pod.sidecar.accept()
    pod.start(3, resume_dir="/everstep/storage/gpt/step_40")
    environment = dumped(pod, 0, restarts=2)["env"]
    assert environment["OMP_NUM_THREADS"] == "7"
    assert environment["PYTHONPATH"].endswith(":/app")
    assert environment["PYTHONUNBUFFERED"] == "x"
    assert environment[names.ENV_RESUME_DIR] == "/everstep/storage/gpt/step_40"


def test_restart_with_a_new_attempt(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", FOREVER))
    wait_until(lambda: b"up\n" in pod.stdout.read_bytes(), "the first attempt")
    first = below(pod.pid)
    pod.sidecar.send(local.Stop(1, 0))
    assert pod.sidecar.expect(local.Stopped) == local.Stopped(1)
    assert not any(is_alive(pid) for pid in first)
    pod.start(2)
    wait_until(lambda: pod.stdout.read_bytes().count(b"up") == 2, "the second attempt")
    assert len(below(pod.pid)) == 1


def test_r7_an_attempt_starts_once(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", "print('ran', flush=True)"))
    pod.sidecar.expect(local.Finished)
    pod.start(1)
    wait_until(lambda: "everstep: attempt 1 is not started again" in pod.own_lines(), "the refusal")
    pod.sidecar.send(local.Stop(5, 0))
    assert pod.sidecar.expect(local.Stopped) == local.Stopped(5)
    pod.start(4)  # came late: 5 was stopped already
    wait_until(lambda: "everstep: attempt 4 is not started again" in pod.own_lines(), "the refusal")
    pod.start(6)
    assert pod.sidecar.expect(local.Finished) == local.Finished(6)
    assert pod.stdout.read_bytes() == b"ran\n" * 2


def test_stop_is_answered_when_nothing_runs(pod: Pod) -> None:
    pod.sidecar.listen()
    pod.launch("python3", "train.py")
    hello = pod.sidecar.accept()
    assert (hello.processes, hello.running) == (1, 0)
    pod.sidecar.send(local.Stop(0, 0))
    assert pod.sidecar.expect(local.Stopped) == local.Stopped(0)


def test_an_older_stop_leaves_the_newer_attempt_alone(pod: Pod) -> None:
    pod.sidecar.listen()
    pod.launch("python3", pod.script("train.py", FOREVER))
    pod.sidecar.accept()
    pod.start(4)
    wait_until(lambda: b"up\n" in pod.stdout.read_bytes(), "the attempt")
    pod.sidecar.send(local.Stop(3, 0))
    assert pod.sidecar.expect(local.Stopped) == local.Stopped(3)
    assert len(below(pod.pid)) == 1


def test_a_port_is_chosen_anew_each_time(pod: Pod) -> None:
    pod.sidecar.listen()
    pod.launch("python3", "train.py")
    pod.sidecar.accept()
    ports = set()
    for attempt in (1, 2, 3):
        pod.sidecar.send(local.ChoosePort(attempt))
        chosen = pod.sidecar.expect(local.PortChosen)
        assert chosen.attempt == attempt
        ports.add(chosen.port)
    assert len(ports) == 3


DEAF = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True: time.sleep(60)
"""


def test_a_deaf_trainer_is_killed_after_the_bound(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", DEAF))
    wait_until(lambda: b"up\n" in pod.stdout.read_bytes(), "the trainer")
    (trainer,) = below(pod.pid)
    pod.sidecar.send(local.Stop(1, 0.5))
    assert pod.sidecar.expect(local.Stopped) == local.Stopped(1)
    assert not is_alive(trainer)


SAVES = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(0)))
signal.signal(signal.SIGUSR1, lambda *_: print("usr1", flush=True))
print("up", flush=True)
while True: time.sleep(60)
"""


def test_a_planned_stop_lets_the_trainer_end_by_itself(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", SAVES))
    wait_until(lambda: b"up\n" in pod.stdout.read_bytes(), "the trainer")
    pod.sidecar.send(local.Stop(1, 60))
    assert pod.sidecar.expect(local.Stopped) == local.Stopped(1)
    assert pod.stdout.read_bytes() == b"up\nsaved\n"


FAMILY = """
import os, subprocess, sys, time
keep = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
same_group = subprocess.Popen(keep)
own_session = subprocess.Popen(keep, start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
with open("family.tmp", "w") as file:
    file.write(f"{same_group.pid} {own_session.pid}\\n")
os.rename("family.tmp", "family")
END
"""


@pytest.mark.parametrize(
    "end",
    ["time.sleep(600)", "os._exit(0)", "os._exit(3)", "os.kill(os.getpid(), 9)"],
    ids=["stopped", "0", "3", "KILL"],
)
def test_nothing_that_a_trainer_started_survives_it(pod: Pod, end: str) -> None:
    pod.run("python3", pod.script("train.py", FAMILY.replace("END", end)))
    family = [int(pid) for pid in read_when_there(pod.folder / "family").split()]
    if "sleep" in end:
        pod.sidecar.send(local.Stop(1, 0.2))
        pod.sidecar.expect(local.Stopped)
    elif "(0)" in end:
        pod.sidecar.expect(local.Finished)
    else:
        pod.sidecar.expect(local.ProcessExited)
        pod.sidecar.send(local.Stop(1, 0))
        pod.sidecar.expect(local.Stopped)
    assert below(pod.pid) == []  # no zombie either
    assert not any(is_alive(pid) for pid in family)


LOOKS_FOR_FAMILY = """
import os, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    print("left:", [pid for pid in open("family").read().split() if os.path.exists("/proc/" + pid)], flush=True)
    time.sleep(600)
"""


def test_r7_the_next_attempt_begins_when_nothing_of_the_older_one_is_left(pod: Pod) -> None:
    """Also where nobody ordered a stop before: its processes may hold devices, ports and files."""
    pod.run("python3", pod.script("train.py", LOOKS_FOR_FAMILY + FAMILY.replace("END", "time.sleep(600)")))
    read_when_there(pod.folder / "family")
    pod.start(2)
    wait_until(lambda: pod.stdout.read_bytes().endswith(b"\n"), "the second attempt")
    assert pod.stdout.read_bytes() == b"left: []\n"


def test_a_crash_is_reported_with_its_last_lines_and_ends_the_others(pod: Pod) -> None:
    text = "import os, sys, time\nif os.environ['RANK'] == '3': sys.exit('out of luck')\ntime.sleep(600)\n"
    pod.run("torchrun", pod.script("train.py", text), sizes=(2, 2), index=1)
    exited = pod.sidecar.expect(local.ProcessExited)
    assert exited == local.ProcessExited(1, 3, 1, None, False, False, "out of luck\n")
    wait_until(lambda: not below(pod.pid), "the other rank's end")
    assert json.loads(pod.log.read_text())["result"] == "failed"


PEER_FIRST = """
import os, sys, time
def publish():
    with open("pid.tmp", "w") as file:
        file.write(str(os.getpid()))
    os.rename("pid.tmp", "pid")
rank = os.environ["RANK"]
if rank == "0":
    time.sleep(600)
if rank == "1":
    sys.stderr.write("RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:31\\n")
    publish()
    sys.exit(1)
while not os.path.exists("pid") or os.path.exists("/proc/" + open("pid").read()):
    time.sleep(0.001)
os.kill(os.getpid(), 9)
"""


def test_r32_the_first_cause_is_not_the_peer_that_was_seen_first(pod: Pod) -> None:
    pod.run("torchrun", pod.script("train.py", PEER_FIRST), sizes=(3,))
    exited = pod.sidecar.expect(local.ProcessExited)
    assert (exited.rank, exited.signal, exited.exit_code, exited.peer_lost) == (2, 9, None, False)


def test_r32_a_lost_peer_is_told_from_a_crash(pod: Pod) -> None:
    text = "import sys\nsys.exit('RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:3')\n"
    pod.run("python3", pod.script("train.py", text))
    exited = pod.sidecar.expect(local.ProcessExited)
    assert (exited.exit_code, exited.peer_lost) == (1, True)


def test_a_program_that_cannot_start_is_reported(pod: Pod) -> None:
    script = pod.script("train", "", shebang="/no/such/interpreter")
    pod.run(script)
    exited = pod.sidecar.expect(local.ProcessExited)
    assert exited.exit_code == 127
    assert "cannot start" in exited.last_lines
    pod.sidecar.send(local.Stop(1, 0))
    pod.sidecar.expect(local.Stopped)


def test_the_launcher_reconnects_and_training_goes_on(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", FOREVER))
    wait_until(lambda: b"up\n" in pod.stdout.read_bytes(), "the trainer")
    trainers = below(pod.pid)
    pod.sidecar.close()
    pod.sidecar.listen()
    hello = pod.sidecar.accept()
    assert hello.running == 1
    assert below(pod.pid) == trainers
    pod.sidecar.send(local.Stop(1, 0))
    assert pod.sidecar.expect(local.Stopped) == local.Stopped(1)


def test_what_happened_while_the_sidecar_was_away_is_told_later(pod: Pod) -> None:
    go = pod.folder / "go"
    text = f"import os, time, sys\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nsys.exit(5)\n"
    pod.run("python3", pod.script("train.py", text))
    pod.sidecar.close()
    go.touch()
    wait_until(lambda: any("exit code 5" in line for line in pod.own_lines()), "the launcher's line")
    pod.sidecar.listen()
    assert pod.sidecar.accept().running == 0
    assert pod.sidecar.expect(local.ProcessExited).exit_code == 5


def test_signals_are_passed_on(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", SAVES))
    wait_until(lambda: b"up\n" in pod.stdout.read_bytes(), "the trainer")
    os.kill(pod.pid, signal.SIGUSR1)
    wait_until(lambda: b"usr1" in pod.stdout.read_bytes(), "the signal")


def test_children_get_default_signals_and_none_of_the_launchers_files(pod: Pod) -> None:
    # grep's own view: a Python would ignore SIGPIPE again
    pod.run("/bin/sh", "-c", "grep -E 'Sig(Ign|Blk)' /proc/self/status; exec ls /proc/self/fd")
    pod.sidecar.expect(local.Finished)
    words = pod.stdout.read_text().split()
    ordinary = (1 << 31) - 1
    assert [int(words[i], 16) & ordinary for i in (1, 3)] == [0, 0]
    assert words[4:] == ["0", "1", "2", "3"]  # 3: ls reads the folder itself
