"""The Go programs, built from their modules: Kubernetes, etcd, CoreDNS, helm."""

import os
from dataclasses import dataclass
from pathlib import Path

from testcluster.cache import Part, key_of
from testcluster.shell import run_logged

PARTS = Path(__file__).parent / "parts"


@dataclass(frozen=True)
class Program:
    """Commands of one Go module at one version: `commands` maps the binary's name to its package."""

    name: str
    version: str
    commands: dict[str, str]
    stamp: tuple[str, ...] = ()

    @property
    def module(self) -> Path:
        return PARTS / self.name


_KUBERNETES_COMMANDS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kubectl",
    "kube-proxy",
)

KUBERNETES = Program(
    "kubernetes",
    "v1.34.4",
    {command: f"k8s.io/kubernetes/cmd/{command}" for command in _KUBERNETES_COMMANDS},
    # Without these every component says that it is v0.0.0, and version checks of charts and clients go wrong.
    stamp=tuple(
        f"k8s.io/component-base/version.{variable}"
        for variable in ("gitMajor=1", "gitMinor=34", "gitVersion=v1.34.4", "gitTreeState=clean")
    ),
)
ETCD = Program("etcd", "v3.6.13", {"etcd": "go.etcd.io/etcd/server/v3"})
COREDNS = Program("coredns", "v1.15.0", {"coredns": "github.com/coredns/coredns"})
HELM = Program(
    "helm",
    "v3.22.0",
    {"helm": "helm.sh/helm/v3/cmd/helm"},
    stamp=(
        "helm.sh/helm/v3/internal/version.version=v3.22.0",
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1",
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=34",
    ),
)
PROGRAMS = (KUBERNETES, ETCD, COREDNS, HELM)


def program_part(program: Program, logs: Path) -> Part:
    """The part whose folder holds the program's binaries."""
    modules = [(program.module / file).read_text() for file in ("go.mod", "go.sum")]
    key = f"{program.version}-{key_of(*modules, program.commands, program.stamp)}"
    return Part(program.name, key, lambda folder: _build(program, folder, logs))


def _build(program: Program, folder: Path, logs: Path) -> None:
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{program.name}.log"
    log.unlink(missing_ok=True)
    flags = " ".join(["-s -w", *(f"-X {value}" for value in program.stamp)])
    build = ("go", "build", "-mod=readonly", "-trimpath", "-ldflags", flags)
    env = os.environ | {"CGO_ENABLED": "0"}
    for binary, package in program.commands.items():
        run_logged(*build, "-o", folder / binary, package, log=log, cwd=program.module, env=env)
