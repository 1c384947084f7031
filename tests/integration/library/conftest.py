"""The library's checks need torch, which the host does not have: they run inside the cached systems that have one, side by side."""

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from testcluster.rootfs import run_in_rootfs

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parents[3]
MODULES = sorted(path.stem for path in SCRIPTS.glob("checks_*.py"))
SYSTEMS = ("torch-new", "torch-old")
HANG_SECONDS = 1800

Results = dict[str, Any]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Results]]]:
    """One in each system."""
    with ThreadPoolExecutor(len(SYSTEMS)) as pool:
        yield {system: pool.submit(_run, system, tmp_path_factory.mktemp(system)) for system in SYSTEMS}


@pytest.fixture(scope="session", params=SYSTEMS)
def results(request: pytest.FixtureRequest, runs: dict[str, Future[Results]]) -> Results:
    """What became of every check in one system."""
    return runs[request.param].result()


def _run(system: str, out: Path) -> Results:
    """The system is built where it is not there yet."""
    done = run_in_rootfs(
        system,
        ["python3", "/scripts/runner.py", "/out/results.json", *MODULES],
        binds={SCRIPTS: "/scripts", ROOT: "/src", out: "/out"},
        env={"PYTHONPATH": "/src/trainer_lib:/scripts", "OMP_NUM_THREADS": "1"},
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: Results = json.loads((out / "results.json").read_text())
    return found
