"""The library's checks need torch, which the host does not have: they run inside the cached systems that have one."""

import json
from pathlib import Path
from typing import Any

import pytest
from testcluster.rootfs import run_in_rootfs

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parents[3]
MODULES = sorted(path.stem for path in SCRIPTS.glob("checks_*.py"))
HANG_SECONDS = 1800


@pytest.fixture(scope="session", params=["torch-new", "torch-old"])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of every check in one system, which is built where it is not there yet."""
    out = tmp_path_factory.mktemp(request.param)
    done = run_in_rootfs(
        request.param,
        ["python3", "/scripts/runner.py", "/out/results.json", *MODULES],
        binds={SCRIPTS: "/scripts", ROOT: "/src", out: "/out"},
        env={"PYTHONPATH": "/src/trainer_lib:/scripts", "OMP_NUM_THREADS": "1"},
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return found
