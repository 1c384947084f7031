"""A training script that cannot start."""

import a_module_that_is_not_there  # noqa: F401
