"""Every timer that the product has, found in its source: a new one without a mutant fails the check."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SETTINGS = Path("operator/everstep_operator/core/model.py")
PACKAGES = {
    "operator": Path("operator/everstep_operator"),
    "sidecar": Path("sidecar/everstep_sidecar"),
    "launcher": Path("trainer_lib/everstep/launcher"),
}
_CONSTANT = re.compile(r"_?[A-Z][A-Z_]*_SECONDS")


def find(root: Path) -> frozenset[str]:
    """`Settings.hello_deadline` for each float of the operator's settings, `sidecar/saver.LOOK_SECONDS` for each such constant."""
    constants = (
        f"{package}/{path.relative_to(root / folder).with_suffix('').as_posix()}.{name}"
        for package, folder in PACKAGES.items()
        for path in (root / folder).rglob("*.py")
        for name in _constants(ast.parse(path.read_text()))
    )
    return frozenset(constants) | {f"Settings.{name}" for name in _settings(root / SETTINGS)}


def _constants(module: ast.Module) -> Iterator[str]:
    for statement in module.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
            yield from filter(_CONSTANT.fullmatch, names)


def _settings(path: Path) -> Iterator[str]:
    classes = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef))
    for field in next(found for found in classes if found.name == "Settings").body:
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and ast.unparse(field.annotation) == "float"
        ):
            yield field.target.id
