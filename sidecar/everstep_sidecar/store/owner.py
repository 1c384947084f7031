"""R11: storage has an owner, and an empty folder is not the same as one that was not mounted."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from everstep_protocol import codec, storage
from everstep_protocol.records import FORMAT, Owner

from everstep_sidecar.store.files import FILES, Files

_MAX_DEPTH_BELOW = 4


@dataclass(frozen=True)
class Claim:
    """`claimed`: the path had no owner. `ours`: this job's. `adopted`: a former job's of the same cluster, namespace and name.

    `former`: a former job's, which is not adopted yet. `missing`: no owner file, although status knows an attempt where it was to be
    claimed: not mounted, or another volume. `another`: somebody else's, or a folder above or below is; `where` says which.
    `damaged`: the owner file cannot be read as one.
    """

    outcome: Literal["claimed", "ours", "adopted", "former", "missing", "another", "damaged"]
    owner: Owner | None  # as it is on storage now
    where: Path | None = None  # the owner file that stands in the way


def job_uids(owner: Owner) -> frozenset[str]:
    """The UIDs whose checkpoints are this job's: its own and those it adopted."""
    return frozenset((owner.job_uid, *owner.adopted))


def claim(root: Path, owner: Owner, *, known: bool, mount: Path | None = None, files: Files = FILES) -> Claim:
    """R11: make this path ours, once, or say whose it is.

    `known`: status knows an attempt of this job, so the owner file must be there. `mount`: where the volume is mounted; folders
    between it and `root` may not belong to anybody. `root` is made where it does not exist and `known` is False.
    """
    judged = judge(root, owner, files)
    if judged.outcome == "former" and judged.owner is not None:
        return _adopt(root, owner, judged.owner, files)
    if known or judged.outcome != "missing":
        return judged
    neighbour = _owned_neighbour(root, mount, files)
    if neighbour is not None:
        return neighbour
    return _create(root, owner, mount, files)


def judge(root: Path, owner: Owner, files: Files = FILES) -> Claim:
    """R11: whose this path is, without changing anything: `ours`, `former`, `missing`, `another` or `damaged`."""
    found = _read(root / storage.OWNER, files)
    if found is None:
        return Claim("missing", None)
    if found == "damaged":
        return Claim("damaged", None, root / storage.OWNER)
    if _identity(found) != _identity(owner):
        return Claim("another", found, root / storage.OWNER)
    if found.job_uid == owner.job_uid:
        return Claim("ours", found)
    if owner.job_uid in found.adopted:
        # A pod of a former job with our name: its job was deleted and made anew since.
        return Claim("another", found, root / storage.OWNER)
    return Claim("former", found)


def _adopt(root: Path, owner: Owner, found: Owner, files: Files) -> Claim:
    former = tuple(dict.fromkeys((*found.adopted, found.job_uid)))
    adopting = dataclasses.replace(owner, format=FORMAT, adopted=former)
    files.write_durably(root / storage.OWNER, codec.dumps(adopting).encode())
    return Claim("adopted", adopting)


def _create(root: Path, owner: Owner, mount: Path | None, files: Files) -> Claim:
    _make_root(root, mount, files)
    fresh = dataclasses.replace(owner, format=FORMAT, adopted=())
    try:
        files.create_durably(root / storage.OWNER, codec.dumps(fresh).encode())
    except FileExistsError:
        return claim(root, owner, known=True, mount=mount, files=files)
    return Claim("claimed", fresh)


def _make_root(root: Path, mount: Path | None, files: Files) -> None:
    """The folders down to `root`; with `mount`, none of them may be a symbolic link and the mount itself is never made."""
    if mount is not None:
        for folder in _between(root, mount):
            if folder.is_symlink():
                raise NotADirectoryError(errno.ENOTDIR, "is a symbolic link", str(folder))
            files.make_dir_durably(folder, exist_ok=True)
    elif not root.is_dir():
        _make_root(root.parent, None, files)
        files.make_dir_durably(root, exist_ok=True)


def _between(root: Path, mount: Path) -> list[Path]:
    """The folders below `mount` down to `root`, outermost first."""
    parts = root.relative_to(mount).parts
    return [mount.joinpath(*parts[: i + 1]) for i in range(len(parts))]


def _owned_neighbour(root: Path, mount: Path | None, files: Files) -> Claim | None:
    """A folder above or below that has an owner: two jobs would share one tree."""
    above = [] if mount is None else [mount, *_between(root, mount)[:-1]]
    for folder in (*(folder for folder in above if folder != root), *_folders_below(root)):
        found = _read(folder / storage.OWNER, files)
        if found is not None:
            return Claim("another", found if isinstance(found, Owner) else None, folder / storage.OWNER)
    return None


def _folders_below(root: Path) -> Iterator[Path]:
    for folder, folders, _ in os.walk(root):
        depth = len(Path(folder).relative_to(root).parts)
        folders[:] = [name for name in folders if depth < _MAX_DEPTH_BELOW and storage.parse_step_name(name) is None]
        if depth:
            yield Path(folder)


def _read(path: Path, files: Files) -> Owner | Literal["damaged"] | None:
    try:
        return codec.loads(Owner, files.read(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (codec.InvalidDocument, UnicodeDecodeError):
        return "damaged"


def _identity(owner: Owner) -> tuple[str, str, str]:
    return owner.cluster_uid, owner.namespace, owner.name
