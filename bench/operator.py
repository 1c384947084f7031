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
import signal
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everstep_operator.api import crd
from fleet_api import Api, Refused
from fleet_rig import NAMESPACE, Raw, Rig, opened, until
from fleet_table import print_table

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


def say(text: str) -> None:
    print(f"==> {text}", file=sys.stderr, flush=True)


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
    print_table(rows, arguments, LOST_SHARE)


if __name__ == "__main__":
    main()
