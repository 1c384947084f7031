"""What many quiet jobs cost the operator, and how fast it acts when nodes are lost: `make bench-operator JOBS=1000 WORKERS=8`.

A real kube-apiserver, the operator as its own process, and a process of scripted nodes (`fleet/`): pods that run at once, leases, and
sidecars that answer with steps that advance and saves. First the jobs start; then they train quietly for `--seconds`; then a tenth of the
nodes loses its power. Prints one table; figures also in --output. CPU-seconds, counts and memory travel to other machines, wall times
do not. Run it with `python -P`: this file has the name of a module that Python itself needs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from everstep_operator.api import crd
from fleet_api import Api, Refused
from kube import ApiServer, find_programs, free_port

ROOT = Path(__file__).parents[1]
NAMESPACE = "bench"
JOBS = f"/apis/everstep.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
LOST_SHARE = 0.1
SETTLE_SECONDS = 20.0
KINDS = {  # of API writes, by what the API server counts; those of the nodes are other ones
    "status writes": ("PATCH", "trainingjobs", "status"),
    "events": ("POST", "events", ""),
    "pods created": ("POST", "pods", ""),
    "plans published": ("PATCH", "pods", ""),
    "pods deleted": ("DELETE", "pods", ""),
}
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


@dataclass(frozen=True)
class Reading:
    """Counters at one moment."""

    at: float
    cpu_seconds: float
    memory_mb: float
    peak_mb: float
    passes: float
    pass_seconds: float
    polls: int
    writes: dict[str, float]


async def read(rig: Rig, api: Api) -> Reading:
    assert rig.operator is not None
    own = await own_metrics(rig)
    server = await api.text("/metrics")
    return Reading(
        time.monotonic(),
        *process_figures(rig.operator.pid),
        own["everstep_reconcile_seconds_count"],
        own["everstep_reconcile_seconds_sum"],
        rig.fleet_says["polls"],
        {name: count_writes(server, *kind) for name, kind in KINDS.items()},
    )


def process_figures(pid: int) -> tuple[float, float, float]:
    """CPU-seconds, memory and its peak in MB."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    sizes = dict(re.findall(r"(VmRSS|VmHWM):\s+(\d+)", Path(f"/proc/{pid}/status").read_text()))
    cpu_seconds = (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
    return cpu_seconds, int(sizes["VmRSS"]) / 1024, int(sizes["VmHWM"]) / 1024


def count_writes(metrics: str, verb: str, resource: str, subresource: str) -> float:
    """Requests that the API server answered well."""
    found = 0.0
    for labels, value in re.findall(r"^apiserver_request_total\{(.*)\} (\S+)$", metrics, re.M):
        wanted = (f'verb="{verb}"', f'resource="{resource}"', f'subresource="{subresource}"', 'code="20')
        if all(part in labels for part in wanted):
            found += float(value)
    return found


async def own_metrics(rig: Rig) -> dict[str, float]:
    try:
        async with Api(f"http://127.0.0.1:{rig.health_port}", "") as api:
            text = await api.text("/metrics")
    except OSError:
        return {}
    return {name: float(value) for name, value in re.findall(r"^([a-z_]+(?:\{.*\})?) (\S+)$", text, re.M)}


async def until(holds: Callable[[], Any], what: str, limit_seconds: float = 1200.0) -> None:
    end = time.monotonic() + limit_seconds
    while not holds():
        if time.monotonic() > end:
            raise RuntimeError(f"it is not so after {limit_seconds:g} s: {what}")
        await asyncio.sleep(0.1)


def manifest(name: str, workers: int) -> Raw:
    container = {"name": "trainer", "image": "i:1", "command": ["python", "t.py"]}
    return {
        "apiVersion": "everstep.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "workers": {"min": max(1, workers // 2), "max": workers},
            "template": {"spec": {"containers": [container]}},
            "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "checkpoints"}}},
        },
    }


async def install(api: Api) -> None:
    await api.call("POST", DEFINITIONS, crd.build_crd())
    for name in (NAMESPACE, "kube-node-lease"):
        with contextlib.suppress(Refused):
            await api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    for _ in range(300):
        with contextlib.suppress(Refused):
            await api.call("GET", JOBS)
            return
        await asyncio.sleep(0.1)


