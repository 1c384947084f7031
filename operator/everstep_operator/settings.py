"""What the operator is told by its environment; `VARIABLES` says it all, for the chart and for `--help`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep_protocol import names

from everstep_operator.core.model import Settings as Timers

TIMER_PREFIX = "EVERSTEP_TIMER_"

VARIABLES: dict[str, tuple[str, str]] = {
    "EVERSTEP_WATCH_NAMESPACES": ("", "namespaces whose jobs are served, with commas between; empty: all"),
    "EVERSTEP_IMAGE": ("everstep:latest", "image of the sidecar and the injector in worker pods"),
    "EVERSTEP_IMAGE_PULL_POLICY": ("IfNotPresent", "its pull policy"),
    "EVERSTEP_API_PORT": (str(names.PORT_API), "port of the sidecars' API"),
    "EVERSTEP_METRICS_PORT": (
        str(names.PORT_METRICS),
        "port of metrics and health: the sidecars' and the operator's own",
    ),
    "EVERSTEP_SIDECAR_CPU": (
        "250m",
        "CPU request of the sidecar and the injector; their limit, too, in Guaranteed pods",
    ),
    "EVERSTEP_SIDECAR_MEMORY": (
        "128Mi",
        "memory request of the sidecar and the injector; their limit, too, in Guaranteed pods",
    ),
    "EVERSTEP_SIDECAR_CPU_LIMIT": ("", "their CPU limit in other pods; empty: none"),
    "EVERSTEP_SIDECAR_MEMORY_LIMIT": ("", "their memory limit in other pods; empty: none"),
    "EVERSTEP_SIDECAR_SILENCE": ("100", "a sidecar that answers nothing for so many seconds is restarted"),
    "EVERSTEP_ROOT_KEY_SECRET": (
        "",
        "Secret in EVERSTEP_NAMESPACE with the key that job tokens are made from; made if it is not there",
    ),
    "EVERSTEP_ROOT_KEY_FILE": ("/etc/everstep/root-key/key", "file with that key, where no Secret is named"),
    "EVERSTEP_LEASE_ENABLED": ("true", "false: act without a lease (one replica only)"),
    "EVERSTEP_LEASE_NAME": ("everstep", "name of the Lease that says which replica acts"),
    "EVERSTEP_NAMESPACE": ("default", "namespace of that Lease: the operator's own"),
    "EVERSTEP_LEASE_SECONDS": ("4", "how long the others wait for a replica that is silent"),
    "EVERSTEP_POD_NAME": ("", "this replica's name in the Lease; empty: host name and process id"),
    "EVERSTEP_LOG_LEVEL": ("info", "debug, info, warning or error"),
    "EVERSTEP_HEALTH_HOST": ("", "address that metrics and health listen on; empty: all, of IPv4 and IPv6"),
}


@dataclass(frozen=True)
class PodSettings:
    """What worker pods get from the operator."""

    image: str
    image_pull_policy: str
    api_port: int = names.PORT_API
    metrics_port: int = names.PORT_METRICS
    sidecar_cpu: str = "250m"
    sidecar_memory: str = "128Mi"
    sidecar_cpu_limit: str = ""  # empty: none, but in Guaranteed pods, where it is the request
    sidecar_memory_limit: str = ""
    sidecar_silence: float = 100.0  # seconds without any answer, then the kubelet restarts it


@dataclass(frozen=True)
class LeaseSettings:
    """The operator's own Lease."""

    enabled: bool
    namespace: str
    name: str
    identity: str
    seconds: float


@dataclass(frozen=True)
class Settings:
    """All of it."""

    namespaces: tuple[str, ...]  # empty: all
    pods: PodSettings
    lease: LeaseSettings
    root_key_secret: str  # empty: the file
    root_key_file: Path
    log_level: str
    health_host: str
    health_port: int
    timers: Timers


def parse_settings(env: Mapping[str, str], *, identity: str) -> Settings:
    """Raises ValueError that names every variable that is wrong. `identity` is used where EVERSTEP_POD_NAME is empty."""
    read = _Reader(env)
    settings = Settings(
        namespaces=tuple(part.strip() for part in read.text("EVERSTEP_WATCH_NAMESPACES").split(",") if part.strip()),
        pods=PodSettings(
            image=read.text("EVERSTEP_IMAGE"),
            image_pull_policy=read.choice("EVERSTEP_IMAGE_PULL_POLICY", ("Always", "IfNotPresent", "Never")),
            api_port=read.number("EVERSTEP_API_PORT", int),
            metrics_port=read.number("EVERSTEP_METRICS_PORT", int),
            sidecar_cpu=read.text("EVERSTEP_SIDECAR_CPU"),
            sidecar_memory=read.text("EVERSTEP_SIDECAR_MEMORY"),
            sidecar_cpu_limit=read.text("EVERSTEP_SIDECAR_CPU_LIMIT"),
            sidecar_memory_limit=read.text("EVERSTEP_SIDECAR_MEMORY_LIMIT"),
            sidecar_silence=read.number("EVERSTEP_SIDECAR_SILENCE", float),
        ),
        lease=LeaseSettings(
            enabled=read.choice("EVERSTEP_LEASE_ENABLED", ("true", "false")) == "true",
            namespace=read.text("EVERSTEP_NAMESPACE"),
            name=read.text("EVERSTEP_LEASE_NAME"),
            identity=read.text("EVERSTEP_POD_NAME") or identity,
            seconds=read.number("EVERSTEP_LEASE_SECONDS", float),
        ),
        root_key_secret=read.text("EVERSTEP_ROOT_KEY_SECRET"),
        root_key_file=Path(read.text("EVERSTEP_ROOT_KEY_FILE")),
        log_level=read.choice("EVERSTEP_LOG_LEVEL", ("debug", "info", "warning", "error")).upper(),
        health_host=read.text("EVERSTEP_HEALTH_HOST"),
        health_port=read.number("EVERSTEP_METRICS_PORT", int),
        timers=_timers(read),
    )
    if read.problems:
        raise ValueError("the environment is wrong: " + "; ".join(read.problems))
    return settings


class _Reader:
    """Reads variables and keeps every problem."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.problems: list[str] = []

    def text(self, name: str) -> str:
        return self._env.get(name, VARIABLES[name][0])

    def choice(self, name: str, options: tuple[str, ...]) -> str:
        value = self.text(name)
        if value not in options:
            self.problems.append(f"{name} is {value!r}: must be one of {', '.join(options)}")
        return value

    def number(self, name: str, kind: Callable[[str], Any], default: Any = None) -> Any:
        value = self._env.get(name, VARIABLES[name][0] if default is None else str(default))
        try:
            number = kind(value)
        except ValueError:
            number = -1
        if not number >= 0:
            self.problems.append(f"{name} is {value!r}: must be a number, not negative")
        return number

    def unknown_timers(self, known: set[str]) -> None:
        for name in sorted(self._env):
            if name.startswith(TIMER_PREFIX) and name not in known:
                self.problems.append(f"{name} is no timer; there are {', '.join(sorted(known))}")


def _timers(read: _Reader) -> Timers:
    """Every timer of `core.model.Settings` as EVERSTEP_TIMER_<NAME>, in seconds (or a count, where it is one)."""
    fields = {
        TIMER_PREFIX + field.name.upper(): field for field in dataclasses.fields(Timers) if field.name != "api_port"
    }
    read.unknown_timers(set(fields))
    values = {field.name: read.number(name, type(field.default), field.default) for name, field in fields.items()}
    return Timers(**values, api_port=read.number("EVERSTEP_API_PORT", int))
