"""What people are told of a storage that fails: what, where, what to do. The same words while the same thing fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def word_of(error: OSError) -> str:
    """`ENOSPC`, `EIO`, ...: the error's symbolic name."""
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def words_of(error: OSError) -> str:
    """What it says, without a path: names of temporary files are others at each try."""
    return error.strerror or str(error)


def explain(error: OSError, root: Path) -> str:
    """One sentence without an end; `root` is the job's folder."""
    said = f"{word_of(error)}: {error.strerror or error}: {_where(error, root)}"
    if error.errno in _FORBIDDEN:
        return (
            f"the sidecar, as user {os.getuid()}, must write to {root} and may not ({said}): make the volume writable for "
            "that user, or set the trainer's securityContext.runAsUser to one who may write there (the sidecar runs as the same)"
        )
    if error.errno == errno.ENOTDIR:
        return (
            f"no folder can be at {root} ({said}): choose another checkpoint.storage.path, or remove what is in its way"
        )
    if error.errno in _FULL:
        return f"the storage is full ({said}): free some space"
    return f"the storage does not answer ({said}): look at the volume and at its server"


def lasting(path: Path) -> Path:
    """Where it is, for people: names that begin with a dot are given for a moment, and another time they are others."""
    return path.parent if path.name.startswith(".") and path.name != ".metadata" else path


def _where(error: OSError, root: Path) -> Path:
    return lasting(Path(os.fsdecode(error.filename))) if isinstance(error.filename, (str, bytes, os.PathLike)) else root
