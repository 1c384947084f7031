"""Runs programs inside a Debian system of the cache, so that tests of the library use its torch without any on the host."""

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from testcluster.cache import Cache
from testcluster.images import Parts
from testcluster.layout import Layout
from testcluster.shell import CONTAINED, Progress

# What is written goes to memory and is gone afterwards: the cached system also serves as image layer and stays as it is.
_ENTER = """
lower=$1 inside=$2 binds=$3; shift 3
mount -t tmpfs scratch "$inside"
mkdir "$inside/upper" "$inside/work" "$inside/root"
mount -t overlay rootfs -o "lowerdir=$lower,upperdir=$inside/upper,workdir=$inside/work" "$inside/root"
root=$inside/root
mount -t proc proc "$root/proc"
mount -t tmpfs tmp "$root/tmp"
mount -t tmpfs dev "$root/dev"
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm"; mount -t tmpfs shm "$root/dev/shm"; chmod 1777 "$root/dev/shm" "$root/tmp"
ln -s /proc/self/fd "$root/dev/fd"
# torch looks up its own host name and `localhost`; a bare system knows neither.
printf '127.0.0.1 localhost %s\n' "$(hostname)" >"$root/etc/hosts"
eval "$binds"
cd /
exec chroot "$root" "$@"
"""

_DEFAULT_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def rootfs_folder(name: str, layout: Layout | None = None) -> Path:
    """The folder of system `python`, `torch-new` or `torch-old`, built first if it is not there."""
    layout = layout or Layout.from_environment()
    cache = Cache(layout.cache, Progress(quiet=True))
    return cache.get(Parts(layout.cache / "logs").rootfs(name)) / "rootfs"


def command_in_rootfs(rootfs: Path, argv: Sequence[str], binds: Mapping[Path, str]) -> list[str]:
    """The command line that runs `argv` in a throw-away copy of a system; for callers that want their own Popen."""
    mounts = "\n".join(_bind_line(source, target) for source, target in binds.items()) or ":"
    return [*CONTAINED, "/bin/sh", "-euc", _ENTER, "sh", str(rootfs), "/mnt", mounts, *argv]


def _bind_line(source: Path, target: str) -> str:
    host = shlex.quote(str(source.resolve()))
    inside = '"$root"' + shlex.quote("/" + target.lstrip("/"))
    make = f"mkdir -p {inside}" if source.is_dir() else f"mkdir -p $(dirname {inside}); touch {inside}"
    return f"{make}; mount --bind {host} {inside}"


def run_in_rootfs(
    name: str,
    argv: Sequence[str],
    *,
    binds: Mapping[Path, str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Runs `argv` as root inside system `name` and returns its result, failed or not.

    `binds` maps host paths to paths inside, writable. `env` is added to a small default environment; the host's is not
    passed on. Everything dies with the call: a timeout leaves neither processes nor mounts.
    """
    command = command_in_rootfs(rootfs_folder(name), argv, binds or {})
    return subprocess.run(
        command,
        env=_DEFAULT_ENVIRONMENT | dict(env or {}),
        timeout=timeout,
        check=False,
        text=True,
        capture_output=True,
    )
