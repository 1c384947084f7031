"""The system calls on storage, each a step that tests can record, interrupt or hold up (`before`). Nothing here decides anything."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Callable
from pathlib import Path

from everstep_sidecar.store import steps

Before = Callable[[str, Path], None]

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class Files:
    """A thin layer over `os`. `before(verb, path)` is called before each step and may raise or wait."""

    def __init__(self, before: Before | None = None) -> None:
        self._before = before

    def step(self, verb: str, path: Path) -> None:
        """Announce a step that is about to happen."""
        steps.note(verb, path)
        if self._before is not None:
            self._before(verb, path)

    def make_dir(self, path: Path) -> None:
        """mkdir, exclusive: FileExistsError if there is anything of that name."""
        self.step("mkdir", path)
        path.mkdir()

    def list_names(self, folder: Path) -> list[str]:
        """All names in a folder, sorted."""
        self.step("list", folder)
        return sorted(os.listdir(folder))  # noqa: PTH208 - names are wanted, not paths

    def read(self, path: Path) -> bytes:
        """A whole file."""
        self.step("read", path)
        return path.read_bytes()

    def write(self, path: Path, content: bytes) -> None:
        """Write a whole file; it is durable after `fsync`."""
        self.step("write", path)
        path.write_bytes(content)

    def fsync(self, path: Path) -> None:
        """Make a file's content, or a folder's entries, durable."""
        self.step("fsync", path)
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, source: Path, target: Path) -> None:
        """One atomic rename; durable after `fsync` of both folders."""
        self.step("rename", source)
        source.rename(target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name: exclusive, and the content is there with the name."""
        self.step("link", target)
        os.link(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file, or an empty folder; nothing there is fine."""
        self.step("remove", path)
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(path.lstat().st_mode):
                path.rmdir()
            else:
                path.unlink()

    def make_dir_durably(self, path: Path, *, exist_ok: bool = False) -> None:
        """mkdir, then fsync of its parent."""
        try:
            self.make_dir(path)
        except FileExistsError:
            if not exist_ok:
                raise
            return
        self.fsync(path.parent)

    def write_durably(self, path: Path, content: bytes) -> None:
        """Temporary name, fsync, rename, fsync of the folder: readers see the old content or the new, whole, also after a power cut."""
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            self.write(temporary, content)
            self.fsync(temporary)
            self.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                self.remove(temporary)
            raise
        self.fsync(path.parent)

    def create_durably(self, path: Path, content: bytes) -> None:
        """As `write_durably`, but raises FileExistsError if the name is there: of two who try, one succeeds.

        A hard link gives exclusiveness and whole content at once. Where the file system has none, exclusive open; then a power cut can
        leave an empty file.
        """
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        self.write(temporary, content)
        try:
            self.fsync(temporary)
            self._link_or_create(temporary, path, content)
        finally:
            with contextlib.suppress(OSError):
                self.remove(temporary)
        self.fsync(path.parent)

    def _link_or_create(self, temporary: Path, path: Path, content: bytes) -> None:
        try:
            self.link(temporary, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with path.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())

    def remove_tree(self, path: Path) -> None:
        """Remove a folder and all in it, without following links; nothing there is fine."""
        try:
            names = self.list_names(path) if stat.S_ISDIR(path.lstat().st_mode) else []
        except FileNotFoundError:
            return
        for name in names:
            self.remove_tree(path / name)
        self.remove(path)


FILES = Files()
