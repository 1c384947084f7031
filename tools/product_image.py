"""Makes the product's image: `wheels` fills the build context, `build` makes an archive of the image on the local base.

Usage: product_image.py wheels | product_image.py build [--load]

`build` needs root and the test cluster's build cache; its last line is the image's tag. With `--load` the running test
cluster gets the image. For a registry of your own: `product_image.py wheels`, then `docker build .` with the public base.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
WHEELS = ROOT / "build" / "wheels"
REPOSITORY = "localhost/everstep"
EXTRAS = ("operator", "sidecar")

sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from testcluster.cache import file_lock  # noqa: E402
from testcluster.cluster import Cluster  # noqa: E402


def requirements() -> list[str]:
    """What the image needs from elsewhere: the extras of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return sorted({*project["dependencies"], *(line for extra in EXTRAS for line in extras[extra])})


def fill_context(cluster: Cluster) -> None:
    """Puts the project's wheel, built from this checkout, and its dependencies' into build/wheels."""
    shutil.rmtree(WHEELS, ignore_errors=True)
    WHEELS.mkdir(parents=True)
    for wheel in cluster.download_wheels(requirements()).glob("*.whl"):
        shutil.copy(wheel, WHEELS)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", WHEELS], cwd=ROOT, check=True, stdout=2
    )


@dataclass(frozen=True)
class Image:
    """A built image: `tag` changes whenever something in it does."""

    tag: str
    archive: Path


def build(cluster: Cluster) -> Image:
    """Builds the image from this checkout, unless it is there already."""
    with file_lock(ROOT / "build" / "image.lock"):
        fill_context(cluster)
        digest = _digest()
        image = Image(f"{REPOSITORY}:{digest}", ROOT / "build" / f"image-{digest}.tar")
        if not image.archive.exists():
            for old in image.archive.parent.glob("image-*.tar"):
                old.unlink()
            shutil.move(cluster.build_product_image(ROOT, image.tag), image.archive)
        return image


def _digest() -> str:
    parts = [ROOT / "Dockerfile", ROOT / "tools" / "unpack_wheels.py", *sorted(WHEELS.iterdir())]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.name.encode() + part.read_bytes())
    return digest.hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="product_image", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("act", choices=("wheels", "build"))
    parser.add_argument("--load", action="store_true", help="give it to the running test cluster")
    arguments = parser.parse_args()
    cluster = Cluster(quiet=False)
    if arguments.act == "wheels":
        fill_context(cluster)
        print(f"{WHEELS.relative_to(ROOT)} is filled; now: docker build --tag everstep:0.1.0 .")
        return
    image = build(cluster)
    if arguments.load:
        cluster.load_image(image.archive)
    print(image.tag)


if __name__ == "__main__":
    try:
        main()
    except PermissionError as error:
        sys.exit(f"product_image: {error}; as another user than root set EVERSTEP_CACHE to a folder of your own")
    except (RuntimeError, subprocess.CalledProcessError) as error:
        sys.exit(f"product_image: {error}")
