"""The cables: a bridge in a namespace of its own, and one veth pair from it to every node.

Nothing leaves the machine. Neighbours know each other's hardware addresses for good, so a node that falls silent is met
with silence, as in a cloud, and not with the quick "no route to host" of a local network.
"""

import ctypes
import os
import socket
import threading
from pathlib import Path

from testcluster.layout import FABRIC_NAMESPACE, NODES, NodeSpec
from testcluster.shell import run

NETNS = Path("/run/netns")
_CLONE_NEWNET = 0x40000000


def in_namespace(name: str) -> tuple[str, ...]:
    """The words before a command that let it run in a network namespace.

    Not `ip netns exec`: that mounts /sys anew, and hides the cgroups.
    """
    return ("nsenter", f"--net={NETNS / name}")


def enter_namespace(name: str) -> None:
    """Moves the calling thread into a network namespace for good."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(NETNS / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, f"cannot enter network namespace {name}: {os.strerror(code)}")
    finally:
        os.close(descriptor)


def socket_in_namespace(name: str, kind: socket.SocketKind) -> socket.socket:
    """A socket that lives in another network namespace than its process; a thread goes there to fetch it."""
    made: list[socket.socket] = []

    def fetch() -> None:
        enter_namespace(name)
        made.append(socket.socket(socket.AF_INET, kind))

    thread = threading.Thread(target=fetch)
    thread.start()
    thread.join()
    if not made:
        raise OSError(f"no socket from network namespace {name}")
    return made[0]


def create_fabric() -> None:
    run("ip", "netns", "add", FABRIC_NAMESPACE)
    _ip_batch(FABRIC_NAMESPACE, ["link set lo up", "link add bridge0 type bridge", "link set bridge0 up"])
    for node in NODES:
        attach(node)


def attach(node: NodeSpec) -> None:
    """Makes the node's namespace, its cable, and its routes to the pods of all others."""
    namespace = node.network_namespace
    run("ip", "netns", "add", namespace)
    cable = f"link add {node.fabric_port} type veth peer name eth0 address {node.mac} netns {namespace}"
    _ip_batch(FABRIC_NAMESPACE, [cable, f"link set {node.fabric_port} master bridge0 up"])
    lines = ["link set lo up", f"address add {node.address}/24 dev eth0", "link set eth0 up"]
    for peer in NODES:
        if peer != node:
            lines.append(f"neighbour add {peer.address} lladdr {peer.mac} dev eth0 nud permanent")
            lines.append(f"route add {peer.pod_subnet} via {peer.address}")
    _ip_batch(namespace, lines)
    run(*in_namespace(namespace), "sysctl", "-qw", "net.ipv4.ip_forward=1")


def detach(node: NodeSpec) -> None:
    """Removes the node's namespace with everything in it: cable, pods' interfaces, packet rules."""
    run("ip", "-n", FABRIC_NAMESPACE, "link", "delete", node.fabric_port, check=False)
    run("ip", "netns", "delete", node.network_namespace, check=False)


def set_cable(node: NodeSpec, *, connected: bool) -> None:
    run("ip", "-n", FABRIC_NAMESPACE, "link", "set", node.fabric_port, "up" if connected else "down")


def remove_fabric() -> None:
    """Removes all of our namespaces, as far as they are there."""
    for name in (*(node.network_namespace for node in NODES), FABRIC_NAMESPACE):
        if (NETNS / name).exists():
            run("ip", "netns", "delete", name)


def fabric_exists() -> bool:
    return (NETNS / FABRIC_NAMESPACE).exists()


def _ip_batch(namespace: str, lines: list[str]) -> None:
    run("ip", "-n", namespace, "-batch", "-", input="\n".join(lines) + "\n")
