"""How long a test waits before it says that something hangs. `make mutants` makes it short: there, most waits are in vain."""

from __future__ import annotations

import os

VARIABLE = "EVERSTEP_HANG_SECONDS"


def hang_seconds(generous: float) -> float:
    """`generous`: more than any machine needs that does other things as well."""
    return min(generous, float(os.environ.get(VARIABLE, generous)))
