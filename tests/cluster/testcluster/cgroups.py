"""Our cgroups (version 1): made before a kubelet wants them, read to find processes, removed at the end."""

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
HIERARCHIES = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd")
# Control plane and node services join only these: staying in the root of `cpu` keeps pods from starving them.
TRACKED_HIERARCHIES = ("pids", "memory", "systemd")


def cgroup_folder(hierarchy: str, name: str) -> Path:
    return ROOT / hierarchy / name


def make_cgroup(name: str) -> None:
    """Makes a cgroup and its parents in every hierarchy there is, ready for processes."""
    for hierarchy in HIERARCHIES:
        if not (ROOT / hierarchy).is_dir():
            continue
        folder = cgroup_folder(hierarchy, name)
        folder.mkdir(parents=True, exist_ok=True)
        if hierarchy == "cpuset":
            _inherit_cpuset(folder)


def _inherit_cpuset(folder: Path) -> None:
    """A new cpuset is empty and takes no process; filled from its parent, outermost first."""
    if folder == ROOT / "cpuset":
        return
    _inherit_cpuset(folder.parent)
    for file in ("cpuset.cpus", "cpuset.mems"):
        if not (folder / file).read_text().strip():
            (folder / file).write_text((folder.parent / file).read_text())


def pids_below(name: str, hierarchy: str = "pids") -> list[int]:
    """The pids, as the host sees them, in a cgroup and all below it."""
    found: list[int] = []
    for file in cgroup_folder(hierarchy, name).rglob("cgroup.procs"):
        found.extend(read_pids(file))
    return found


def read_pids(file: Path) -> list[int]:
    try:
        return [int(line) for line in file.read_text().split()]
    except OSError:
        return []  # the cgroup went away between listing and reading


def remove_cgroup(name: str) -> None:
    """Removes a cgroup that holds no process any more, innermost first, in every hierarchy.

    That is in more than we made it in: runc also makes it in the `unified` one.
    """
    for hierarchy in ROOT.iterdir():
        folder = hierarchy / name
        if not folder.is_dir():
            continue
        for inner in sorted(folder.rglob("*/"), key=lambda path: len(path.parts), reverse=True):
            if inner.is_dir():
                inner.rmdir()
        folder.rmdir()
