"""Writes a folder as a container image, in the archive format that both containerd and buildah read.

No tool is needed for an image of one layer, and none is as fast: the layer is written once and hashed on the way.
"""

import hashlib
import io
import json
import subprocess
import tarfile
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class ImageConfig:
    """What containers of an image run by default."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(
        default_factory=lambda: {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    )


def write_image(rootfs: Path, tag: str, config: ImageConfig, archive: Path) -> None:
    """Writes `rootfs` as the one layer of image `tag`, uncompressed: reading it costs more than keeping it."""
    layer = archive.with_name("layer.tar")
    pack = ("tar", "--create", "--sort=name", "--numeric-owner", "--xattrs", "--directory", str(rootfs), ".")
    with layer.open("wb") as out:
        subprocess.run(pack, stdout=out, check=True)
    with layer.open("rb") as packed:
        digest = hashlib.file_digest(packed, "sha256").hexdigest()
    settings = json.dumps(_settings(config, digest)).encode()
    settings_name = f"{hashlib.sha256(settings).hexdigest()}.json"
    manifest = [{"Config": settings_name, "RepoTags": [tag], "Layers": [f"{digest}.tar"]}]
    with tarfile.open(archive, "w") as out_tar:
        _add_bytes(out_tar, "manifest.json", json.dumps(manifest).encode())
        _add_bytes(out_tar, settings_name, settings)
        out_tar.add(layer, f"{digest}.tar")
    layer.unlink()


def _settings(config: ImageConfig, layer_digest: str) -> dict[str, object]:
    run_by_default = {
        "Entrypoint": list(config.entrypoint) or None,
        "Cmd": list(config.command) or None,
        "Env": [f"{name}={value}" for name, value in config.environment.items()],
    }
    return {
        "architecture": "amd64",
        "os": "linux",
        "config": run_by_default,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
    }


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
