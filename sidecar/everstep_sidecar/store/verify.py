"""R17: each member hashes its share of the checkpoint that is about to be loaded, which brings it into the page cache as well."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from everstep_protocol import codec, records, storage
from everstep_protocol.plan import Resume
from everstep_protocol.records import FileRecord

from everstep_sidecar.store.files import FILES, Files
from everstep_sidecar.store.hashing import hash_file


@dataclass(frozen=True)
class Share:
    """`mismatched`: contents that differ from the manifest: the checkpoint is bad. `missing`: not seen here, or not yet (NFS): never bad for that."""

    mismatched: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    num_bytes: int = 0

    @property
    def is_bad(self) -> bool:
        """Whether its id is to be reported."""
        return bool(self.mismatched)

    @property
    def ok(self) -> bool:
        """Whether this share may be loaded."""
        return not self.mismatched and not self.missing


def verify_share(
    root: Path,
    resume: Resume,
    *,
    index: int,
    count: int,
    files: Files = FILES,
) -> Share:
    """R17: hash files i with i % count == index against the manifest; `.metadata` is the last of them.

    A resume of kind `none` or `import` has no manifest: nothing to hash. Raises OSError where the storage does not answer.
    """
    if resume.kind != "checkpoint":
        return Share()
    folder = root / resume.dir
    try:
        manifest = records.parse_manifest(files.read(folder / storage.MANIFEST))
    except FileNotFoundError:
        return Share(missing=(storage.MANIFEST,))
    except (codec.InvalidDocument, UnicodeDecodeError):
        return Share(mismatched=(storage.MANIFEST,))
    if manifest.id != resume.id:
        return Share(mismatched=(storage.MANIFEST,))
    mine = (*manifest.files, manifest.metadata)[index::count]
    return _summary([(record, _look(folder, record, files)) for record in mine])


def _look(folder: Path, record: FileRecord, files: Files) -> FileRecord | None:
    files.step("hash", folder / record.name)
    try:
        return hash_file(folder / record.name)
    except FileNotFoundError:
        return None


def _summary(looks: list[tuple[FileRecord, FileRecord | None]]) -> Share:
    return Share(
        mismatched=tuple(record.name for record, seen in looks if seen is not None and seen != record),
        missing=tuple(record.name for record, seen in looks if seen is None),
        num_bytes=sum(seen.bytes for _, seen in looks if seen is not None),
    )
