"""Settings that all tests share."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No test judges times, and none fails by chance: examples are the same each time. `make explore` looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "explore", settings.get_profile("same"), derandomize=False, max_examples=int(os.environ.get("EXAMPLES", "100"))
)
settings.load_profile("same")
