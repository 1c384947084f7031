"""Runs outside a cluster: they save what stock `dcp.save` would write into a folder, one after the other."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everstep.folder import FolderPlace
from everstep_protocol import storage
from store_support import stock


@contextmanager
def run(folder: Path, *, keep_last: int = 3) -> Iterator[FolderPlace]:
    """A run of one rank, open but not resumed."""
    place = FolderPlace(folder, rank=0, keep_last=keep_last, world=1)
    place.open()
    yield place
    place.close()


def save(place: FolderPlace, *steps: int) -> None:
    for step in steps:
        stock.make_stock_checkpoint(place.make(step), world=1)
        place.publish(step, 0)


def train(folder: Path, *steps: int, keep_last: int = 3) -> tuple[Path, int] | None:
    """One run that saves these steps; what it resumed from."""
    with run(folder, keep_last=keep_last) as place:
        found = place.resume()
        save(place, *steps)
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != storage.LOCK)


def damage(directory: Path) -> bytes:
    """Make it refused; gives what was in the file."""
    data = (directory / "__0_0.distcp").read_bytes()
    (directory / "__0_0.distcp").write_bytes(b"cut")
    return data
