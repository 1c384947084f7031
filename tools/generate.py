"""Writes everything that is generated: crds/ from the operator's models, and the chart's copy of it.

Usage: generate.py [--check]    (--check writes nothing; exit code 1 and the file's name if one is out of date)
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CRD = ROOT / "crds" / "trainingjobs.everstep.dev.yaml"
CHART_COPY = ROOT / "charts" / "everstep" / "files" / CRD.name  # Helm reads nothing outside a chart

sys.path[:0] = [str(ROOT / "operator"), str(ROOT / "trainer_lib")]

from everstep_operator.api import crd  # noqa: E402


def main(arguments: list[str]) -> int:
    text = crd.render()
    stale = [file for file in (CRD, CHART_COPY) if not file.exists() or file.read_text() != text]
    for file in stale:
        name = file.relative_to(ROOT)
        if "--check" in arguments:
            print(f"{name} is not what the operator's models say: make generate", file=sys.stderr)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            print(f"{name} written")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
