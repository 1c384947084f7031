"""Scripted sidecars: real HTTP with real signatures, one loopback address a pod, answers from a script of steps, saves and losses."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import socket
import struct
import time
import weakref
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from everstep_protocol import auth, codec
from everstep_protocol.messages import (
    Ack,
    Announce,
    CheckpointInfo,
    LeaveRequest,
    MemberSummary,
    PollRequest,
    PrepareAnswer,
    PrepareRequest,
    SidecarStatus,
    Sight,
    SightRequest,
    Training,
)
from everstep_protocol.plan import Member, Plan, Resume

STEP_SECONDS = 0.5
KEEPALIVE_SECONDS = 2.5  # a kernel notices after so long that its peer's host is dead
_SO_ATTACH_FILTER = 26


@dataclass
class Job:
    """What all pods of one job share: the storage, and how far the training has come."""

    uid: str
    save_seconds: float
    highest: int = 0
    intent: str = ""
    checkpoints: tuple[CheckpointInfo, ...] = ()
    deleted: tuple[str, ...] = ()
    first_step: int = 0  # of the attempt that runs
    began_at: float = 0.0
    stalled_at: float | None = None
    pods: dict[str, Sidecar] = field(default_factory=dict)

    def begin(self, plan: Plan) -> None:
        """A coordinator obeys a new plan: everything goes on from its resume."""
        self.first_step, self.began_at, self.stalled_at = plan.resume.step, time.monotonic(), None
        if any(member.uid not in self.pods or self.pods[member.uid].is_lost for member in plan.members):
            self.stalled_at = self.began_at

    def training(self) -> Training:
        """Steps advance with time, until somebody is lost."""
        now = time.monotonic()
        trained = (now if self.stalled_at is None else self.stalled_at) - self.began_at
        steps = int(trained / STEP_SECONDS)
        age = now - self.began_at - steps * STEP_SECONDS
        return Training(True, self.first_step + steps, age, STEP_SECONDS, "training")

    def save(self, plan: Plan) -> None:
        """A commit of the newest step."""
        step = self.training().step
        made = CheckpointInfo(f"{plan.attempt:08x}{step:056x}", f"step_{step}", plan.attempt, step, 1 << 30)
        self.checkpoints = (*self.checkpoints, made)

    def delete(self, condemned: tuple[str, ...]) -> bool:
        """What is condemned goes; whether anything went."""
        gone = tuple(info.id for info in self.checkpoints if info.id in condemned)
        self.checkpoints = tuple(info for info in self.checkpoints if info.id not in gone)
        self.deleted = (*self.deleted, *gone)[-100:]
        return bool(gone)


@dataclass
class Sidecar:
    """One pod."""

    uid: str
    ip: str
    node: str
    job: Job
    token: str
    plan: Plan | None = None
    version: int = 0
    is_lost: bool = False
    listener: socket.socket | None = None
    connections: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    saving: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_coordinator(self) -> bool:
        return self.plan is not None and self.plan.coordinator.uid == self.uid

    def obey(self, plan: Plan) -> None:
        """Only upwards."""
        if self.is_lost or (self.plan is not None and plan.attempt <= self.plan.attempt):
            return
        self.plan = plan
        if self.is_coordinator:
            self.job.begin(plan)
            self.saving = asyncio.create_task(self._save_for_ever(plan))
        self.touch()

    def touch(self) -> None:
        """Something changed that is worth an answer."""
        self.version += 1
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    async def _save_for_ever(self, plan: Plan) -> None:
        await asyncio.sleep(self.job.save_seconds * (hash(self.uid) % 1000) / 1000)
        while self.plan is plan and not self.is_lost and self.job.stalled_at is None:
            self.job.save(plan)
            self.touch()
            await asyncio.sleep(self.job.save_seconds)

    def status(self) -> SidecarStatus:
        """As a real one of this role says it."""
        plan = self.plan
        members = plan.members if plan is not None and self.is_coordinator else ()
        lost = self._lost_peers()
        return SidecarStatus(
            format=1,
            version=str(self.version),
            pod_uid=self.uid,
            highest=max(self.job.highest, plan.attempt if plan else 0),
            attempt=plan.attempt if plan else 0,
            plan_id=plan.plan_id if plan else "",
            role="coordinator" if self.is_coordinator else "member" if plan else "none",
            gone=self.is_coordinator,
            finished=False,
            late_seconds=0.0,
            training=self.job.training() if plan else Training(False, -1, 0.0, 0.0, "none"),
            members=tuple(self._summary(member, len(members), lost) for member in members),
            lost_peers=lost,
            checkpoints=self.job.checkpoints if self.is_coordinator else (),
            deleted=self.job.deleted if self.is_coordinator else (),
        )

    def _summary(self, member: Member, num_members: int, lost: dict[str, float]) -> MemberSummary:
        living = num_members - len(lost)
        lost_by = living if member.uid in lost else 0
        return MemberSummary(
            member.uid, "running", lost_by, living - (member.uid not in lost), heard_age_seconds=time.monotonic() % 1.0
        )

    def _lost_peers(self) -> dict[str, float]:
        stalled = self.job.stalled_at
        if self.plan is None or stalled is None or time.monotonic() - stalled < KEEPALIVE_SECONDS:
            return {}
        age = time.monotonic() - stalled - KEEPALIVE_SECONDS
        pods = self.job.pods
        return {m.uid: age for m in self.plan.members if m.uid in pods and pods[m.uid].is_lost and m.uid != self.uid}

    async def answer(self, path: str, body: bytes) -> Any:
        """The message that answers this one; None: no such path."""
        if path == "/v1/poll":
            return await self._poll(codec.loads(PollRequest, body))
        if path == "/v1/prepare":
            return self._prepare(codec.loads(PrepareRequest, body))
        if path == "/v1/announce":
            announced = codec.loads(Announce, body)
            if announced.plan is not None:
                self.obey(announced.plan)
            return Ack(max(self.job.highest, announced.attempt))
        if path == "/v1/sight":
            codec.loads(SightRequest, body)
            return Sight(self.uid, None, True, self.job.highest)
        if path == "/v1/leave":
            codec.loads(LeaveRequest, body)
            return Ack(self.job.highest)
        return None

    async def _poll(self, request: PollRequest) -> SidecarStatus:
        if self.is_coordinator and self.job.delete(request.condemned):
            self.touch()
        if request.version == str(self.version):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.changed.wait(), request.wait_seconds)
        return self.status()

    def _prepare(self, asked: PrepareRequest) -> PrepareAnswer:
        job = self.job
        if asked.attempt < job.highest or (asked.attempt == job.highest and asked.intent_id != job.intent):
            none = Resume("none")
            return PrepareAnswer(
                asked.attempt, asked.intent_id, "fenced", "Fenced", "", job.highest, none, asked.lineage
            )
        job.highest, job.intent = asked.attempt, asked.intent_id
        resume, lineage = Resume("none"), asked.lineage
        if job.checkpoints:
            newest = job.checkpoints[-1]
            resume = Resume("checkpoint", newest.id, newest.dir, newest.attempt, newest.step)
            lineage = ((newest.attempt, newest.step),)
        living = (uid for uid in asked.expected if uid in job.pods and not job.pods[uid].is_lost)
        sights = tuple(Sight(uid, None, True, job.highest) for uid in living)
        return PrepareAnswer(
            asked.attempt, asked.intent_id, "ready", "Newest", "", job.highest, resume, lineage, job.checkpoints,
            sights=sights, raised_by=self.uid,
        )  # fmt: skip

    def lose(self) -> None:
        """Its host is dead: not a packet is answered any more, by no kernel either."""
        self.is_lost = True
        open_ones = [transport for transport in self.connections if not transport.is_closing()]
        for sock in (self.listener, *(transport.get_extra_info("socket") for transport in open_ones)):
            if sock is not None:
                _drop_all(sock)


class Server:
    """Serves all sidecars from one loop. `polls` counts."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._by_ip: dict[str, Sidecar] = {}
        self.polls = 0

    async def add(self, sidecar: Sidecar) -> None:
        """Listen at its address."""
        server = web.Server(self._handle, access_log=None)
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((sidecar.ip, self._port))
        listener.listen(16)
        listener.setblocking(False)
        self._by_ip[sidecar.ip] = sidecar
        sidecar.listener = listener
        await asyncio.get_running_loop().create_server(server, sock=listener)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        sidecar = self._by_ip[request.transport.get_extra_info("sockname")[0]]
        sidecar.connections.add(request.transport)
        head = auth.read_head(request.method, request.path, request.headers)
        if not auth.verify(head.signature(sidecar.token), request.headers.get(auth.HEADER_SIGNATURE)):
            return web.Response(status=401)
        self.polls += request.path == "/v1/poll"
        answer = await sidecar.answer(request.path, await request.read())
        status = 200 if answer is not None else 404
        body = codec.dumps(answer if answer is not None else {"error": "no such path", "highest": 0}).encode()
        signature = auth.sign_answer(sidecar.token, nonce=head.nonce, status=status, responder=sidecar.uid, body=body)
        headers = {auth.HEADER_SIGNATURE: signature}
        return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def _drop_all(sock: Any) -> None:
    """A filter that lets no packet in: neither SYN nor keepalive probes are answered, as if the host had no power."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # `return 0`
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))