async def make_jobs(api: Api, count: int, workers: int) -> None:
    few = asyncio.Semaphore(16)

    async def make(i: int) -> None:
        async with few:
            await api.call("POST", JOBS, manifest(f"j{i}", workers))

    await asyncio.gather(*(make(i) for i in range(count)))


async def wait_running(rig: Rig, count: int) -> None:
    """Until the operator says that all jobs run."""
    end = time.monotonic() + 1800
    while (await own_metrics(rig)).get('everstep_jobs{phase="Running"}', 0) < count:
        assert rig.operator is not None
        if rig.operator.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"the jobs do not run: see {rig.folder / 'operator.log'}")
        await asyncio.sleep(1.0)


@dataclass
class Moments:
    """When each job's next attempt was begun and planned, from the watch of a client that stands beside the operator."""

    numbers: dict[str, int] = field(default_factory=dict)  # attempt before the loss
    begun: dict[str, float] = field(default_factory=dict)
    planned: dict[str, float] = field(default_factory=dict)

    async def listen(self, api: Api) -> None:
        async for event in api.watch(JOBS):
            self.hear(event["object"], time.monotonic())

    def hear(self, job: Raw, now: float) -> None:
        uid, attempt = job["metadata"]["uid"], (job.get("status") or {}).get("attempt") or {}
        number = attempt.get("number", 0)
        if uid not in self.numbers:
            self.numbers[uid] = number
        elif number > self.numbers[uid]:
            self.begun.setdefault(uid, now)
            if attempt.get("state") in ("Planned", "Started"):
                self.planned.setdefault(uid, now)


async def bench(rig: Rig, api: Api) -> dict[str, Any]:
    arguments = rig.arguments
    await install(api)
    await rig.start_fleet()
    await make_jobs(api, arguments.jobs, arguments.workers)
    rig.start_operator()
    began = time.monotonic()
    await wait_running(rig, arguments.jobs)
    started = await read(rig, api)
    say(f"{arguments.jobs} jobs run after {time.monotonic() - began:.0f} s")
    await asyncio.sleep(SETTLE_SECONDS)
    before = await read(rig, api)
    rig.toggle_profile()
    await asyncio.sleep(arguments.seconds)
    rig.toggle_profile()
    after = await read(rig, api)
    rows = {"start": started.cpu_seconds, **quiet_rows(before, after, arguments.jobs)}
    say("quiet: measured")
    return {**rows, **await losses(rig, api)}


def quiet_rows(before: Reading, after: Reading, jobs: int) -> dict[str, Any]:
    seconds = after.at - before.at
    cpu, passes = after.cpu_seconds - before.cpu_seconds, after.passes - before.passes
    return {
        "jobs": jobs,
        "cpu": cpu / seconds,
        "cpu_per_job": cpu / seconds / jobs,
        "memory_mb": after.memory_mb,
        "passes": passes / seconds,
        "pass_ms": 1000 * (after.pass_seconds - before.pass_seconds) / max(1.0, passes),
        "polls": (after.polls - before.polls) / seconds,
        "writes": {name: (after.writes[name] - before.writes[name]) / seconds for name in KINDS},
    }


async def losses(rig: Rig, api: Api) -> dict[str, Any]:
    """A tenth of the nodes at once; the jobs that were hit, until each has its next plan."""
    moments = Moments()
    listening = asyncio.create_task(moments.listen(api))
    await until(lambda: len(moments.numbers) >= rig.arguments.jobs, "all jobs are watched")
    nodes = [f"n{i}" for i in range(0, rig.arguments.nodes, round(1 / LOST_SHARE))]
    before, lost_at = await read(rig, api), time.monotonic()
    hit = await rig.lose(nodes)
    say(f"{len(nodes)} nodes lost, {len(hit)} jobs hit")
    with contextlib.suppress(RuntimeError):
        await until(lambda: hit <= moments.planned.keys(), "every job that was hit has its next plan", 300)
    after = await read(rig, api)
    listening.cancel()
    return {
        "hit": len(hit),
        "planned_count": len(hit & moments.planned.keys()),
        "disturbed": len(moments.begun.keys() - hit),
        "loss_cpu": after.cpu_seconds - before.cpu_seconds,
        "begun": quantiles([at - lost_at for uid, at in moments.begun.items() if uid in hit]),
        "planned": quantiles([at - lost_at for uid, at in moments.planned.items() if uid in hit]),
        "loss_writes": {name: after.writes[name] - before.writes[name] for name in KINDS},
        "peak_mb": after.peak_mb,
    }


