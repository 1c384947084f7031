"""The user's own command line: torchrun of a venv, modules, bare scripts, shells; and what is refused."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from everstep_protocol import local
from integration.launcher.launcher_harness import Pod, below, read_when_there, wait_until

DUMP = """
import json, os, sys
name = f"env-{os.environ['RANK']}"
with open(name + ".tmp", "w") as file:
    file.write(json.dumps({"argv": sys.argv, "python": sys.executable, "env": dict(os.environ)}) + "\\n")
os.rename(name + ".tmp", name)
"""


def dumped(pod: Pod, rank: int = 0) -> dict:  # type: ignore[type-arg]
    return json.loads(read_when_there(pod.folder / f"env-{rank}"))


def make_torchrun(folder: Path, python: Path) -> None:
    """A venv's torchrun: what counts is its first line."""
    folder.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (folder / "torchrun").write_text(f"#!{python}\nraise SystemExit('the real torchrun must not run')\n")
    (folder / "torchrun").chmod(0o755)


def test_the_interpreter_of_the_users_torchrun_is_used(pod: Pod) -> None:
    venv = pod.folder / "venv" / "bin"
    make_torchrun(venv, venv / "python3.99")
    pod.sidecar.listen()
    pod.launch("torchrun", pod.script("train.py", DUMP), PATH=f"{venv}:{os.environ['PATH']}")
    pod.sidecar.accept()
    pod.start(1)
    assert dumped(pod)["python"] == str(venv / "python3.99")  # not resolved: a venv lives by its symlink


def test_a_torchrun_that_is_named_with_its_path_says_the_interpreter(pod: Pod) -> None:
    venv = pod.folder / "venv" / "bin"
    make_torchrun(venv, venv / "python3.99")
    pod.run(venv / "torchrun", pod.script("train.py", DUMP))
    assert dumped(pod)["python"] == str(venv / "python3.99")


def test_a_module_is_run_as_torchrun_does(pod: Pod) -> None:
    pod.script("package/train.py", DUMP)
    pod.run("python3", "-m", "torch.distributed.run", "--nproc_per_node", "1", "-m", "package.train", "${local_rank}")
    assert dumped(pod)["argv"][1:] == ["0"]


def test_a_bare_script_runs_by_its_own_first_line(pod: Pod) -> None:
    pod.run(pod.script("train.py", DUMP, shebang=sys.executable), "a b")
    assert dumped(pod)["argv"] == [str(pod.folder / "train.py"), "a b"]


def test_a_bare_script_that_is_not_executable_runs_under_python3(pod: Pod) -> None:
    pod.run(pod.script("train.py", DUMP))
    assert dumped(pod)["argv"] == [str(pod.folder / "train.py")]


@pytest.mark.parametrize("processes", [1, 2])
def test_torchrun_in_a_shell_starts_the_ranks_of_this_worker(pod: Pod, processes: int) -> None:
    script = pod.script("train.py", DUMP + "print('trained', flush=True)\n")
    text = f"echo before; torchrun --nproc-per-node={processes} --rdzv-backend=c10d {script} --x; echo after $?"
    pod.run("sh", "-c", text, sizes=(1, processes), index=1)
    pod.sidecar.expect(local.Finished)
    for local_rank in range(processes):
        seen = dumped(pod, 1 + local_rank)
        environment = seen["env"]
        assert seen["argv"] == [str(script), "--x"]
        assert (environment["LOCAL_RANK"], environment["WORLD_SIZE"]) == (str(local_rank), str(1 + processes))
        assert environment["MASTER_PORT"] == "29500"
        assert not [name for name in environment if name.startswith(("PET_", "EVERSTEP_PLACEMENT"))]
    lines = pod.stdout.read_text().splitlines()
    prefixes = ["[rank 1] ", "[rank 2] "] if processes == 2 else [""]
    assert sorted(lines[1:-1]) == [f"{prefix}trained" for prefix in prefixes]
    assert (lines[0], lines[-1]) == ("before", "after 0")


