"""Builds, or takes from the cache, everything that a cluster is made of."""

import shutil
from pathlib import Path

from testcluster.cache import Cache, Part
from testcluster.debian import install_host_packages
from testcluster.golang import PROGRAMS, program_part
from testcluster.images import ROOTFS_NAMES, Parts
from testcluster.layout import Layout
from testcluster.product import storage_part
from testcluster.shell import Progress


class Builder:
    """The parts of one cache; every method returns at once when its part is already there."""

    def __init__(self, layout: Layout, progress: Progress) -> None:
        self.cache = Cache(layout.cache, progress)
        self.parts = Parts(layout.cache / "logs")
        self._logs = layout.cache / "logs"
        self._progress = progress

    def host_packages(self) -> None:
        install_host_packages(self._progress)

    def programs(self) -> dict[str, Path]:
        """Each Go program by its name."""
        found: dict[str, Path] = {}
        for program in PROGRAMS:
            folder = self.cache.get(program_part(program, self._logs))
            found |= {binary: folder / binary for binary in program.commands}
        return found

    def seed(self) -> Path:
        """The containerd root that nodes start from, with all images in it."""
        return self.cache.get(self.parts.seed(self.cache))

    def torch_version(self, rootfs_name: str) -> str:
        """What the suite gave us on the day it was built."""
        versions = self.cache.get(self.parts.rootfs(rootfs_name)) / "versions.txt"
        return versions.read_text().splitlines()[0]

    def everything(self) -> None:
        """All that `up` needs, told step by step."""
        self.host_packages()
        self.programs()
        self.seed()
        self._progress.say(f"torch-new has {self.torch_version('torch-new')}; all is in {self.cache.root}")

    def prune(self) -> None:
        """Removes from the cache what older recipes made; wheels and product images stay."""
        current = self._current_parts()
        for folder in self.cache.superseded(current):
            with self._progress.step(f"removing {folder.name}"):
                shutil.rmtree(folder)

    def _current_parts(self) -> list[Part]:
        parts = [program_part(program, self._logs) for program in PROGRAMS]
        parts += [self.parts.rootfs(name) for name in ROOTFS_NAMES]
        parts += [self.parts.pause_image(), self.parts.python_image(self.cache), self.parts.torch_new_image(self.cache)]
        return [*parts, self.parts.seed(self.cache), storage_part(self.cache, self.parts)]

    def torch_old(self) -> None:
        """The oldest supported torch, which only the library's tests need."""
        self.host_packages()
        self._progress.say(f"torch-old has {self.torch_version('torch-old')}")