def quantiles(values: list[float]) -> dict[str, float]:
    if len(values) < 2:
        return {"p50": sum(values), "p99": sum(values)}
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98]}


def print_table(rows: dict[str, Any], arguments: argparse.Namespace) -> None:
    jobs = rows["jobs"]
    print(
        f"\n{jobs} jobs x {arguments.workers} workers, {arguments.nodes} nodes, a save every {arguments.save_seconds:g} s"
    )
    lines = [
        ("start of all jobs, CPU-seconds", f"{rows['start']:.1f}", f"{rows['start'] / jobs:.3f}"),
        ("quiet: CPU, % of a core", f"{100 * rows['cpu']:.1f}", f"{100 * rows['cpu_per_job']:.4f}"),
        ("quiet: memory (RSS), MB", f"{rows['memory_mb']:.0f}", f"{rows['memory_mb'] / jobs:.3f}"),
        ("quiet: passes a second", f"{rows['passes']:.1f}", f"{rows['passes'] / jobs:.4f}"),
        ("quiet: a pass, ms of wall time", f"{rows['pass_ms']:.2f}", ""),
        ("quiet: polls a second", f"{rows['polls']:.1f}", f"{rows['polls'] / jobs:.4f}"),
        *(
            (f"quiet: {name} a second", f"{rate:.2f}", f"{rate / jobs:.4f}")
            for name, rate in rows["writes"].items()
            if rate
        ),
        (f"loss of {LOST_SHARE:.0%} of the nodes: jobs hit, planned anew", f"{rows['hit']}, {rows['planned_count']}", ""),
        ("loss: jobs not hit that were disturbed", f"{rows['disturbed']}", ""),
        ("loss -> next attempt begun, s: p50 / p99", pair(rows["begun"]), ""),
        ("loss -> next plan written, s: p50 / p99", pair(rows["planned"]), ""),
        ("loss: CPU-seconds until all are planned", f"{rows['loss_cpu']:.1f}", f"{rows['loss_cpu'] / max(1, rows['hit']):.3f}"),
        *((f"loss: {name}", f"{n:.0f}", f"{n / max(1, rows['hit']):.2f}") for name, n in rows["loss_writes"].items() if n),
        ("peak memory (RSS), MB", f"{rows['peak_mb']:.0f}", ""),
    ]  # fmt: skip
    print(f"{'':52}{'all':>14}{'a job':>12}")
    for what, value, each in lines:
        print(f"{what:52}{value:>14}{each:>12}")


def pair(times: dict[str, float]) -> str:
    return f"{times['p50']:.2f} / {times['p99']:.2f}"


def say(text: str) -> None:
    print(f"==> {text}", file=sys.stderr, flush=True)


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


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):  # whatever ends it, nothing is left of it
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    async with opened(arguments) as (rig, api):
        return await bench(rig, api)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the quiet jobs are looked at")
    parser.add_argument("--save-seconds", type=float, default=60.0, help="a checkpoint of each job every so often")
    parser.add_argument("--output", type=Path, default=Path("build/bench-operator.json"))
    parser.add_argument("--keep-logs", type=Path, help="a folder for the logs of operator and nodes")
    parser.add_argument("--profile", type=Path, help="write a cProfile of the quiet time into this file")
    arguments = parser.parse_args()
    rows = asyncio.run(run(arguments))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(rows, indent=1) + "\n")
    print_table(rows, arguments)


if __name__ == "__main__":
    main()
