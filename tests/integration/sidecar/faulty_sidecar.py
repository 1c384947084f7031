"""The sidecar's process with a storage that fails or hangs as a file says, and that notes each step: run with `-m faulty_sidecar`.

The faults are lines `<verb> <kind, path or *> <errno or hang>`; a step that hangs does so until its line is gone, or says an errno.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from everstep_sidecar import coordinator, main, prepare, stop_rounds, storage_calls
from everstep_sidecar.store import files

FAULTS = Path(os.environ["EVERSTEP_TEST_FAULTS"])
STEPS = Path(os.environ["EVERSTEP_TEST_STEPS"])
ROOT = Path(os.environ["EVERSTEP_MOUNT_STORAGE"]) / "gpt"
HANG_SECONDS = 0.25
HELD_SECONDS = 0.3


def kind_of(path: Path) -> str:
    """The path with every number and random part taken out: `step_N.tmp-N/rank_N.json`."""
    text = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else "above"
    return re.sub(r"\d+", "N", re.sub(r"[0-9a-f]{32,}", "X", text))


def fault_of(verb: str, path: Path) -> str | None:
    names = ("*", kind_of(path), str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else "")
    for line in FAULTS.read_text().splitlines():
        faulty_verb, faulty_kind, what = line.split()
        if faulty_verb in (verb, "*") and faulty_kind in names:
            return what
    return None


def before(verb: str, path: Path) -> None:
    kind = kind_of(path)
    with STEPS.open("a") as steps:
        steps.write(f"{time.monotonic()} {verb} {kind}\n")
    while (what := fault_of(verb, path)) == "hang":
        time.sleep(0.02)
    if what is not None:
        raise OSError(int(what), os.strerror(int(what)), str(path))


if __name__ == "__main__":
    files.FILES._before = before
    storage_calls.HANG_SECONDS = HANG_SECONDS
    prepare.HELD_SECONDS = HELD_SECONDS
    coordinator.PORT_SECONDS = 1.0
    stop_rounds.LATE_SECONDS = 0.5
    main.main()
