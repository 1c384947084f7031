"""R31: trainers that die after their last step is saved, as the launcher sees it: real processes, the library's own page."""

from __future__ import annotations

import json
import os
import signal

import pytest
from everstep_protocol import local
from integration.launcher.launcher_harness import Pod, below, wait_until

BEGIN = """
import json, os, pathlib, sys, time
from everstep.progress import Reporter
plan = json.loads(pathlib.Path(os.environ["EVERSTEP_PLAN_FILE"]).read_text())
rank, memory = int(os.environ["RANK"]), pathlib.Path(os.environ["EVERSTEP_MEMORY"])
reporter = Reporter(memory, local_rank=int(os.environ["LOCAL_RANK"]), attempt=plan["attempt"])
reporter.open()
reporter.finish_step(60, time.monotonic_ns(), 0, 0)
def until(name):
    while not os.path.exists(name): time.sleep(0.01)
"""
FINISHED = BEGIN + "reporter.enter('finished')\n"
LOSES_ITS_PEER = "sys.exit('gloo/transport/tcp/pair.cc:534 Connection closed by peer [10.0.0.1]:3')\n"
KILLED = "os.kill(os.getpid(), 11)\n"
HAS_FINISHED = "after its last step was saved: it has finished"


def said(pod: Pod, sentence: str) -> bool:
    return any(sentence in line for line in pod.own_lines())


def last_word(pod: Pod) -> dict:  # type: ignore[type-arg]
    return json.loads(pod.log.read_text())


@pytest.mark.parametrize(
    ("death", "sentence"),
    [
        ("os.kill(os.getpid(), 11)\n", "rank 0 was killed by signal 11 (SIGSEGV)"),
        ("os.kill(os.getpid(), 9)\n", "rank 0 was killed by signal 9 (SIGKILL)"),
        ("os.abort()\n", "rank 0 was killed by signal 6 (SIGABRT)"),
        (LOSES_ITS_PEER, "rank 0 lost its connection to a peer"),
    ],
    ids=["segv", "kill", "abort", "peer-lost"],
)
def test_r31_who_dies_after_finished_has_finished(pod: Pod, death: str, sentence: str) -> None:
    pod.run("python3", pod.script("train.py", FINISHED + death))
    assert pod.sidecar.expect(local.Finished) == local.Finished(1)
    assert said(pod, f"{sentence} {HAS_FINISHED}")
    pod.sidecar.send(local.Exit("finished"))
    assert pod.wait() == 0
    assert (last_word(pod)["result"], last_word(pod)["signal"]) == ("finished", None)


@pytest.mark.parametrize("phase", ["training", "saving", "stopped"])
def test_r31_who_is_killed_before_has_not(pod: Pod, phase: str) -> None:
    """R19: `stopped` is not `finished`."""
    pod.run("python3", pod.script("train.py", f"{BEGIN}reporter.enter('{phase}')\n{KILLED}"))
    exited = pod.sidecar.expect(local.ProcessExited)
    assert (exited.signal, exited.exit_code) == (11, None)
    assert not said(pod, "last step")