def test_a_shell_tells_a_real_torchrun_where_it_stands(pod: Pod) -> None:
    pod.run("sh", "-c", "echo $PET_NNODES $PET_NODE_RANK $PET_MASTER_ADDR $PET_MASTER_PORT", sizes=(1, 1), index=1)
    pod.sidecar.expect(local.Finished)
    wait_until(lambda: pod.stdout.read_text() == "2 1 127.0.0.1 29500\n", "the echo")


def test_the_first_failed_rank_in_a_shell_is_named(pod: Pod) -> None:
    text = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit('bad luck')\ntime.sleep(600)\n"
    pod.run("sh", "-c", f"torchrun {pod.script('train.py', text)}; exit $?", sizes=(3,))
    exited = pod.sidecar.expect(local.ProcessExited)
    assert (exited.rank, exited.exit_code, exited.last_lines) == (1, 1, "bad luck\n")
    wait_until(lambda: not below(pod.pid), "the end of the others")


def test_a_shell_and_all_its_ranks_are_stopped(pod: Pod) -> None:
    text = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)\n"
    pod.run("sh", "-c", f"torchrun {pod.script('train.py', text)}; exit 0", sizes=(2,))
    wait_until(lambda: pod.stdout.read_bytes().count(b"up") == 2, "the ranks")
    pod.sidecar.send(local.Stop(1, 0.2))
    assert pod.sidecar.expect(local.Stopped) == local.Stopped(1)
    assert below(pod.pid) == []


def test_a_shell_that_disagrees_about_processes_is_told_what_to_do(pod: Pod) -> None:
    pod.run("sh", "-c", "torchrun --nproc-per-node=4 train.py")
    assert "set spec.processesPerWorker to 4" in pod.sidecar.expect(local.ProcessExited).last_lines


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["torchrun", "--no-such-option", "train.py"], "--no-such-option is not known"),
        (["torchrun"], "given no script"),
        (["/no/such/torchrun", "t.py"], "/no/such/torchrun: no such program in the image"),
        (["no-such-program", "train.py"], "no-such-program: no such program in the image"),
        (["python3.77", "train.py"], "python3.77: no such program in the image"),
    ],
)
def test_a_refused_command_says_why_and_leaves_it_behind(pod: Pod, command: list[str], sentence: str) -> None:
    pod.launch(*command)
    assert pod.wait() == 2
    (line,) = pod.own_lines()
    assert sentence in line
    left = json.loads(pod.log.read_text())
    assert left["result"] == "refused"
    assert sentence in left["lastLines"]
    assert "Traceback" not in pod.stderr.read_text()


@pytest.mark.parametrize(("content", "expected"), [(b"..N4c10d6detail16LibUVStoreDaemonE..", None), (b"nothing", "0")])
def test_a_torch_without_libuv_is_told_so(pod: Pod, content: bytes, expected: str | None) -> None:
    pod.script("site/torch/__init__.py", "raise ImportError('torch is not imported for this')")
    library = pod.folder / "site" / "torch" / "lib" / "libtorch_cpu.so"
    library.parent.mkdir()
    library.write_bytes(content)
    pod.sidecar.listen()
    pod.launch("torchrun", pod.script("train.py", DUMP), USE_LIBUV="", PYTHONPATH=str(pod.folder / "site"))
    pod.sidecar.accept()
    pod.start(1)
    assert dumped(pod)["env"].get("USE_LIBUV") == expected


def test_what_is_on_the_images_python_path_does_not_break_the_launcher(pod: Pod) -> None:
    pod.script("app/selectors.py", "raise RuntimeError('shadowed')")
    pod.script("app/signal.py", "raise RuntimeError('shadowed')")
    pod.sidecar.listen()
    pod.launch("sh", "-c", "exit 0", PYTHONPATH=str(pod.folder / "app"))
    pod.sidecar.accept()
    pod.start(1)
    pod.sidecar.expect(local.Finished)
