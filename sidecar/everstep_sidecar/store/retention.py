"""R13, the sidecar's side: it deletes what the operator condemned in status, and nothing else; plus what nobody reads any more."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from everstep_protocol import codec, records, storage
from everstep_protocol.lineage import Lineage

from everstep_sidecar.store.files import FILES, Files
from everstep_sidecar.store.listing import list_uncached

KEEP_ATTEMPTS = 20

_ID = re.compile(r"[0-9a-f]{64}", re.ASCII)


def delete_condemned(root: Path, ids: Iterable[str], files: Files = FILES) -> tuple[str, ...]:
    """R13: delete the checkpoints with these manifest ids; gives those that are gone, also if they were gone before.

    Each is renamed to `.trash-<id>` first, so that no half of it is ever listed, then removed. Leftovers of earlier deletions are
    removed too. A directory whose manifest cannot be read is nobody's id and stays. Raises OSError: try again.
    """
    wanted = {text for text in ids if _ID.fullmatch(text)}
    remove_trash(root, files)
    if not wanted:
        return ()
    for name in list_uncached(root, files):
        if storage.parse_step_name(name) is None:
            continue
        identity = _identity(root / name, files)
        if identity in wanted:
            _trash(root, name, identity, files)
    return tuple(sorted(wanted))


def remove_trash(root: Path, files: Files = FILES) -> None:
    """R13: what earlier deletions left. Only names that a deletion makes: a `.trash-` of somebody else stays."""
    for name in files.list_names(root):
        if name.startswith(storage.TRASH_PREFIX) and _ID.fullmatch(name[len(storage.TRASH_PREFIX) :]):
            files.remove_tree(root / name)


def empty_fenced(root: Path, below: int, files: Files = FILES) -> None:
    """R13: remove what the fences of attempts below `below` took away; for its coordinator, after its first commit."""
    for number, name in _attempts_in(root / storage.FENCED, files):
        if number < below:
            files.remove_tree(root / storage.FENCED / name)


def prune_attempts(root: Path, *, lineage: Lineage, files: Files = FILES) -> None:
    """PROTOCOL section 3: remove the records of attempts that are neither among the last 20, nor in the lineage, nor the highest."""
    attempts = sorted(_attempts_in(root / storage.ATTEMPTS, files))
    kept = {attempt for attempt, _ in lineage}
    for number, name in attempts[:-KEEP_ATTEMPTS]:
        if number not in kept:
            files.remove_tree(root / storage.ATTEMPTS / name)


def _attempts_in(folder: Path, files: Files) -> list[tuple[int, str]]:
    try:
        names = files.list_names(folder)
    except FileNotFoundError:
        return []
    numbered = ((storage.parse_attempt_name(name), name) for name in names)
    return [(number, name) for number, name in numbered if number is not None]


def _identity(directory: Path, files: Files) -> str | None:
    try:
        return records.parse_manifest(files.read(directory / storage.MANIFEST)).id
    except (FileNotFoundError, NotADirectoryError, codec.InvalidDocument, UnicodeDecodeError):
        return None


def _trash(root: Path, name: str, identity: str, files: Files) -> None:
    trash = root / f"{storage.TRASH_PREFIX}{identity}"
    try:
        files.rename(root / name, trash)
    except FileNotFoundError:
        return  # another sidecar was faster
    files.fsync(root)
    files.remove_tree(trash)
