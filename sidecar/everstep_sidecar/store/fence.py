"""R5: the fence takes away, it does not ask."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from everstep_protocol import codec, storage
from everstep_protocol.records import Fence

from everstep_sidecar.store.files import FILES, Files
from everstep_sidecar.store.listing import list_uncached


@dataclass(frozen=True)
class FenceResult:
    """`raised` or `mine` (the same intent had raised it): everything older has ended. `higher`: refused, `highest` says by which number."""

    outcome: Literal["raised", "mine", "higher"]
    highest: int
    taken: tuple[str, ...] = ()  # temporary directories that were moved to fenced/<n>/ by this call


def highest(root: Path, files: Files = FILES) -> int:
    """R5, R14: the highest fence on storage, 0 if there is none; a folder without fence.json counts: mkdir is the fence.

    Raises FileNotFoundError where `attempts/` is not there.
    """
    numbers = (storage.parse_attempt_name(name) for name in list_uncached(root / storage.ATTEMPTS, files))
    return max((number for number in numbers if number is not None), default=0)


def read_fence(root: Path, attempt: int, files: Files = FILES) -> Fence | None:
    """The fence of an attempt; None where there is none, or an unfinished one."""
    try:
        return codec.loads(Fence, files.read(path_of(root, attempt)))
    except (FileNotFoundError, codec.InvalidDocument, UnicodeDecodeError):
        return None


def path_of(root: Path, attempt: int) -> Path:
    """Where the fence of an attempt is."""
    return _folder(root, attempt) / storage.FENCE


def raise_fence(root: Path, fence: Fence, files: Files = FILES) -> FenceResult:
    """R5: mkdir attempts/<n> and fence.json, durable; only then scan; take every older temporary directory away. The caller lists after it.

    The order is the proof: whoever makes a temporary directory after the mkdir sees the fence in its own look before it renames
    (R14); whoever made one before loses it to the take. Repeating it with the same intent is safe, and goes on where a crash ended it.

    A crash between mkdir and fence.json leaves a number that nobody owns yet. Any intent may finish it: fence.json is created
    exclusively and decides. The number is in the status of one intent only (R1), so this is the same one in practice.
    """
    files.make_dir_durably(root / storage.ATTEMPTS, exist_ok=True)
    before = highest(root, files)
    if before > fence.attempt:
        return FenceResult("higher", before)
    if not _enter(root, fence, files):
        return FenceResult("higher", fence.attempt)
    is_mine = _write_fence(root, fence, files)
    if is_mine is None:
        return FenceResult("higher", fence.attempt)
    taken = _take(root, fence.attempt, files)
    after = highest(root, files)
    if after > fence.attempt:
        return FenceResult("higher", after, taken)
    return FenceResult("mine" if is_mine else "raised", fence.attempt, taken)


def _enter(root: Path, fence: Fence, files: Files) -> bool:
    """mkdir; False if the number is another intent's."""
    try:
        files.make_dir_durably(_folder(root, fence.attempt))
    except FileExistsError:
        there = read_fence(root, fence.attempt, files)
        return there is None or _is_same(there, fence)
    return True


def _write_fence(root: Path, fence: Fence, files: Files) -> bool | None:
    """False: written now. True: it was there and is mine. None: another intent was first, or what is there cannot be read."""
    try:
        files.create_durably(path_of(root, fence.attempt), codec.dumps(fence).encode())
    except FileExistsError:
        there = read_fence(root, fence.attempt, files)
        return True if there is not None and _is_same(there, fence) else None
    return False


def _take(root: Path, attempt: int, files: Files) -> tuple[str, ...]:
    """R5: move away what older attempts have not committed. What is gone meanwhile was committed, and is listed after this."""
    old = [name for name in list_uncached(root, files) if _is_older(name, attempt)]
    if not old:
        return ()
    target = root / storage.FENCED / storage.attempt_name(attempt)
    files.make_dir_durably(target.parent, exist_ok=True)
    files.make_dir_durably(target, exist_ok=True)
    taken = tuple(name for name in old if _move(root / name, target, files))
    files.fsync(target)
    files.fsync(root)
    return taken


def _move(source: Path, folder: Path, files: Files) -> bool:
    for number in range(1, 1000):
        target = folder / (source.name if number == 1 else f"{source.name}.{number}")
        try:
            files.rename(source, target)
        except FileNotFoundError:
            return False
        except OSError as error:
            # A ghost made the directory anew after an earlier take of the same fence.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        else:
            return True
    raise OSError(errno.EEXIST, f"{folder} is full of {source.name}")


def _is_older(name: str, attempt: int) -> bool:
    parsed = storage.parse_temporary_name(name)
    return parsed is not None and parsed[1] < attempt


def _is_same(there: Fence, mine: Fence) -> bool:
    return there.intent_id == mine.intent_id and there.job_uid == mine.job_uid


def _folder(root: Path, attempt: int) -> Path:
    return root / storage.ATTEMPTS / storage.attempt_name(attempt)
