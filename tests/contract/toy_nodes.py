"""Toy kubelets and sidecars for a real API server: pods are bound and run at once, sidecars say what they are told to say."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from conftest import Space
from everstep_protocol import auth, names, plan
from everstep_protocol.messages import (
    Ack,
    Announce,
    CheckpointInfo,
    ExitRequest,
    LeaveRequest,
    MemberSummary,
    Over,
    PollRequest,
    PrepareAnswer,
    PrepareRequest,
    SidecarStatus,
    Training,
)
from everstep_sidecar.server import Identity, Rejected, Route, Server

_MERGE = "application/strategic-merge-patch+json"


@dataclass
class Storage:
    """What all toy sidecars see: the highest fence and the checkpoints."""

    highest: int = 0
    intents: dict[int, str] = field(default_factory=dict)
    checkpoints: tuple[CheckpointInfo, ...] = ()


@dataclass
class Sidecar:
    """One toy sidecar, at an address of its own."""

    uid: str
    ip: str
    storage: Storage
    attempt: int = 0
    plan: plan.Plan | None = None
    over: Over | None = None
    finished: bool = False
    version: int = 0
    leaves: int = 0
    exits: list[ExitRequest] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _runner: web.AppRunner | None = None

    async def start(self, key: bytes, job_uid: str, port: int) -> None:
        identity = Identity(auth.job_token(key, job_uid), job_uid, self.uid)
        routes = {
            "/v1/prepare": Route(PrepareRequest, self._prepare, "operator"),
            "/v1/announce": Route(Announce, self._announce, "job"),
            "/v1/poll": Route(PollRequest, self._poll, "operator"),
            "/v1/leave": Route(LeaveRequest, self._leave, "operator"),
            "/v1/exit": Route(ExitRequest, self._exit, "operator"),
        }
        server = Server(identity, routes, is_member=lambda uid: True, highest=lambda: self.attempt, status=self.status)
        self._runner = web.AppRunner(server.application(), shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.ip, port).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def obey(self, new: plan.Plan) -> None:
        """A plan came, by annotation or by announce; only upwards."""
        if new.attempt > self.attempt or (new.attempt == self.attempt and self.plan is None):
            self.attempt, self.plan, self.over = new.attempt, new, None
            self.touch()

    def touch(self) -> None:
        """Something changed that is worth an answer."""
        self.version += 1
        self._changed.set()

    def status(self) -> SidecarStatus:
        here = self.plan
        is_coordinator = here is not None and here.coordinator.uid == self.uid
        members = here.members if here is not None and is_coordinator else ()
        state = "finished" if self.finished else "running"
        return SidecarStatus(
            format=1,
            version=str(self.version),
            pod_uid=self.uid,
            highest=self.attempt,
            attempt=here.attempt if here else 0,
            plan_id=here.plan_id if here else "",
            role="coordinator" if is_coordinator else "member" if here else "none",
            gone=here is not None,
            finished=self.finished,
            late_seconds=0.0,
            training=Training(True, 10 + self.version, 0.05, 0.1, "training"),
            members=tuple(MemberSummary(m.uid, state, 0, max(0, len(members) - 1)) for m in members),  # type: ignore[arg-type]
            over=self.over,
            checkpoints=self.storage.checkpoints if is_coordinator else (),
        )

    async def _prepare(self, sender: str, request: PrepareRequest) -> PrepareAnswer:
        """R4, R5: a higher fence is told, the same intent is mine."""
        fence = self.storage
        taken = fence.intents.get(request.attempt, request.intent_id) != request.intent_id
        if request.attempt < fence.highest or taken:
            return PrepareAnswer(
                request.attempt,
                request.intent_id,
                "fenced",
                "Fenced",
                "",
                fence.highest,
                plan.Resume("none"),
                request.lineage,
            )
        fence.highest = request.attempt
        fence.intents[request.attempt] = request.intent_id
        resume, lineage = plan.Resume("none"), request.lineage
        if fence.checkpoints:
            newest = fence.checkpoints[-1]
            resume = plan.Resume("checkpoint", newest.id, newest.dir, newest.attempt, newest.step)
            lineage = ((newest.attempt, newest.step),)
        return PrepareAnswer(
            request.attempt, request.intent_id, "ready", "Newest", "", fence.highest, resume, lineage, fence.checkpoints
        )

    async def _announce(self, sender: str, message: Announce) -> Ack:
        if message.plan is not None:
            self.obey(message.plan)
        self.attempt = max(self.attempt, message.attempt)
        return Ack(self.attempt)

    async def _poll(self, sender: str, request: PollRequest) -> SidecarStatus:
        if request.version == str(self.version):
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), request.wait_seconds)
        return self.status()

    async def _leave(self, sender: str, request: LeaveRequest) -> Ack:
        if self.plan is None or request.attempt != self.plan.attempt:
            raise Rejected(409, "not my attempt")
        self.leaves += 1
        step = 100 + self.leaves
        made = CheckpointInfo(f"id-{step}", f"step_{step}", request.attempt, step, 1, "2026-01-01T00:00:00Z")
        self.storage.checkpoints = (*self.storage.checkpoints, made)
        self.over = Over("stopped", "saved and stopped", step=step)
        self.touch()
        return Ack(self.attempt)

    async def _exit(self, sender: str, request: ExitRequest) -> Ack:
        self.exits.append(request)
        return Ack(self.attempt)


class ToyNodes:
    """Runs every pod of one namespace. `sidecars` by pod name."""

    def __init__(self, space: Space, key: bytes) -> None:
        self._space = space
        self._key = key
        self._numbers = itertools.count(2)
        self.storage = Storage()
        self.sidecars: dict[str, Sidecar] = {}
        self.most_pods = 0
        self.without_room: set[str] = set()  # names of pods that no node has room for

    def make_nodes(self, *nodes: str) -> None:
        """Ready nodes with leases."""
        call = self._space.server.call
        for node in nodes:
            call("POST", "/api/v1/nodes", {"metadata": {"name": node}})
            ready = {"conditions": [{"type": "Ready", "status": "True"}]}
            assert call("PATCH", f"/api/v1/nodes/{node}/status", {"status": ready}, _MERGE)[0] == 200
            untaint = {"spec": {"taints": None}}
            assert call("PATCH", f"/api/v1/nodes/{node}", untaint, "application/merge-patch+json")[0] == 200
            call("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", self._lease(node))

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.look()
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        for sidecar in self.sidecars.values():
            await sidecar.stop()

    async def look(self) -> None:
        """What a kubelet does: run what is new, end what is deleted, bring annotations."""
        _, answer = await asyncio.to_thread(self._space.server.call, "GET", self._space.pods)
        pods = {pod["metadata"]["name"]: pod for pod in answer["items"]}
        self.most_pods = max(self.most_pods, sum("deletionTimestamp" not in pod["metadata"] for pod in pods.values()))
        for name in [name for name in self.sidecars if name not in pods]:
            await self.sidecars.pop(name).stop()
        for name, pod in pods.items():
            await self._run(name, pod)

    async def _run(self, name: str, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        if "deletionTimestamp" in meta:
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
            await asyncio.to_thread(self._space.server.call, "DELETE", f"{self._space.pods}/{name}", options)
            return
        if name in self.without_room:
            await self._say_no_room(name, pod)
            return
        if name not in self.sidecars:
            await self._begin(name, pod)
        if self.sidecars[name].exits and pod["status"]["phase"] == "Running":
            await self._patch_status(name, {"phase": "Succeeded"})
        text = meta["annotations"].get(names.ANNOTATION_PLAN)
        if text:
            self.sidecars[name].obey(plan.parse_plan(text))

    async def _say_no_room(self, name: str, pod: dict[str, Any]) -> None:
        """As the scheduler does."""
        if (pod.get("status") or {}).get("conditions"):
            return
        message = "0/2 nodes are available: 2 Insufficient cpu."
        unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        await asyncio.to_thread(
            self._space.server.call,
            "PATCH",
            f"{self._space.pods}/{name}/status",
            {"status": {"conditions": [unscheduled]}},
            _MERGE,
        )

    async def _begin(self, name: str, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        number = next(self._numbers)
        sidecar = Sidecar(meta["uid"], f"127.0.1.{number}", self.storage)
        (own,) = (c for c in pod["spec"]["initContainers"] if c["name"] == names.SIDECAR_CONTAINER)
        port = next(item["containerPort"] for item in own["ports"] if item["name"] == names.PORT_NAME_API)
        await sidecar.start(self._key, meta["labels"][names.LABEL_JOB_UID], port)
        self.sidecars[name] = sidecar
        node = f"n{number % 2 + 1}"
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"kind": "Node", "name": node},
        }
        call = self._space.server.call
        assert (await asyncio.to_thread(call, "POST", f"{self._space.pods}/{name}/binding", binding))[0] == 201
        running = {"state": {"running": {}}, "ready": True, "restartCount": 0, "image": "", "imageID": ""}
        status = {
            "phase": "Running",
            "podIP": sidecar.ip,
            "podIPs": [{"ip": sidecar.ip}],
            "initContainerStatuses": [{"name": names.SIDECAR_CONTAINER, **running}],
            "containerStatuses": [{"name": "trainer", **running}],
        }
        await self._patch_status(name, status)

    async def _patch_status(self, name: str, status: dict[str, Any]) -> None:
        call, path = self._space.server.call, f"{self._space.pods}/{name}/status"
        code, answer = await asyncio.to_thread(call, "PATCH", path, {"status": status}, _MERGE)
        assert code == 200, answer

    def _lease(self, node: str) -> dict[str, Any]:
        return {
            "metadata": {"name": node},
            "spec": {"leaseDurationSeconds": 3600, "renewTime": "2026-01-01T00:00:00.000000Z"},
        }
