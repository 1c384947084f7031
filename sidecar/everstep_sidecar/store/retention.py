"""R13, the sidecar's side: it deletes what the operator condemned in status, and nothing else; plus what nobody reads any more."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from everstep_protocol import codec, records, storage
from everstep_protocol.lineage import Lineage
from everstep_protocol.records import Manifest

from everstep_sidecar.store.files import FILES, Files
from everstep_sidecar.store.listing import list_uncached

KEEP_ATTEMPTS = 20

_ID = re.compile(r"[0-9a-f]{64}", re.ASCII)


def is_id(text: str) -> bool:
    """Whether this can be a manifest's id."""
    return _ID.fullmatch(text) is not None


def take_away(root: Path, identity: str, files: Files = FILES, *, where: str = "") -> None:
    """R13: rename the checkpoint with this manifest id to `.trash-<id>`, so that no half of it is ever listed. One that is gone is fine.

    `where`: the name under which it was last seen, looked at first: other checkpoints' directories do not matter then. One whose
    manifest is damaged is nobody's id and stays. Raises OSError: try again; ValueError for what is no id.
    """
    if not is_id(identity):
        raise ValueError(f"{identity!r} is not the id of a manifest")
    for name in _named(root, identity, where, files):
        empty_trash(root, identity, files)  # what an earlier try left has that name
        try:
            files.rename(root / name, trash_path(root, identity))
        except FileNotFoundError:
            if (root / name).exists():
                raise
            continue  # another sidecar was faster
        files.fsync(root)
        _restore(root, identity, files)  # here: whoever called may be gone by now, and nobody comes to empty it


def clean_up(root: Path, *, attempt: int, lineage: Lineage, files: Files = FILES) -> None:
    """R13: remove what nobody reads any more; for the coordinator of an attempt, after its first commit. May be repeated.

    All of it is tried. Raises the first OSError in the end.
    """
    parts: tuple[Callable[[], None], ...] = (
        partial(empty_fenced, root, below=attempt, files=files),
        partial(prune_attempts, root, lineage=lineage, files=files),
        partial(remove_trash, root, files=files),
    )
    _each(parts)


def remove_trash(root: Path, files: Files = FILES) -> None:
    """R13: what earlier deletions left. Only names that a deletion makes: a `.trash-` of somebody else stays."""
    _each(partial(empty_trash, root, identity, files) for identity in _trash_ids(root, files))


def restore_misplaced(root: Path, files: Files = FILES) -> None:
    """R13: put back what a deleter that slept took by mistake and died over; before anything is listed to resume from."""
    for identity in _trash_ids(root, files):
        _restore(root, identity, files)


def empty_fenced(root: Path, below: int, files: Files = FILES) -> None:
    """R13: remove what the fences of attempts below `below` took away; for its coordinator, after its first commit."""
    fenced = root / storage.FENCED
    _each(partial(files.remove_tree, fenced / name) for number, name in _attempts_in(fenced, files) if number < below)


def prune_attempts(root: Path, *, lineage: Lineage, files: Files = FILES) -> None:
    """PROTOCOL section 3: remove the records of attempts that are neither among the last 20, nor in the lineage, nor the highest."""
    attempts = sorted(_attempts_in(root / storage.ATTEMPTS, files))
    kept = {attempt for attempt, _ in lineage}
    old = [name for number, name in attempts[:-KEEP_ATTEMPTS] if number not in kept]
    _each(partial(files.remove_tree, root / storage.ATTEMPTS / name) for name in old)


def _each(deletions: Iterable[Callable[[], None]]) -> None:
    """Each stands alone: one that fails keeps none of the others. Raises the first OSError in the end."""
    first: OSError | None = None
    for delete in deletions:
        try:
            delete()
        except OSError as error:
            first = first or error
    if first is not None:
        raise first


def _named(root: Path, identity: str, where: str, files: Files) -> list[str]:
    """The directories with this id. Raises OSError where none is found and one could not be looked into: it may be that one."""
    if storage.parse_step_name(where) is not None:
        manifest = _manifest(root / where, files)
        if manifest is not None and manifest.id == identity:
            return [where]
    found: list[str] = []
    hidden: OSError | None = None
    for name in list_uncached(root, files):
        if storage.parse_step_name(name) is None:
            continue
        try:
            manifest = _manifest(root / name, files)
        except OSError as error:
            hidden = hidden or error
            continue
        if manifest is not None and manifest.id == identity:
            found.append(name)
    if hidden is not None and not found:
        raise hidden
    return found


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


def trash_path(root: Path, identity: str) -> Path:
    """Where a checkpoint lies while it is deleted."""
    return root / f"{storage.TRASH_PREFIX}{identity}"


def empty_trash(root: Path, identity: str, files: Files = FILES) -> None:
    """R13: remove `.trash-<id>`, its manifest last; but put back what is another checkpoint.

    A deleter that slept between its look and its rename may find that the name was deleted by another and given anew meanwhile.
    Raises OSError: not all of it is gone, try again.
    """
    if _restore(root, identity, files):
        return
    trash = trash_path(root, identity)
    for name in _names(trash, files):
        if name != storage.MANIFEST:
            files.remove_tree(trash / name)
    files.remove_tree(trash)
    if trash.exists():
        raise OSError(errno.EBUSY, "it is still there after its removal", str(trash))


def _restore(root: Path, identity: str, files: Files) -> bool:
    """Put back what lies in `.trash-<id>` and is another checkpoint; gives whether it was one."""
    trash = trash_path(root, identity)
    manifest = _manifest(trash, files)
    if manifest is None or manifest.id == identity:
        return False
    _put_back(root, trash, manifest, files)
    return True


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
