"""The command line of the test cluster: `tests/cluster/cluster --help`."""

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from testcluster.cluster import Cluster
from testcluster.shell import CommandError

_PASSED_ON = ("kubectl", "helm", "exec")


def main(argv: list[str]) -> int:
    signal.signal(signal.SIGTERM, _end_in_good_order)
    if argv and argv[0] in _PASSED_ON:
        _pass_on(argv[0], argv[1:])
    arguments = _parser().parse_args(argv)
    cluster = Cluster(quiet=getattr(arguments, "quiet", False))
    try:
        return int(arguments.act(cluster, arguments) or 0)
    except (CommandError, RuntimeError, TimeoutError, ValueError, LookupError) as error:
        print(f"cluster {argv[0]}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _end_in_good_order(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Turns a polite kill into an exception, so that `up` can remove what it has begun."""
    raise SystemExit(143)


def _pass_on(program: str, argv: list[str]) -> NoReturn:
    """Becomes kubectl, helm or any program, inside the cluster's network."""
    cluster = Cluster()
    if not cluster.is_up():
        sys.exit("the cluster is not up: cluster up")
    if program == "exec":
        argv = argv[1:] if argv[:1] == ["--"] else argv
        if not argv:
            sys.exit("usage: cluster exec -- COMMAND [ARGUMENT ...]")
        program, *argv = argv
    words = cluster.command(program, *argv)
    os.execvp(words[0], words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster", description="A real Kubernetes on this machine, for tests.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    up = commands.add_parser("up", help="start it, building first what is missing")
    up.add_argument("--quiet", action="store_true", help="say nothing unless it fails")
    up.set_defaults(act=lambda cluster, _: cluster.up())
    commands.add_parser("down", help="remove it").set_defaults(act=lambda cluster, _: cluster.down())
    commands.add_parser("status", help="what runs").set_defaults(act=_status)
    commands.add_parser("logs", help="where the logs are").set_defaults(act=_logs)
    build = commands.add_parser("build", help="fill the build cache")
    build.add_argument("--torch-old", action="store_true", help="instead, the system with the oldest supported torch")
    build.add_argument("--prune", action="store_true", help="instead, remove what older recipes left")
    build.set_defaults(act=_build)
    load = commands.add_parser("load-image", help="give an image archive to all nodes")
    load.add_argument("archive", type=Path)
    load.set_defaults(act=lambda cluster, arguments: cluster.load_image(arguments.archive))
    node = commands.add_parser("node", help="power-off, crash, partition, heal, boot, drain or uncordon a node")
    node.add_argument("event", choices=("power-off", "crash", "partition", "heal", "boot", "drain", "uncordon"))
    node.add_argument("name")
    node.set_defaults(act=lambda cluster, arguments: _act_on_node(cluster, arguments.event, arguments.name))
    for program in _PASSED_ON:
        commands.add_parser(program, help=f"{program} inside the cluster's network", add_help=False)
    return parser


def _act_on_node(cluster: Cluster, event: str, name: str) -> None:
    getattr(cluster, event.replace("-", "_"))(name)


def _build(cluster: Cluster, arguments: argparse.Namespace) -> None:
    if arguments.torch_old:
        cluster.builder.torch_old()
    elif arguments.prune:
        cluster.builder.prune()
    else:
        cluster.builder.everything()


def _logs(cluster: Cluster, _: argparse.Namespace) -> None:
    print(f"components and nodes: {cluster.log_directory}")
    print(f"builds:               {cluster.layout.cache / 'logs'}")


def _status(cluster: Cluster, _: argparse.Namespace) -> int:
    if not cluster.is_up():
        print("down")
        return 1
    print("up; power: " + ", ".join(f"{name} {'on' if cluster.is_on(name) else 'off'}" for name in cluster.nodes))
    print(cluster.kubectl("get", "nodes", "-o", "wide"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
