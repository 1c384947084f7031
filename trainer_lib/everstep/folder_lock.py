"""One run writes a folder: an exclusive `flock`, which goes with its process, however that ends.

Only the lock decides. What the file says is for people: who holds it, written by the holder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

from everstep_protocol import codec, storage

from everstep.console import say
from everstep.errors import EverstepError

_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_MAX_HOLDER_BYTES = 4096


@dataclass(frozen=True)
class Holder:
    """Who says that it holds the lock."""

    pid: int
    host: str
    since: str


class FolderLock:
    """The lock of a folder that exists."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handle: int | None = None
        self._told = False

    def acquire(self) -> None:
        """Take it; nothing happens where it is held already.

        Raises EverstepError where another run holds it, OSError where the file cannot be opened. A file system without locks is told
        once and lets everybody in.
        """
        if self._handle is not None:
            return
        handle = self._open()
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _read(handle)
            self._close()
            if isinstance(error, BlockingIOError):
                raise EverstepError(_refusal(self._folder, holder)) from None
            if error.errno not in _UNSUPPORTED:
                raise
            self._tell(error)
        else:
            _sign(handle)

    def release(self) -> None:
        """Give it back."""
        if self._handle is None:
            return
        with suppress(OSError):
            os.ftruncate(self._handle, 0)
        with suppress(OSError):
            fcntl.flock(self._handle, fcntl.LOCK_UN)  # for everybody who shares it; closing only lets go of our share
        self._close()

    def forget(self) -> None:
        """In a forked child: let go of the share that it was born with. The parent keeps the lock."""
        self._close()

    def _open(self) -> int:
        _let_go_in_children()
        with _forking:
            self._handle = os.open(self._folder / storage.LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            _held.add(self)
            return self._handle

    def _close(self) -> None:
        with _forking:
            handle, self._handle = self._handle, None
            _held.discard(self)
            if handle is not None:
                os.close(handle)

    def _tell(self, error: OSError) -> None:
        if not self._told:
            say(
                f"{self._folder}: its file system has no locks ({error.strerror}): runs are not kept apart here, let only one at a "
                "time write there"
            )
        self._told = True


# A lock belongs to the open file, and a fork shares that with its child: a data loader's worker would hold it after our death.
_held: set[FolderLock] = set()
_forking = threading.RLock()  # no fork between the opening of a file and its entry above


@cache
def _let_go_in_children() -> None:
    os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_forget_all)


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()
    _forking.release()


def _sign(handle: int) -> None:
    holder = Holder(os.getpid(), socket.gethostname(), datetime.now().astimezone().isoformat(timespec="seconds"))
    with suppress(OSError):  # a full disk is no reason not to hold it
        os.ftruncate(handle, 0)
        os.pwrite(handle, codec.dumps(holder).encode(), 0)


def _read(handle: int) -> Holder | None:
    """None where the file does not say it, or says anything else."""
    try:
        holder = codec.loads(Holder, os.pread(handle, _MAX_HOLDER_BYTES, 0))
    except (OSError, codec.InvalidDocument):
        return None
    return holder if holder.host.isprintable() and holder.since.isprintable() else None


def _refusal(folder: Path, holder: Holder | None) -> str:
    return (
        f"{folder} is in use by another run ({_described(holder)}): end that run, or choose another directory= for this one "
        "(or EVERSTEP_CHECKPOINT_DIR)"
    )


def _described(holder: Holder | None) -> str:
    if holder is None:
        return "which one it does not say"
    is_here = (holder.pid, holder.host) == (os.getpid(), socket.gethostname())
    which = "another loop of this very process, " if is_here else ""
    return f"{which}process {holder.pid} on {holder.host}, since {holder.since}"
