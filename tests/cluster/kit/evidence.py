"""What is kept when a test fails: the objects, the events, the logs of every component, operator, sidecar and trainer."""

from __future__ import annotations

import shutil
from pathlib import Path

from kit.job import Space
from kit.product import NAMESPACE
from testcluster.shell import CommandError


def keep_evidence(space: Space, folder: Path) -> None:
    """Fill `folder`; whatever cannot be had says so in its file."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, argv in _QUESTIONS.items():
        (folder / name).write_text(_ask(space, *argv))
    (folder / "operator.log").write_text(
        _ask_in(space, NAMESPACE, "logs", "-l", "app.kubernetes.io/name=everstep", "--tail=-1", "--prefix")
    )
    for line in _ask(space, "get", "pods", "-o", "name").split():
        for container in ("trainer", "everstep-sidecar"):
            path = folder / f"{line.removeprefix('pod/')}.{container}.log"
            path.write_text(_ask(space, "logs", line, "-c", container, "--tail=-1"))
    shutil.copytree(space.cluster.log_directory, folder / "components", symlinks=True)
    listing = sorted(str(path.relative_to(space.checkpoints)) for path in space.checkpoints.rglob("*"))
    (folder / "checkpoints.txt").write_text("\n".join(listing))
    shutil.copytree(space.records, folder / "records", dirs_exist_ok=True)
    print(f"evidence of the failure: {folder}")


_QUESTIONS = {
    "trainingjobs.yaml": ("get", "trainingjobs", "-o", "yaml"),
    "pods.yaml": ("get", "pods", "-o", "yaml"),
    "pods.txt": ("get", "pods", "-o", "wide"),
    "events.txt": ("get", "events", "--sort-by=.metadata.creationTimestamp"),
    "nodes.txt": ("get", "nodes", "-o", "wide"),
}


def _ask(space: Space, *argv: str) -> str:
    return _ask_in(space, space.name, *argv)


def _ask_in(space: Space, namespace: str, *argv: str) -> str:
    try:
        return space.cluster.kubectl("-n", namespace, *argv, timeout=20)
    except CommandError as error:
        return f"could not be had: {error}\n"
