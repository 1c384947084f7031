"""The build cache: a part is built once, under a lock, and appears only when it is whole."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testcluster.shell import Progress


@dataclass(frozen=True)
class Part:
    """Something to build: `key` says from what, so that another recipe is another folder."""

    name: str
    key: str
    build: Callable[[Path], None]

    @property
    def folder_name(self) -> str:
        return f"{self.name}-{self.key}"


def key_of(*ingredients: object) -> str:
    """A short name for a recipe: the same ingredients in the same order give the same key."""
    text = json.dumps([str(ingredient) for ingredient in ingredients])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@contextmanager
def file_lock(file: Path, *, busy: str | None = None) -> Iterator[None]:
    """Holds an exclusive lock; waits for it, or raises `RuntimeError(busy)` at once when `busy` is given."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take_lock(descriptor, busy)
        yield
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int, busy: str | None) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
    except BlockingIOError as error:
        raise RuntimeError(busy) from error


class Cache:
    """A folder of finished parts; anything unfinished lies in `unfinished/` and is thrown away."""

    def __init__(self, root: Path, progress: Progress) -> None:
        self.root = root
        self.progress = progress

    def path(self, part: Part) -> Path:
        return self.root / part.folder_name

    def has(self, part: Part) -> bool:
        return self.path(part).is_dir()

    def superseded(self, current: Sequence[Part]) -> list[Path]:
        """The folders that hold one of these parts, finished or not, as another recipe made it."""
        kept = {part.folder_name for part in current}
        prefixes = tuple(f"{part.name}-" for part in current)
        folders = (folder for place in (self.root, self.root / "unfinished") for folder in place.glob("*/"))
        return sorted(folder for folder in folders if folder.name.startswith(prefixes) and folder.name not in kept)

    def get(self, part: Part) -> Path:
        """The folder of a part, built first if it is not there."""
        finished = self.path(part)
        if finished.is_dir():
            return finished
        with file_lock(self.root / "locks" / part.name):
            if not finished.is_dir():  # another run may have built it while we waited
                self._build(part, finished)
        return finished

    def _build(self, part: Part, finished: Path) -> None:
        unfinished = self.root / "unfinished" / part.folder_name
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(parents=True)
        with self.progress.step(f"building {part.name}"):
            part.build(unfinished)
            unfinished.rename(finished)
