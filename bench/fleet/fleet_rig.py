"""The processes of the benchmark: an API server, the operator, and the nodes. Whatever happens, nothing is left of them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from fleet_api import Api
from kube import ApiServer, find_programs, free_port

ROOT = Path(__file__).parents[2]
NAMESPACE = "bench"
Raw = dict[str, Any]


@dataclass
class Rig:
    """All processes. `fleet_says` is the newest word of the nodes."""

    arguments: argparse.Namespace
    folder: Path
    server: ApiServer
    port: int = field(default_factory=free_port)
    health_port: int = field(default_factory=free_port)
    operator: subprocess.Popen[bytes] | None = None
    fleet: asyncio.subprocess.Process | None = None
    fleet_says: Raw = field(default_factory=dict)

    @property
    def key_file(self) -> Path:
        return self.folder / "key"

    async def start_fleet(self) -> None:
        """The nodes, until they are all there."""
        options = {
            "--url": self.server.url,
            "--token": self.server.token,
            "--key-file": self.key_file,
            "--namespace": NAMESPACE,
            "--port": self.port,
            "--nodes": self.arguments.nodes,
            "--save-seconds": self.arguments.save_seconds,
        }
        words = [str(word) for pair in options.items() for word in pair]
        program = ROOT / "bench" / "fleet" / "fleet_main.py"
        pipe = asyncio.subprocess.PIPE
        with (self.folder / "fleet.log").open("ab") as log:
            self.fleet = await asyncio.create_subprocess_exec(
                sys.executable, "-P", str(program), *words, stdin=pipe, stdout=pipe, stderr=log, limit=1 << 24
            )
        self._hearing = asyncio.create_task(self._hear())
        await until(lambda: "running" in self.fleet_says, "nodes are made")

    async def _hear(self) -> None:
        assert self.fleet is not None
        assert self.fleet.stdout is not None
        async for line in self.fleet.stdout:
            self.fleet_says.update(json.loads(line))

    def start_operator(self) -> None:
        user = {"token": self.server.token}
        cluster = {"server": self.server.url, "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
        }
        (self.folder / "kubeconfig").write_text(yaml.safe_dump(config))
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("operator", "trainer_lib")),
            "KUBECONFIG": str(self.folder / "kubeconfig"),
            "EVERSTEP_ROOT_KEY_FILE": str(self.key_file),
            "EVERSTEP_WATCH_NAMESPACES": NAMESPACE,
            "EVERSTEP_NAMESPACE": NAMESPACE,
            "EVERSTEP_LEASE_ENABLED": "false",  # two busy cores are no reason to give up
            "EVERSTEP_API_PORT": str(self.port),
            "EVERSTEP_METRICS_PORT": str(self.health_port),
            "EVERSTEP_HEALTH_HOST": "127.0.0.1",
        }
        profile = self.arguments.profile
        how = (
            [ROOT / "bench" / "fleet" / "profiled.py", profile.absolute()]
            if profile
            else ["-m", "everstep_operator.main"]
        )
        with (self.folder / "operator.log").open("ab") as log:
            self.operator = subprocess.Popen([sys.executable, *how], env=env, stdout=log, stderr=log, cwd=self.folder)

    def toggle_profile(self) -> None:
        if self.arguments.profile and self.operator is not None:
            self.operator.send_signal(signal.SIGUSR1)

    async def lose(self, nodes: list[str]) -> set[str]:
        """Cut their power. UIDs of the jobs that have a pod there."""
        assert self.fleet is not None
        assert self.fleet.stdin is not None
        self.fleet.stdin.write(json.dumps({"lose": nodes}).encode() + b"\n")
        await until(lambda: "hit" in self.fleet_says, "nodes are lost", 60)
        return set(self.fleet_says["hit"])

    async def stop(self) -> None:
        if self.operator is not None:
            self.operator.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.operator.wait(20)
            self.operator.kill()
        if self.fleet is not None and self.fleet.returncode is None:
            self.fleet.kill()
            await self.fleet.wait()
        self.server.stop()


async def until(holds: Callable[[], Any], what: str, limit_seconds: float = 1200.0) -> None:
    end = time.monotonic() + limit_seconds
    while not holds():
        if time.monotonic() > end:
            raise RuntimeError(f"it is not so after {limit_seconds:g} s: {what}")
        await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def opened(arguments: argparse.Namespace) -> AsyncIterator[tuple[Rig, Api]]:
    """Everything, and nothing is left of it."""
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as name:
        folder = Path(name)
        rig = Rig(arguments, folder, ApiServer(folder / "api", *find_programs()))
        (folder / "key").write_bytes(secrets.token_hex(16).encode())
        try:
            await asyncio.to_thread(rig.server.start)
            async with Api(rig.server.url, rig.server.token) as api:
                yield rig, api
        finally:
            await rig.stop()
            if arguments.keep_logs:
                shutil.copytree(folder, arguments.keep_logs, ignore=only_logs, dirs_exist_ok=True)


def only_logs(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith(".log")]
