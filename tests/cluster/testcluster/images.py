"""The images that are built here, as archives and as containerd roots that nodes start from."""

from dataclasses import dataclass
from pathlib import Path

from testcluster.archive import ImageConfig, write_image
from testcluster.cache import Cache, Part, key_of
from testcluster.debian import System, python_system, system_part, torch_new_system, torch_old_system
from testcluster.shell import CONTAINED, run, run_logged

PAUSE_SOURCE = Path(__file__).parents[1] / "images" / "pause.c"

PAUSE_TAG = "localhost/everstep-pause:1"
PYTHON_TAG = "localhost/everstep-python:trixie"
TORCH_NEW_TAG = "localhost/everstep-trainer:torch-new"

_SYSTEMS = {"python": python_system, "torch-new": torch_new_system, "torch-old": torch_old_system}
ROOTFS_NAMES = tuple(_SYSTEMS)

# Starts a containerd over folder $1, imports the archives after it, and stops it in good order.
_IMPORT = """
folder=$1; shift
socket=$folder/run/containerd.sock
containerd --config "$folder/config.toml" &
until ctr --address "$socket" version >/dev/null 2>&1; do kill -0 $!; sleep 0.05; done
for archive; do ctr --address "$socket" --namespace k8s.io images import "$archive"; done
kill -TERM $!
wait $! || true
"""

_SEED_CONFIG = """\
version = 2
root = "{folder}/root"
state = "{folder}/run"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{folder}/run/containerd.sock"
"""


@dataclass(frozen=True)
class Parts:
    """Every part made from Debian, by what it is for."""

    logs: Path

    def rootfs(self, name: str) -> Part:
        """The system called `python`, `torch-new` or `torch-old`."""
        if name not in _SYSTEMS:
            raise ValueError(f"no rootfs is called {name!r}; there are {', '.join(_SYSTEMS)}")
        return system_part(_SYSTEMS[name](), self.logs)

    def pause_image(self) -> Part:
        return Part("image-pause", key_of(PAUSE_SOURCE.read_text(), PAUSE_TAG), _build_pause)

    def python_image(self, cache: Cache) -> Part:
        return self._image(cache, python_system(), PYTHON_TAG)

    def torch_new_image(self, cache: Cache) -> Part:
        return self._image(cache, torch_new_system(), TORCH_NEW_TAG)

    def _image(self, cache: Cache, system: System, tag: str) -> Part:
        source = system_part(system, self.logs)

        def build(folder: Path) -> None:
            write_image(cache.get(source) / "rootfs", tag, ImageConfig(), folder / "image.tar")

        return Part(system.name.replace("rootfs", "image"), key_of(source.folder_name, tag), build)

    def seed(self, cache: Cache) -> Part:
        """A stopped containerd root that holds all images; nodes get hard-linked copies of it."""
        images = (self.pause_image(), self.python_image(cache), self.torch_new_image(cache))

        def build(folder: Path) -> None:
            _build_seed([cache.get(image) / "image.tar" for image in images], folder, self.logs / "seed.log")

        return Part("containerd-seed", key_of(*(image.folder_name for image in images)), build)


def _build_pause(folder: Path) -> None:
    rootfs = folder / "rootfs"
    rootfs.mkdir()
    run("gcc", "-Os", "-static", "-o", rootfs / "pause", PAUSE_SOURCE)
    write_image(rootfs, PAUSE_TAG, ImageConfig(entrypoint=("/pause",)), folder / "image.tar")


def _build_seed(archives: list[Path], folder: Path, log: Path) -> None:
    (folder / "config.toml").write_text(_SEED_CONFIG.format(folder=folder))
    log.unlink(missing_ok=True)
    run_logged(*CONTAINED, "/bin/sh", "-euc", _IMPORT, "sh", folder, *archives, log=log)
    run("rm", "-rf", folder / "run")


def clone_containerd_root(seed: Path, target: Path) -> None:
    """Gives a node its containerd root: files shared by hard links, databases of its own.

    Containers write into layers of their own, so nothing in the shared files ever changes.
    """
    try:
        run("cp", "--archive", "--link", seed / "root", target)
    except RuntimeError:  # another file system: a real copy, cheap where it can share blocks
        run("rm", "-rf", target)
        run("cp", "--archive", "--reflink=auto", seed / "root", target)
    for database in target.rglob("*.db"):
        own = database.with_suffix(".own")
        run("cp", "--preserve=mode", database, own)
        own.rename(database)
