"""The test cluster as one object: what fixtures, demos and the command line use.

cluster = Cluster()
cluster.up()
cluster.kubectl("get", "nodes")
cluster.power_off("node-2")
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from testcluster import network, product
from testcluster.builder import Builder
from testcluster.cache import file_lock
from testcluster.cgroups import cgroup_folder, pids_below
from testcluster.cleanup import remove_everything
from testcluster.layout import CGROUP, CONTROL, NODES, WORKERS, Layout, node_named
from testcluster.node import Node, main_process_first
from testcluster.processes import Ledger
from testcluster.shell import Progress, run
from testcluster.startup import CONTROL_PLANE_ROLES, Startup, wait_until_ready


class Cluster:
    """Four workers, `node-1` to `node-4`, and `control`; at most one cluster on a machine.

    The object keeps nothing of its own: any process may make one and act on the cluster that is there.
    """

    def __init__(self, layout: Layout | None = None, *, quiet: bool = True) -> None:
        self.layout = layout or Layout.from_environment()
        self.progress = Progress(quiet=quiet)
        self.builder = Builder(self.layout, self.progress)
        self._ledger = Ledger(self.layout.run / "processes")
        self._machines = {spec.name: Node(spec, self.layout, self._ledger) for spec in NODES}

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the worker nodes."""
        return tuple(spec.name for spec in WORKERS)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's; of use only inside the cluster's network."""
        return self.layout.admin_kubeconfig

    @property
    def log_directory(self) -> Path:
        return self.layout.logs

    @property
    def storage_root(self) -> Path:
        """A folder that every node sees at the same path, for hostPath volumes: the cluster's shared file system."""
        return self.layout.storage

    # Life

    def is_up(self) -> bool:
        """Whether `up` came to its end and the control plane still runs; workers may be off."""
        if not self.layout.up_marker.exists():
            return False
        return all(self._ledger.alive(role) is not None for role in CONTROL_PLANE_ROLES)

    def up(self) -> None:
        """Starts the cluster, building first what is missing; returns when it is ready, at once if it already is.

        What a killed run left behind is removed before. A failed or interrupted start removes itself, except its logs.
        """
        with self._lock():
            if self.is_up():
                self.progress.say("the cluster is already up")
                return
            self.builder.everything()
            with self.progress.step("starting the cluster"):
                self._start()

    def _start(self) -> None:
        remove_everything(self.layout, self._ledger, keep_logs=False)
        startup = Startup(self.layout, self._ledger, self._machines.values(), self.progress)
        try:
            startup.start(self.builder.programs(), self.builder.seed())
        except BaseException:
            self.progress.say(f"the start failed; removing what there is of it, but not {self.layout.logs}")
            remove_everything(self.layout, self._ledger, keep_logs=True)
            raise

    def down(self) -> None:
        """Removes the cluster and every trace of it but its logs; safe when there is none."""
        with self._lock(), self.progress.step("removing the cluster"):
            remove_everything(self.layout, self._ledger, keep_logs=True)

    def reserved(self) -> AbstractContextManager[None]:
        """For as long as a run has the cluster to itself; `RuntimeError` if another one has it."""
        return file_lock(
            self.layout.run / "in-use", busy="another run (tests, demo or benchmark) uses the test cluster"
        )

    def _lock(self) -> AbstractContextManager[None]:
        return file_lock(self.layout.run / "lock", busy="another run is starting or stopping the test cluster")

    # Talking to it

    def command(self, program: str, *argv: str | Path) -> tuple[str, ...]:
        """The command line that runs a program in the cluster's network; our own programs are found by name.

        `KUBECONFIG` is set for it. For callers that want their own Popen or exec.
        """
        own = self.layout.programs / program
        words = (own if own.exists() else program, *argv)
        kubeconfig = f"KUBECONFIG={self.kubeconfig}"
        return (*network.in_namespace(CONTROL.network_namespace), "env", kubeconfig, *map(str, words))

    def kubectl(self, *argv: str | Path, input: str | None = None, timeout: float | None = None) -> str:
        """Runs kubectl as administrator and returns what it prints; `CommandError` if it fails."""
        return run(*self.command("kubectl", *argv), input=input, timeout=timeout)

    def helm(self, *argv: str | Path, timeout: float | None = None) -> str:
        """Runs helm as administrator and returns what it prints; `CommandError` if it fails."""
        return run(*self.command("helm", *argv), timeout=timeout)

    def enter_network(self) -> None:
        """Moves the calling thread into the control plane's network, from where all nodes and pods can be reached.

        Threads and processes started afterwards inherit it; threads that already run stay where they are.
        """
        network.enter_namespace(CONTROL.network_namespace)

    # Images

    def load_image(self, archive: Path) -> None:
        """Gives an image archive to every node that is on, all at once."""
        running = [machine for machine in self._machines.values() if machine.is_on()]
        with ThreadPoolExecutor(len(running) or 1) as pool:
            list(pool.map(lambda machine: machine.ctr("images", "import", archive), running))

    def build_product_image(self, context: Path, tag: str) -> Path:
        """Builds `context/Dockerfile` without network; returns an archive for `load_image` (see `product`)."""
        return product.build_product_image(context, tag, cache=self.builder.cache, parts=self.builder.parts)

    def download_wheels(self, requirements: Sequence[str]) -> Path:
        """A cached folder of wheels for the base image's Python, to be copied into a build context."""
        return product.download_wheels(requirements, self.builder.cache)

    # What happens to nodes

    def power_off(self, name: str) -> None:
        """Cuts the power: first nobody hears the node any more, then everything on it is gone."""
        machine = self._machine(name)
        network.set_cable(machine.spec, connected=False)
        machine.kill()

    def crash(self, name: str) -> None:
        """Ends everything on the node with its cable still in: its peers see their connections reset."""
        self._machine(name).kill()

    def boot(self, name: str) -> None:
        """Switches a node on again; its disk is as it was, its memory and network are new. Returns when it is Ready."""
        machine = self._machine(name)
        if machine.is_on():
            raise RuntimeError(f"{name} is on; power_off comes before boot")
        machine.kill()  # what outlived a crash of the node's first process
        network.detach(machine.spec)
        network.attach(machine.spec)
        wait_until_ready(self.kubectl, [name], machine.start(self.layout.programs))

    def partition(self, name: str) -> None:
        """Pulls the node's cable: it lives on, and nobody hears it."""
        network.set_cable(self._machine(name).spec, connected=False)

    def heal(self, name: str) -> None:
        """Plugs the node's cable in again."""
        network.set_cable(self._machine(name).spec, connected=True)

    def hide_folder(self, name: str, folder: Path) -> None:
        """The node sees an empty folder of its own in place of a shared one, as where a file system is not mounted.

        Containers see what the node sees when they start.
        """
        self._machine(name).enter("mount", "-t", "tmpfs", "-o", "mode=0777", "not-shared", folder)

    def show_folder(self, name: str, folder: Path) -> None:
        """The node sees the shared folder again."""
        self._machine(name).enter("umount", folder)

    def drain(self, name: str, *, grace_seconds: int | None = None, timeout_seconds: int = 120) -> None:
        """Cordons the node and evicts its pods, each with its own grace period or the given one."""
        grace = [] if grace_seconds is None else [f"--grace-period={grace_seconds}"]
        options = ("--delete-emptydir-data", "--ignore-daemonsets", "--force", f"--timeout={timeout_seconds}s")
        self.kubectl("drain", name, *options, *grace)

    def uncordon(self, name: str) -> None:
        """Lets pods onto the node again."""
        self.kubectl("uncordon", name)

    def is_on(self, name: str) -> bool:
        """Whether the node has power; says nothing of its cable."""
        return self._machine(name).is_on()

    # Inside pods

    def container_pids(self, pod_uid: str, container: str) -> list[int]:
        """The pids of a container's processes as this machine sees them, its main process first; empty if none runs.

        Asks the node and not the API server: also true of a node that nobody hears.
        """
        return self._pids(pod_uid, lambda node: node.container_ids(pod_uid, container))

    def sandbox_pids(self, pod_uid: str) -> list[int]:
        """The pids of a pod's sandbox, in the same way: the process that holds its namespaces."""
        return self._pids(pod_uid, lambda node: node.sandbox_ids(pod_uid))

    def _pids(self, pod_uid: str, ids: Callable[[Node], list[str]]) -> list[int]:
        for pod in cgroup_folder("pids", CGROUP).glob(f"*/kubepods/**/pod{pod_uid}"):
            node = pod.relative_to(cgroup_folder("pids", CGROUP)).parts[0]
            for container_id in ids(self._machine(node)):
                pids = pids_below(str(pod.relative_to(cgroup_folder("pids", ".")) / container_id))
                if pids:
                    return main_process_first(pids)
        return []

    def _machine(self, name: str) -> Node:
        return self._machines[node_named(name).name]
