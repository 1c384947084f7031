"""Installs a folder of wheels into another folder with the standard library alone: for base images without pip.

Usage: unpack_wheels.py WHEELS TARGET
"""

from __future__ import annotations

import compileall
import contextlib
import sys
import zipfile
from pathlib import Path


def unpack(wheels: Path, target: Path) -> None:
    """Unpacks and compiles all wheels; `ValueError` for a wheel whose files do not all belong into site-packages."""
    found = sorted(wheels.glob("*.whl"))
    if not found:
        raise ValueError(f"{wheels}: no wheels; run `make wheels` first")
    for wheel in found:
        with zipfile.ZipFile(wheel) as archive:
            _check(wheel, archive)
            archive.extractall(target)
    # The root file system is read-only later: what is not compiled now is compiled again at every start.
    with contextlib.redirect_stdout(sys.stderr):  # where it says which file does not compile
        compiled = compileall.compile_dir(target, quiet=1)
    if not compiled:
        raise ValueError(f"{target}: not all files compile with Python {sys.version.split()[0]}")


def _check(wheel: Path, archive: zipfile.ZipFile) -> None:
    strangers = [name for name in archive.namelist() if name.split("/")[0].endswith(".data")]
    if any(name.split("/")[1] in ("purelib", "platlib") for name in strangers):
        raise ValueError(f"{wheel.name}: keeps modules in {strangers[0]}, which needs a real installer")


if __name__ == "__main__":
    try:
        unpack(Path(sys.argv[1]), Path(sys.argv[2]))
    except (ValueError, OSError) as error:
        sys.exit(f"unpack_wheels: {error}")
