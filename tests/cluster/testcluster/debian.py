"""Debian's part: packages on this machine, and small Debian systems in folders."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from testcluster.aptsources import debian_mirror
from testcluster.cache import Part, key_of
from testcluster.shell import CONTAINED, CommandError, Progress, run, run_logged

# package -> a file of it, looked for so that nothing is asked of apt when all is there.
HOST_PACKAGES = {
    "containerd": "/usr/bin/containerd",
    "runc": "/usr/sbin/runc",
    "containernetworking-plugins": "/usr/lib/cni/ptp",
    "buildah": "/usr/bin/buildah",
    "debootstrap": "/usr/sbin/debootstrap",
    "iptables": "/usr/sbin/iptables",
    "nftables": "/usr/sbin/nft",
    "iproute2": "/usr/sbin/ip",
    "conntrack": "/usr/sbin/conntrack",
    "ethtool": "/usr/sbin/ethtool",
    "socat": "/usr/bin/socat",
    "util-linux": "/usr/bin/unshare",
    "procps": "/usr/bin/pgrep",
    "gcc": "/usr/bin/gcc",
    "libc6-dev": "/usr/include/stdio.h",
    "openssl": "/usr/bin/openssl",
}

TRIMMED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/lintian",
    "var/lib/apt/lists",
    "var/cache/apt",
    "var/log",
    "tmp",
)

# Debian's torch carries the module but not always the command.
TORCHRUN = "#!/usr/bin/python3\nimport sys\nfrom torch.distributed.run import main\n\nsys.exit(main())\n"


# Appended to torch.distributed; says itself why.
WITHOUT_LIBUV = Path(__file__).parents[1] / "images" / "without_libuv.py"
TORCH_DISTRIBUTED = "usr/lib/python3/dist-packages/torch/distributed/__init__.py"


@dataclass(frozen=True)
class System:
    """A small Debian: `moving` suites (testing) change, and cannot be built on every day."""

    name: str
    suite: str
    packages: tuple[str, ...]
    moving: bool = False
    script: str | None = None

    @property
    def has_torch(self) -> bool:
        return "python3-torch" in self.packages


TORCH_PACKAGES = ("python3", "python3-torch", "libopenblas0-pthread", "ca-certificates")


def python_system() -> System:
    return System("rootfs-python", "trixie", ("python3", "ca-certificates"))


def torch_new_system() -> System:
    suite = os.environ.get("EVERSTEP_TORCH_SUITE", "forky")
    return System("rootfs-torch-new", suite, TORCH_PACKAGES, moving=True, script="sid")


def torch_old_system() -> System:
    return System("rootfs-torch-old", "trixie", TORCH_PACKAGES)


def install_host_packages(progress: Progress) -> None:
    """Installs the Debian packages that this machine lacks."""
    missing = [package for package, file in HOST_PACKAGES.items() if not Path(file).exists()]
    if not missing:
        return
    with progress.step(f"installing {', '.join(missing)}"):
        quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        run("apt-get", "update", "-q", env=quiet)
        run("apt-get", "install", "-y", "-q", "--no-install-recommends", *missing, env=quiet)
        _stop_host_containerd()


def _stop_host_containerd() -> None:
    """The package starts its service where systemd runs; our nodes have containerds of their own."""
    if Path("/run/systemd/system").is_dir():
        run("systemctl", "disable", "--now", "containerd", check=False)


def system_part(system: System, logs: Path) -> Part:
    """The part whose folder holds `rootfs/` and `versions.txt`."""
    additions = (TORCHRUN, WITHOUT_LIBUV.read_text()) if system.has_torch else ()
    recipe = key_of(system.suite, system.packages, TRIMMED, *additions)
    return Part(system.name, f"{system.suite}-{recipe}", lambda folder: _build_system(system, folder, logs))


def _build_system(system: System, folder: Path, logs: Path) -> None:
    rootfs = folder / "rootfs"
    logs.mkdir(parents=True, exist_ok=True)
    try:
        _debootstrap(system, rootfs, logs / f"{system.name}.log")
        versions = run("chroot", rootfs, "dpkg-query", "-W")
        if system.has_torch:
            _add_torchrun(rootfs)
            _do_without_libuv(rootfs)
            versions = f"torch {_try_torch(rootfs)}\n{versions}"
    except CommandError as error:
        raise _explained(system, error) from error
    (folder / "versions.txt").write_text(versions)
    _trim(rootfs)


def _debootstrap(system: System, rootfs: Path, log: Path) -> None:
    log.unlink(missing_ok=True)
    script = [Path("/usr/share/debootstrap/scripts") / system.script] if system.script else []
    packages = ",".join(system.packages)
    options = ("--variant=minbase", f"--include={packages}", system.suite)
    run_logged(*CONTAINED, "debootstrap", *options, rootfs, debian_mirror(), *script, log=log)


def _add_torchrun(rootfs: Path) -> None:
    command = rootfs / "usr/bin/torchrun"
    if not command.exists():
        command.write_text(TORCHRUN)
        command.chmod(0o755)


def _do_without_libuv(rootfs: Path) -> None:
    with (rootfs / TORCH_DISTRIBUTED).open("a") as module:
        module.write(f"\n\n{WITHOUT_LIBUV.read_text()}")


def _try_torch(rootfs: Path) -> str:
    """The version of the torch in a system, after everything that trainers need of it has been imported."""
    tried = "import asyncio, json, torch.distributed.fsdp, torch.distributed.checkpoint; print(torch.__version__)"
    # The last line: libraries that miss /proc complain on standard output first.
    return run("chroot", rootfs, "python3", "-c", tried).splitlines()[-1]


def _explained(system: System, error: CommandError) -> CommandError:
    if not system.moving:
        return CommandError(f"{system.name} could not be built from Debian {system.suite}:\n{error}")
    return CommandError(
        f"{system.name} could not be built: Debian {system.suite} is a moving suite, and some days its packages do not "
        f"fit together. Build again later, or from another suite with EVERSTEP_TORCH_SUITE=sid (or testing), or copy "
        f"the finished {system.name}-* folder from another machine's cache.\n{error}"
    )


def _trim(rootfs: Path) -> None:
    for name in TRIMMED:
        folder = rootfs / name
        if not folder.is_dir():
            continue
        for inner in folder.iterdir():
            if inner.is_dir() and not inner.is_symlink():
                shutil.rmtree(inner)
            else:
                inner.unlink()
