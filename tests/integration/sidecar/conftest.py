"""Worlds of sidecar processes, ended whatever happens."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from integration.sidecar.sidecar_harness import World


@pytest.fixture
def make_world() -> Iterator[Callable[..., World]]:
    """Pods with connected fake launchers, or without."""
    worlds: list[World] = []
    # not tmp_path: a unix socket's path has 107 bytes at most
    folder = tempfile.TemporaryDirectory(prefix="job-")

    def make(num_pods: int, *, launchers: bool = True, **options: object) -> World:
        world = World(Path(folder.name), num_pods, **options)  # type: ignore[arg-type]
        worlds.append(world)
        world.start()
        for pod in world.pods if launchers else ():
            pod.connect_launcher()
        return world

    yield make
    for world in worlds:
        world.close()
    folder.cleanup()
