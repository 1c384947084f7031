"""The chart as helm renders it. helm comes from the test cluster's build cache; without it the tests fail and say what to do."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from chart.rendering import CHART, Refused, Rendered
from testcluster.golang import HELM, program_part
from testcluster.layout import Layout


@pytest.fixture(scope="session")
def helm() -> Callable[..., str]:
    """Runs helm; raises Refused."""
    layout = Layout.from_environment()
    program = layout.cache / program_part(HELM, layout.cache / "logs").folder_name / "helm"
    assert program.exists(), f"{program} is missing: tests/cluster/cluster build"

    def run(*argv: str, input: str | None = None) -> str:
        done = subprocess.run([str(program), *argv], input=input, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Refused(done.stderr + done.stdout)
        return done.stdout

    return run


@pytest.fixture(scope="session")
def render(helm: Callable[..., str]) -> Callable[..., Rendered]:
    """Renders a release `es` in namespace `ns` with the given values."""

    def run(**values: Any) -> Rendered:
        text = helm("template", "es", str(CHART), "--namespace", "ns", "--values", "-", input=json.dumps(values))
        return Rendered(tuple(document for document in yaml.safe_load_all(text) if document))

    return run