def test_r31_an_exit_code_after_finished_is_the_scripts_own_word(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", FINISHED + "sys.exit('no metric')\n"))
    exited = pod.sidecar.expect(local.ProcessExited)
    assert (exited.exit_code, exited.peer_lost, exited.last_lines) == (1, False, "no metric\n")
    assert said(pod, "rank 0 ended with exit code 1 after its last step was saved; the others are ended")


def test_r31_an_abort_on_the_way_out_does_not_hide_an_exception(pod: Pod) -> None:
    """torch 2.6 does so now and then: a thread that nobody joined is killed inside C++."""
    after = "import atexit\natexit.register(os.abort)\nraise ValueError('no metric')\n"
    pod.run("python3", pod.script("train.py", FINISHED + after))
    exited = pod.sidecar.expect(local.ProcessExited)
    assert (exited.signal, exited.last_lines.splitlines()[-1]) == (6, "ValueError: no metric")


def test_r31_a_script_without_the_library_crashes_as_ever(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", "import os\n" + KILLED))
    assert pod.sidecar.expect(local.ProcessExited).signal == 11


def test_r31_what_an_older_attempt_said_does_not_count(pod: Pod) -> None:
    text = f"import os\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '1': {KILLED}"
    pod.run("python3", pod.script("train.py", f"{text}{FINISHED}print('up', flush=True)\nuntil('never')\n"))
    wait_until(lambda: b"up" in pod.stdout.read_bytes(), "the first attempt")
    pod.sidecar.send(local.Stop(1, 0))
    pod.sidecar.expect(local.Stopped)
    pod.start(2)
    exited = pod.sidecar.expect(local.ProcessExited)
    assert (exited.attempt, exited.signal) == (2, 11)


TWO = FINISHED + f"if rank == 0: {KILLED}until('go-on')\nprint('exported', flush=True)\n"


def commands(pod: Pod, text: str) -> dict[str, list[str]]:
    script = pod.script("train.py", text)
    return {
        "ranks": ["torchrun", "--nproc-per-node=2", str(script)],
        "shim": ["sh", "-c", f"torchrun --nproc-per-node=2 {script}; exit $?"],
    }


@pytest.mark.parametrize("kind", ["ranks", "shim"])
def test_r31_the_others_go_on_to_their_own_end(pod: Pod, kind: str) -> None:
    pod.run(*commands(pod, TWO)[kind], sizes=(2,))
    wait_until(lambda: said(pod, f"rank 0 was killed by signal 11 (SIGSEGV) {HAS_FINISHED}"), "the word")
    (pod.folder / "go-on").touch()
    pod.sidecar.expect(local.Finished)
    wait_until(lambda: pod.stdout.read_text() == "[rank 1] exported\n", "the other rank's output")


@pytest.mark.parametrize("kind", ["ranks", "shim"])
def test_r31_a_rank_that_raises_is_the_failure_whatever_its_neighbour_sees(pod: Pod, kind: str) -> None:
    """The neighbour's lines about a lost peer stand next to the failed rank's own in a shell's output."""
    after = f"if rank == 1: {LOSES_ITS_PEER}until('go-on')\nsys.exit('no metric')\n"
    pod.run(*commands(pod, FINISHED + after)[kind], sizes=(2,))
    wait_until(lambda: said(pod, f"rank 1 lost its connection to a peer {HAS_FINISHED}"), "the word")
    (pod.folder / "go-on").touch()
    exited = pod.sidecar.expect(local.ProcessExited)
    assert (exited.rank, exited.exit_code, exited.last_lines) == (0, 1, "no metric\n")
    wait_until(lambda: not below(pod.pid), "the end of all")


@pytest.mark.parametrize("before", ["python3 ", "torchrun "])
@pytest.mark.parametrize("after", ["", "; exit $?"], ids=["by-exec", "by-code"])
def test_r31_a_shell_says_a_signal_as_an_exit_code(pod: Pod, before: str, after: str) -> None:
    script = pod.script("train.py", FINISHED + KILLED)
    pod.run("sh", "-c", f"{before}{script}{after}")
    pod.sidecar.expect(local.Finished)
    assert said(pod, f"rank 0 was killed by signal 11 (SIGSEGV) {HAS_FINISHED}")


def test_r31_torchrun_may_run_a_shell_script_a_rank(pod: Pod) -> None:
    pod.script("train.py", FINISHED + KILLED)
    wrapper = pod.script("wrapper.sh", "python3 train.py\nexit $?\n", shebang="/bin/sh")
    pod.run("torchrun", "--no-python", "--nproc-per-node=2", wrapper, sizes=(2,))
    pod.sidecar.expect(local.Finished)


def test_r31_a_shells_own_exit_code_stays_one(pod: Pod) -> None:
    script = pod.script("train.py", FINISHED + KILLED)
    pod.run("sh", "-c", f"python3 {script} || exit 3")
    assert pod.sidecar.expect(local.ProcessExited).exit_code == 3


# at the same moment ------------------------------------------------------------------------------


def test_r31_a_sidecar_that_was_away_hears_it_when_it_is_back(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", f"{FINISHED}print('up', flush=True)\nuntil('go-on')\n{KILLED}"))
    wait_until(lambda: b"up" in pod.stdout.read_bytes(), "the trainer")
    pod.sidecar.close()
    (pod.folder / "go-on").touch()
    wait_until(lambda: said(pod, HAS_FINISHED) and not below(pod.pid), "its death")
    pod.sidecar.listen()
    assert pod.sidecar.accept().running == 0
    assert pod.sidecar.expect(local.Finished) == local.Finished(1)


def test_r31_told_to_stop_after_that_it_has_stopped_not_finished(pod: Pod) -> None:
    pod.run(*commands(pod, TWO)["ranks"], sizes=(2,))
    wait_until(lambda: said(pod, HAS_FINISHED), "the word")
    pod.sidecar.send(local.Stop(1, 0))
    assert pod.sidecar.expect(local.Stopped) == local.Stopped(1)
    pod.start(2)
    (pod.folder / "go-on").touch()
    assert pod.sidecar.expect(local.Finished) == local.Finished(2)


def test_r31_killed_by_the_launcher_itself_it_has_not_finished(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", f"{FINISHED}print('up', flush=True)\nuntil('never')\n"))
    wait_until(lambda: b"up" in pod.stdout.read_bytes(), "the trainer")
    pod.sidecar.send(local.Stop(1, 0))
    assert pod.sidecar.expect(local.Stopped) == local.Stopped(1)
    assert not said(pod, HAS_FINISHED)


def test_r31_sigterm_leaves_who_has_finished_its_time(pod: Pod) -> None:
    """The pod is leaving, the trainers are not yet told: one that dies by itself meanwhile has finished, and is waited for."""
    pod.run("python3", pod.script("train.py", f"{FINISHED}print('up', flush=True)\nuntil('go-on')\n{KILLED}"))
    wait_until(lambda: b"up" in pod.stdout.read_bytes(), "the trainer")
    os.kill(pod.pid, signal.SIGTERM)
    pod.sidecar.expect(local.Terminating)
    (pod.folder / "go-on").touch()
    pod.sidecar.expect(local.Finished)
    pod.sidecar.send(local.Exit("finished"))
    assert pod.wait() == 0
    assert last_word(pod)["result"] == "finished"


def test_r31_sigterm_and_the_end_of_the_grace_are_no_success(pod: Pod) -> None:
    pod.run("python3", pod.script("train.py", f"{FINISHED}print('up', flush=True)\nuntil('never')\n"), grace=2)
    wait_until(lambda: b"up" in pod.stdout.read_bytes(), "the trainer")
    os.kill(pod.pid, signal.SIGTERM)
    pod.sidecar.expect(local.Terminating)
    assert pod.wait() == 0
    assert pod.sidecar.receive() is None
    assert last_word(pod)["result"] == "left"
