"""Takes everything away, whatever state a run was left in: called before `up`, by `down`, and after a failed `up`."""

import shutil
from pathlib import Path

from testcluster.cgroups import remove_cgroup
from testcluster.layout import CGROUP, Layout
from testcluster.network import remove_fabric
from testcluster.processes import Ledger, kill_all
from testcluster.shell import run, wait_until


def remove_everything(layout: Layout, ledger: Ledger, *, keep_logs: bool) -> None:
    """Ends our processes, then removes namespaces, mounts, cgroups and files; safe to repeat and to interrupt.

    The record of processes goes last: an interrupted clean-up can be done again.
    """
    kill_all(ledger.processes())
    remove_fabric()
    for mount in reversed(mounts_below(Path("/proc/self/mounts").read_text(), layout.state)):
        run("umount", "--lazy", mount)
    wait_until(_cgroups_removed, "our cgroups to be removed", 10)
    _remove_state(layout, keep_logs=keep_logs)
    ledger.forget_all()


def mounts_below(mounts: str, folder: Path) -> list[Path]:
    """The mount points at or below a folder, in the order in which they were made."""
    # /proc/mounts writes blanks as octal numbers.
    points = (Path(line.split()[1].replace("\\040", " ")) for line in mounts.splitlines())
    return [point for point in points if point.is_relative_to(folder)]


def _cgroups_removed() -> bool:
    try:
        remove_cgroup(CGROUP)
    except OSError:
        return False  # a process that was killed has not quite gone
    return True


def _remove_state(layout: Layout, *, keep_logs: bool) -> None:
    if not layout.state.exists():
        return
    if keep_logs:
        _rescue_node_logs(layout)
    for entry in layout.state.iterdir():
        if keep_logs and entry == layout.logs:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _rescue_node_logs(layout: Layout) -> None:
    """Puts the nodes' logs in the place of the links to them, before the nodes' folders go."""
    for link in layout.logs.glob("*"):
        if link.is_symlink() and link.resolve().is_dir():
            target = link.resolve()
            link.unlink()
            target.rename(link)
