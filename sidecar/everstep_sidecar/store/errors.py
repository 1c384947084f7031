"""An OSError in words: one for machines, a stable sentence for people."""

from __future__ import annotations

import errno


def reason_of(error: OSError) -> str:
    """`ENOSPC`, `EIO`, ...: the error's symbolic name."""
    return errno.errorcode.get(error.errno or 0, "other")


def words_of(error: OSError) -> str:
    """What it says, without the path: names of temporary files are others at each try."""
    return error.strerror or str(error)
