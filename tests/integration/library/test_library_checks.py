"""Each check of `scripts/checks_*.py` passed in each system; read there what is asserted."""

import re
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
NAMES = [
    name
    for path in sorted(SCRIPTS.glob("checks_*.py"))
    for name in re.findall(r"^def (check_\w+)", path.read_text(), re.M)
]


@pytest.mark.parametrize("name", NAMES)
def test_library(results: dict[str, Any], name: str) -> None:
    error = results[name]["error"]
    assert error is None, error
