"""The operator under cProfile: begins at the first SIGUSR1, writes its figures into the file that is named at the second."""

from __future__ import annotations

import cProfile
import signal
import sys
from typing import Any

from everstep_operator.main import main

_profile = cProfile.Profile()
_is_on = False


def _toggle(*_: Any) -> None:
    global _is_on
    _is_on = not _is_on
    if _is_on:
        _profile.enable()
    else:
        _profile.disable()
        _profile.dump_stats(sys.argv[1])


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _toggle)
    main()
