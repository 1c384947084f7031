"""The nodes of the benchmark, in a process of their own: kubelets that run every pod at once, their leases, and scripted sidecars.

Reads orders from standard input, a JSON object a line: `{"lose": ["n1", ...]}`. Says what it has as JSON lines on standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import resource
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from everstep_protocol import auth, names
from everstep_protocol.plan import Plan, parse_plan
from fleet_api import MERGE, STRATEGIC, Api, Refused
from fleet_sidecars import KEEPALIVE_SECONDS, Job, Server, Sidecar

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
RENEW_SECONDS = 10.0  # as kubelets do
LEASE_SECONDS = 40
CONCURRENT = 32


class Fleet:
    """All nodes."""

    def __init__(self, api: Api, arguments: argparse.Namespace, key: bytes) -> None:
        self._api = api
        self._arguments = arguments
        self._key = key
        self._server = Server(arguments.port)
        self._numbers = itertools.count(1)
        self._nodes = [f"n{i}" for i in range(arguments.nodes)]
        self._places = itertools.cycle(self._nodes)
        self._lost: set[str] = set()
        self._jobs: dict[str, Job] = {}
        self._pods: dict[str, Sidecar] = {}  # by UID
        self._plans: dict[tuple[str, int], Plan] = {}
        self._begun: set[str] = set()
        self._running = 0
        self._few = asyncio.Semaphore(CONCURRENT)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until standard input ends."""
        await asyncio.gather(*(self._make_node(node) for node in self._nodes))
        self._say()
        self._spawn(self._renew())
        self._spawn(self._watch())
        self._spawn(self._say_often())
        await self._obey()

    async def _obey(self) -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self._lose(set(json.loads(line)["lose"]))

    def _lose(self, nodes: set[str]) -> None:
        """Their sidecars are silent, their leases end, and their peers' kernels notice a little later."""
        self._lost |= nodes
        self._places = itertools.cycle([node for node in self._nodes if node not in self._lost])
        hit: set[str] = set()
        for pod in self._pods.values():
            if pod.node in nodes:
                pod.lose()
                hit.add(pod.job.uid)
        for uid in hit:
            job = self._jobs[uid]
            job.stalled_at = time.monotonic()
            self._spawn(self._notice(job))
        print(json.dumps({"hit": sorted(hit)}), flush=True)

    async def _notice(self, job: Job) -> None:
        await asyncio.sleep(KEEPALIVE_SECONDS + 0.01)
        for pod in job.pods.values():
            if not pod.is_lost:
                pod.touch()

    async def _renew(self) -> None:
        """Spread over the interval."""
        for node in itertools.cycle(self._nodes):
            if node not in self._lost:
                self._spawn(self._renew_one(node))
            await asyncio.sleep(RENEW_SECONDS / len(self._nodes))

    async def _renew_one(self, node: str) -> None:
        async with self._few:
            await self._api.call("PATCH", f"{LEASES}/{node}", {"spec": {"renewTime": _micro_time()}}, MERGE)

    async def _make_node(self, node: str) -> None:
        async with self._few:
            await self._api.call("POST", "/api/v1/nodes", {"metadata": {"name": node}})
            ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
            await self._api.call("PATCH", f"/api/v1/nodes/{node}/status", ready, STRATEGIC)
            await self._api.call("PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": None}}, MERGE)
            spec = {"leaseDurationSeconds": LEASE_SECONDS, "renewTime": _micro_time()}
            await self._api.call("POST", LEASES, {"metadata": {"name": node}, "spec": spec})

    async def _watch(self) -> None:
        async for event in self._api.watch(f"/api/v1/namespaces/{self._arguments.namespace}/pods"):
            pod = event["object"]
            if event["type"] == "DELETED":
                self._forget(pod["metadata"]["uid"])
            elif event["type"] in ("ADDED", "MODIFIED"):
                self._look(pod)

    def _look(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        uid = meta["uid"]
        known = self._pods.get(uid)
        if "deletionTimestamp" in meta:
            if known is None or not known.is_lost:
                self._spawn(self._end(pod))
        elif uid not in self._begun:
            self._begun.add(uid)
            self._spawn(self._begin(pod))
        elif known is not None:
            self._tell(known, meta)

    def _tell(self, sidecar: Sidecar, meta: dict[str, Any]) -> None:
        """The annotation is mounted as a file: its plan is obeyed."""
        annotations = meta.get("annotations") or {}
        number = int(annotations.get(names.ANNOTATION_ATTEMPT) or 0)
        if number and (sidecar.plan is None or sidecar.plan.attempt < number):
            key = (sidecar.job.uid, number)
            if key not in self._plans:
                self._plans[key] = parse_plan(annotations[names.ANNOTATION_PLAN])
            sidecar.obey(self._plans[key])

    async def _begin(self, pod: dict[str, Any]) -> None:
        """Scheduled, started and Running at once."""
        meta = pod["metadata"]
        number = next(self._numbers)
        ip = f"127.{16 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
        job_uid = meta["labels"][names.LABEL_JOB_UID]
        job = self._jobs.setdefault(job_uid, Job(job_uid, self._arguments.save_seconds))
        sidecar = Sidecar(meta["uid"], ip, next(self._places), job, auth.job_token(self._key, job_uid))
        self._pods[sidecar.uid] = job.pods[sidecar.uid] = sidecar
        await self._server.add(sidecar)
        async with self._few:
            await self._start(pod, sidecar)
        self._running += 1

    async def _start(self, pod: dict[str, Any], sidecar: Sidecar) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        target = {"kind": "Node", "name": sidecar.node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": target}
        running = {"state": {"running": {}}, "ready": True, "restartCount": 0, "image": "", "imageID": ""}
        status = {
            "phase": "Running",
            "podIP": sidecar.ip,
            "podIPs": [{"ip": sidecar.ip}],
            "initContainerStatuses": [{"name": names.SIDECAR_CONTAINER, **running}],
            "containerStatuses": [{"name": "trainer", **running}],
        }
        try:
            await self._api.call("POST", f"{path}/binding", binding)
            await self._api.call("PATCH", f"{path}/status", {"status": status}, STRATEGIC)
        except Refused as error:
            if error.status not in (404, 409):
                raise

    async def _end(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        try:
            async with self._few:
                await self._api.call("DELETE", path, options)
        except Refused as error:
            if error.status not in (404, 409):
                raise

    def _forget(self, uid: str) -> None:
        sidecar = self._pods.pop(uid, None)
        if sidecar is not None:
            sidecar.lose()
            sidecar.job.pods.pop(uid, None)

    async def _say_often(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self._say()

    def _say(self) -> None:
        print(json.dumps({"running": self._running, "polls": self._server.polls}), flush=True)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            print(f"fleet: {error!r}", file=sys.stderr, flush=True)


def _micro_time() -> str:
    return datetime.now(tz=timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


async def _main(arguments: argparse.Namespace) -> None:
    key = arguments.key_file.read_bytes()
    async with Api(arguments.url, arguments.token) as api:
        await Fleet(api, arguments, key).run()


def main() -> None:
    """Until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--key-file", type=Path, required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--save-seconds", type=float, required=True)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
