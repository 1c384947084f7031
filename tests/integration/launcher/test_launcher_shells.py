"""Shells that set PATH anew, and whatever else goes round Everstep's torchrun: it works all the same, or is refused with a sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from everstep_protocol import local, names
from integration.launcher.launcher_harness import Pod
from integration.launcher.test_launcher_commands import DUMP, dumped, make_torchrun

# A torch of which nothing is there but what the launcher's start file looks at.
TORCH = "_rendezvous_handlers = {'env': lambda url: print('joined', url, flush=True)}\n"
JOIN = "import torch.distributed.rendezvous as found\nfound._rendezvous_handlers['env']('env://')\n"
ALONE = "RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=1"


def run_joining(pod: Pod, *command: str | Path, sizes: tuple[int, ...] = (1, 1), **variables: str) -> None:
    for package in ("torch", "torch/distributed"):
        pod.script(f"site/{package}/__init__.py", "")
    pod.script("site/torch/distributed/rendezvous.py", TORCH)
    pod.run(*command, sizes=sizes, PYTHONPATH=str(pod.folder / "site"), **variables)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    "way",
    [
        "PATH={bin}:/usr/bin:/bin; torchrun",
        "{bin}/torchrun",
        "cd {bin}; ./python3.99 ./torchrun",
        "{bin}/python3.99 -X dev -m torch.distributed.run",
        "exec {bin}/python3.99 -um torch.distributed.run",
        '"$EVERSTEP_TORCHRUN"',
    ],
)
def test_a_torchrun_that_a_shell_finds_elsewhere_hands_over(pod: Pod, way: str, processes: int) -> None:
    venv = pod.folder / "venv" / "bin"
    make_torchrun(venv, venv / "python3.99")
    script = pod.script("train.py", DUMP.replace("name = f", "os.chdir(os.path.dirname(__file__))\nname = f"))
    text = f"{way.format(bin=venv)} --nproc-per-node {processes} {script} --x"
    pod.run("sh", "-c", text, sizes=(1, processes), index=1)
    pod.sidecar.expect(local.Finished)
    for local_rank in range(processes):
        seen = dumped(pod, 1 + local_rank)
        assert seen["argv"] == [str(script), "--x"]
        assert (seen["env"]["LOCAL_RANK"], seen["env"]["WORLD_SIZE"]) == (str(local_rank), str(1 + processes))
        if "EVERSTEP_TORCHRUN" not in way:
            assert seen["python"] == str(venv / "python3.99")
        left = ("PET_", "EVERSTEP_PLACEMENT", "EVERSTEP_TORCHRUN", "EVERSTEP_HANDED_OVER")
        assert not [name for name in seen["env"] if name.startswith(left)]


def test_what_torchrun_is_told_wrongly_is_said_by_everstep_in_a_shell_too(pod: Pod) -> None:
    venv = pod.folder / "venv" / "bin"
    make_torchrun(venv, venv / "python3.99")
    pod.run("sh", "-c", f"{venv}/torchrun --no-such-option train.py")
    assert "--no-such-option is not known" in pod.sidecar.expect(local.ProcessExited).last_lines


@pytest.mark.parametrize("end", ["", "; exit 0", " || true"])
def test_a_world_of_its_own_in_each_worker_is_refused_whatever_the_shell_makes_of_it(pod: Pod, end: str) -> None:
    run_joining(pod, "sh", "-c", f"{ALONE} python3 {pod.script('train.py', JOIN)}{end}")
    exited = pod.sidecar.expect(local.ProcessExited)
    assert exited.refused
    assert exited.last_lines.startswith("everstep: this process was about to join a world of 1 ")
    assert "has 2 ranks on 2 workers" in exited.last_lines
    assert "give command: [torchrun, train.py]" in exited.last_lines.lower()
    assert "joined" not in pod.stdout.read_text()


def test_a_rank_that_sets_its_own_world_is_refused(pod: Pod) -> None:
    text = "import os\nos.environ |= {'MASTER_ADDR': 'localhost', 'MASTER_PORT': '12355', 'WORLD_SIZE': '2'}\n" + JOIN
    run_joining(pod, "torchrun", pod.script("train.py", text), sizes=(2, 2))
    exited = pod.sidecar.expect(local.ProcessExited)
    assert (exited.refused, exited.exit_code) == (True, 78)


OWN_WORLDS = f"""
import os, subprocess, sys
{JOIN}
subprocess.run([sys.executable, "-c", {JOIN!r}], check=True, env={{**os.environ, "WORLD_SIZE": "1", "MASTER_PORT": "1"}})
"""


@pytest.mark.parametrize(
    ("command", "variables"),
    [
        (["torchrun", "train.py"], {}),
        (["sh", "-c", "torchrun train.py"], {}),
        (["sh", "-c", f"{ALONE} python3 train.py"], {names.ENV_OWN_WORLDS: "1"}),
    ],
)
def test_the_jobs_world_is_joined_and_what_a_rank_starts_then_may_have_its_own(
    pod: Pod, command: list[str], variables: dict[str, str]
) -> None:
    pod.script("train.py", OWN_WORLDS)
    run_joining(pod, *command, **variables)
    pod.sidecar.expect(local.Finished)
    assert pod.stdout.read_text() == 2 * "joined env://\n"


@pytest.mark.parametrize(
    ("first_line", "sentence"),
    [
        ("#!/no/such/interpreter", "the interpreter that its first line names is not in the image"),
        ("no first line", "no program for this machine"),
    ],
)
def test_a_program_that_can_never_be_executed_is_refused_with_a_sentence(
    pod: Pod, first_line: str, sentence: str
) -> None:
    program = pod.script("train", f"{first_line}\n")
    program.chmod(0o755)
    pod.run(program)
    exited = pod.sidecar.expect(local.ProcessExited)
    assert (exited.refused, exited.exit_code) == (True, 127)
    assert f"{program}: " in exited.last_lines
    assert sentence in exited.last_lines


def test_a_program_that_went_away_meanwhile_is_refused(pod: Pod) -> None:
    program = pod.script("train", "exit 0\n", shebang="/bin/sh")
    pod.sidecar.listen()
    pod.launch(program)
    pod.sidecar.accept()
    os.unlink(program)  # noqa: PTH108
    pod.start(1)
    exited = pod.sidecar.expect(local.ProcessExited)
    assert exited.refused
    assert "no such program here" in exited.last_lines
