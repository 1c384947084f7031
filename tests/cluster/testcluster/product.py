"""The project's own image: its wheels by pip, its layers by buildah, without any network in the build."""

from collections.abc import Sequence
from pathlib import Path

from testcluster.cache import Cache, Part, key_of
from testcluster.images import PYTHON_TAG, Parts
from testcluster.shell import CONTAINED, run

# The Python and the C library of the base image, Debian trixie.
PYTHON_VERSION = "3.13"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64")


def download_wheels(requirements: Sequence[str], cache: Cache) -> Path:
    """A folder with the wheels of the requirements, and of theirs, for the base image's Python."""

    def build(folder: Path) -> None:
        platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
        only = ("--only-binary=:all:", "--python-version", PYTHON_VERSION, "--implementation", "cp")
        run("python3", "-m", "pip", "download", "--quiet", "--dest", folder, *only, *platforms, *requirements)

    return cache.get(Part("wheels", key_of(PYTHON_VERSION, PLATFORMS, *sorted(requirements)), build))


def build_product_image(context: Path, tag: str, *, cache: Cache, parts: Parts, archive: Path | None = None) -> Path:
    """Builds the `Dockerfile` in `context` on the local base image; returns the archive, ready for `load_image`.

    The build gets `--build-arg BASE=...` and no network: what it installs must lie in the context.
    """
    storage = _Storage(cache.get(storage_part(cache, parts)))
    archive = archive or cache.root / "product" / f"{key_of(tag)}.tar"
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)
    storage.buildah(
        "bud", "--isolation=chroot", "--pull-never", "--layers=false", "--build-arg", f"BASE={PYTHON_TAG}",
        "--tag", tag, context,
    )  # fmt: skip
    storage.buildah("push", "--disable-compression", tag, f"docker-archive:{archive}:{tag}")
    storage.buildah("rmi", tag)
    return archive


class _Storage:
    """A buildah storage of our own, which holds the base image: the host's is neither read nor filled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def buildah(self, *argv: str | Path) -> str:
        folders = ("--root", self._folder / "root", "--runroot", self._folder / "run")
        # buildah refuses --network=none with the only isolation that works without more rights: so it gets no network itself.
        return run(*CONTAINED, "unshare", "--net", "buildah", *folders, "--storage-driver=overlay", *argv)


def storage_part(cache: Cache, parts: Parts) -> Part:
    """A buildah storage that holds the base image."""
    base = parts.python_image(cache)

    def build(folder: Path) -> None:
        _Storage(folder).buildah("pull", f"docker-archive:{cache.get(base) / 'image.tar'}")

    return Part("buildah-storage", base.key, build)
