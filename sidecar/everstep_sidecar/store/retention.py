"""R13, the sidecar's side: it deletes what the operator condemned in status, and nothing else; plus what nobody reads any more."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from pathlib import Path

from everstep_protocol import codec, records, storage
from everstep_protocol.lineage import Lineage
from everstep_protocol.records import Manifest

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
        manifest = _manifest(root / name, files)
        if manifest is not None and manifest.id in wanted:
            _trash(root, name, manifest.id, files)
    return tuple(sorted(wanted))


def remove_trash(root: Path, files: Files = FILES) -> None:
    """R13: what earlier deletions left. Only names that a deletion makes: a `.trash-` of somebody else stays."""
    for identity in _trash_ids(root, files):
        _empty_trash(root, identity, files)


def restore_misplaced(root: Path, files: Files = FILES) -> None:
    """R13: put back what a deleter that slept took by mistake and died over; before anything is listed to resume from."""
    for identity in _trash_ids(root, files):
        trash = root / f"{storage.TRASH_PREFIX}{identity}"
        manifest = _manifest(trash, files)
        if manifest is not None and manifest.id != identity:
            _put_back(root, trash, manifest, files)


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


def _manifest(directory: Path, files: Files) -> Manifest | None:
    try:
        return records.parse_manifest(files.read(directory / storage.MANIFEST))
    except (FileNotFoundError, NotADirectoryError, codec.InvalidDocument, UnicodeDecodeError):
        return None


def _trash(root: Path, name: str, identity: str, files: Files) -> None:
    try:
        files.rename(root / name, root / f"{storage.TRASH_PREFIX}{identity}")
    except FileNotFoundError:
        return  # another sidecar was faster
    files.fsync(root)
    _empty_trash(root, identity, files)


def _empty_trash(root: Path, identity: str, files: Files) -> None:
    """R13: remove `.trash-<id>`, its manifest last; but put back what is another checkpoint.

    A deleter that slept between its look and its rename may find that the name was deleted by another and given anew meanwhile.
    """
    trash = root / f"{storage.TRASH_PREFIX}{identity}"
    manifest = _manifest(trash, files)
    if manifest is not None and manifest.id != identity:
        _put_back(root, trash, manifest, files)
        return
    for name in _names(trash, files):
        if name != storage.MANIFEST:
            files.remove_tree(trash / name)
    files.remove_tree(trash)


def _put_back(root: Path, trash: Path, manifest: Manifest, files: Files) -> None:
    names = (storage.step_name(manifest.step), storage.step_name_of_attempt(manifest.step, manifest.attempt))
    for name in names:
        if not (root / name).exists():
            files.rename(trash, root / name)
            files.fsync(root)
            return
    raise FileExistsError(errno.EEXIST, f"{trash} holds checkpoint {manifest.id}, whose names {names} are taken")


def _trash_ids(root: Path, files: Files) -> list[str]:
    ids = (
        name[len(storage.TRASH_PREFIX) :] for name in files.list_names(root) if name.startswith(storage.TRASH_PREFIX)
    )
    return [text for text in ids if _ID.fullmatch(text)]


def _names(folder: Path, files: Files) -> list[str]:
    try:
        return files.list_names(folder)
    except FileNotFoundError:
        return []
