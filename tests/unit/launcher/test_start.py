"""What runs at the start of every Python process below the launcher."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from everstep.launcher.environment import START_PATH, Placement
from everstep.start.worlds import World, explain, read_world
from everstep_protocol import names
from everstep_protocol.command import is_torchrun

LIBRARY = Path(__file__).parents[3] / "trainer_lib"
MASTER = ("10.0.0.1", 23456)


def placement(world: int, group_world: int) -> Placement:
    return Placement(1, (0, world // group_world), world, 0, group_world, *MASTER, "job")


@pytest.mark.parametrize(
    ("job", "world", "is_refused"),
    [
        ((8, 4), World(0, 8, MASTER), False),
        ((8, 4), World(0, 8, ("elsewhere", 1)), False),  # another way to meet, and all are there
        ((8, 4), World(0, 2, ("localhost", 29500)), True),  # a torchrun of its own in each worker
        ((8, 4), World(0, 1, MASTER), True),  # fewer ranks than workers: some are not in it
        ((4, 4), World(0, 16, MASTER), False),  # the script starts more ranks, and they meet where they should
        ((4, 4), World(0, 16, ("localhost", 12355)), True),
        ((1, 1), World(0, 4, ("localhost", 12355)), False),  # one worker: its world is whole
    ],
)
def test_only_a_world_that_is_surely_not_the_jobs_is_refused(
    job: tuple[int, int], world: World, is_refused: bool
) -> None:
    assert bool(explain(world, placement(*job))) is is_refused


@pytest.mark.parametrize(
    ("url", "changes", "expected"),
    [
        ("env://", {}, World(1, 2, ("a", 3))),
        ("env://?rank=5&world_size=6", {}, World(5, 6, ("a", 3))),
        ("env://", {"MASTER_PORT": "x"}, None),
        ("env://", {"RANK": ""}, None),
    ],
)
def test_a_world_is_read_as_torch_reads_it(url: str, changes: dict[str, str], expected: World | None) -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "3"}
    assert read_world(url, variables | changes) == expected
    assert read_world(url, {}) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python /venv/bin/torchrun train.py", True),
        ("python -u -m torch.distributed.run --what", True),
        ("python -mtorch.distributed.launch", True),
        ("python train.py torchrun", False),
        ("python -m torchrun", False),
        ("python -c torchrun", False),
        ("python", False),
        ("python -", False),
    ],
)
def test_a_process_that_is_torchrun_is_told_by_its_command_line(line: str, expected: bool) -> None:
    assert is_torchrun(line.split()) is expected


def python(*words: str, path: tuple[Path, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
    places = ":".join(map(str, (LIBRARY / START_PATH, LIBRARY, *path)))
    environment = {"PYTHONPATH": places, names.ENV_MEMORY: "/nowhere", "PYTHONDONTWRITEBYTECODE": "1", **variables}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)


def test_a_process_finds_its_own_sitecustomize_and_its_path_as_ever(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.mine = __file__\n")
    code = "import sys, sitecustomize; print(sys.mine, sitecustomize.__file__, sys.path[2])"
    own = str(tmp_path / "sitecustomize.py")
    ran = python("-c", code, path=(tmp_path,))
    assert (ran.stdout.split(), ran.stderr) == ([own, own, str(tmp_path)], "")


@pytest.mark.parametrize(("text", "error"), [("import no_such", "no_such"), ("raise RuntimeError('mine')", "mine")])
def test_errors_of_its_own_sitecustomize_are_told_as_ever(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(text)
    ran = python("-c", "print('on')", path=(tmp_path,))
    assert ran.stdout == "on\n"
    assert ran.stderr.startswith("Error in sitecustomize")
    assert error in ran.stderr


def test_a_process_that_has_nothing_to_do_with_training_loads_next_to_nothing() -> None:
    code = (
        "import sys; print(sorted(name for name in sys.modules if name.startswith('everstep')), 'json' in sys.modules)"
    )
    ran = python("-S", "-c", f"import sitecustomize; {code}")
    loaded = [
        "everstep",
        "everstep.start",
        "everstep.start.after_import",
        "everstep.start.hand_over",
        "everstep.start.hooks",
    ]
    assert (ran.stdout, ran.stderr) == (f"{loaded} False\n", "")


@pytest.mark.parametrize("broken", ["raise SystemError", "import no_such", "syntax error"])
def test_nothing_that_goes_wrong_here_stops_a_process(tmp_path: Path, broken: str) -> None:
    (tmp_path / "everstep").mkdir()
    (tmp_path / "everstep" / "__init__.py").write_text(broken)
    place = f"{LIBRARY / START_PATH}:{tmp_path}"
    ran = python("-c", "print('on')", PYTHONPATH=place)
    assert (ran.stdout, ran.stderr) == ("on\n", "")


def test_a_hook_that_fails_leaves_the_import_whole(tmp_path: Path) -> None:
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    (package / "rendezvous.py").write_text("value = 7\n")  # no handlers in it: another torch
    code = (
        "import inspect, torch.distributed.rendezvous as found\n"
        "print(found.value, inspect.getsource(found).strip(), found.__spec__.origin == found.__file__)"
    )
    ran = python("-c", code, path=(tmp_path,))
    assert (ran.stdout, ran.stderr) == ("7 value = 7 True\n", "")
