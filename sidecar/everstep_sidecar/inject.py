"""The injector (init container): puts launcher and library where the trainer's container finds them.

`python3 -m everstep_sidecar.inject /everstep/bin` leaves there the script `everstep` and, in `lib/`, the packages `everstep` and
`everstep_protocol`, as they are installed in this image: the library in a pod is always the operator's own version.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

PACKAGES = ("everstep", "everstep_protocol")
SCRIPT = "everstep"
_SCRIPT_SOURCE = Path("launcher") / "everstep_script.py"  # in the package `everstep`
_USAGE = "usage: python3 -m everstep_sidecar.inject FOLDER"


def inject(folder: Path) -> None:
    """Copy both packages and the script; what an earlier, interrupted run left is replaced. Raises OSError, ValueError."""
    library = folder / "lib"
    library.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        _copy_package(_package_folder(package), library / package)
    script = folder / SCRIPT
    shutil.copyfile(_package_folder("everstep") / _SCRIPT_SOURCE, script)
    script.chmod(0o755)


def _copy_package(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(source, target, ignore=ignored, copy_function=shutil.copyfile)
    # Another user may run the trainer: everybody may read, whatever the image's own modes and umask are.
    target.chmod(0o755)
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _package_folder(package: str) -> Path:
    """Found without importing it: the sidecar's image has no torch."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"the package {package} is not installed in this image")
    return Path(next(iter(spec.submodule_search_locations)))


def main() -> None:
    """The entry point."""
    if len(sys.argv) != 2:
        sys.exit(_USAGE)
    try:
        inject(Path(sys.argv[1]))
    except (OSError, ValueError) as error:
        sys.exit(f"everstep: cannot put the library into {sys.argv[1]}: {error}")


if __name__ == "__main__":
    main()
