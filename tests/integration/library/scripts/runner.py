"""Runs checks and writes what became of them: {name: null | traceback}. `python3 runner.py RESULT_FILE MODULE...`"""

import importlib
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path


def main() -> None:
    result_file, *modules = sys.argv[1:]
    results: dict[str, object] = {}
    for module in modules:
        for name, check in list(vars(importlib.import_module(module)).items()):
            if name.startswith("check_"):
                results[name] = run(check)
                Path(result_file).write_text(json.dumps(results))


def run(check: object) -> dict[str, object]:
    """Run one check in a folder of its own."""
    began = time.monotonic()
    error = None
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            check(Path(folder))  # type: ignore[operator]
        except BaseException:  # noqa: BLE001 - it is the result
            error = traceback.format_exc()
        os.chdir("/")
    return {"error": error, "seconds": time.monotonic() - began}


if __name__ == "__main__":
    main()
