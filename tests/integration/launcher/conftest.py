from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.launcher.launcher_harness import Pod


@pytest.fixture
def pod() -> Iterator[Pod]:
    # not tmp_path: a unix socket's path has 107 bytes at most
    with tempfile.TemporaryDirectory(prefix="pod-") as folder:
        pod = Pod(Path(folder))
        yield pod
        pod.end()
