"""Sidecars that answer what they are told, on the sidecars' own server and real sockets; hosts that are silent."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web
from everstep_operator.cluster.backoff import Clock
from everstep_operator.cluster.errands import Errands
from everstep_operator.cluster.follow import Follower
from everstep_operator.cluster.probes import Prober
from everstep_operator.cluster.sidecars import SidecarClient
from everstep_operator.cluster.tries import Tries
from everstep_protocol import auth, messages
from everstep_protocol.messages import Peer, PollRequest, PrepareRequest, SidecarStatus, Training
from everstep_protocol.plan import FORMAT, Coordinator, Member, Plan, Resume, SaveInterval, sealed
from everstep_sidecar.server import Identity, Rejected, Route, Server
from hang_limit import hang_seconds

KEY = b"k" * 32
JOB = "job-uid"
HANG = hang_seconds(20.0)


def status(uid: str, **changes: Any) -> SidecarStatus:
    training = Training(True, 5, 0.1, 0.1, "training")
    base = SidecarStatus(1, "v1", uid, 1, 1, "p", "member", True, False, 0.0, training)
    return replace(base, **changes)


@dataclass
class Pod:
    """A sidecar on a loopback address: answers what it is told."""

    ip: str
    port: int
    uid: str
    status: SidecarStatus
    key: bytes = KEY
    paths: tuple[str, ...] = ("poll", "announce", "leave", "prepare", "sight", "exit")
    asked: list[Any] = field(default_factory=list)
    answer: Callable[[Any], Any] = lambda request: messages.Ack(1)
    rejects_polls: bool = False
    background: asyncio.Task[None] | None = None
    _runner: web.AppRunner | None = None

    async def start(self) -> None:
        identity = Identity(auth.job_token(self.key, JOB), JOB, self.uid)
        kinds = {
            "poll": PollRequest,
            "announce": messages.Announce,
            "leave": messages.LeaveRequest,
            "exit": messages.ExitRequest,
            "prepare": PrepareRequest,
            "sight": messages.SightRequest,
        }
        routes = {f"/v1/{name}": Route(kind, self._handle, "job") for name, kind in kinds.items() if name in self.paths}
        server = Server(identity, routes, is_member=lambda uid: True, highest=lambda: 9, status=lambda: self.status)
        self._runner = web.AppRunner(server.application())
        await self._runner.setup()
        await web.TCPSite(self._runner, self.ip, self.port).start()

    async def stop(self) -> None:
        if self.background is not None:
            self.background.cancel()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, sender: str, request: Any) -> Any:
        assert sender == auth.OPERATOR
        self.asked.append(request)
        if not isinstance(request, PollRequest):
            answer = self.answer(request)
            return await answer if inspect.isawaitable(answer) else answer
        if self.rejects_polls:
            raise Rejected(409, "for ever")
        if request.version == self.status.version:
            await asyncio.sleep(request.wait_seconds)
        return self.status


@contextlib.contextmanager
def silent_host(ip: str, port: int) -> Any:
    """A host that answers no SYN: its backlog is full and nobody accepts."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ip, port))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((ip, port))
        yield


@contextlib.asynccontextmanager
async def client(port: int) -> AsyncIterator[SidecarClient]:
    made = SidecarClient(KEY, port)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


async def poll(asker: SidecarClient, peer: Peer) -> SidecarStatus:
    return await asker.call(JOB, peer, "/v1/poll", PollRequest(None, 0.0, 1), SidecarStatus, 3.0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), HANG)

    asyncio.run(bounded())


class FastClock(Clock):
    """Ten seconds a second."""

    SPEED = 10.0

    def now(self) -> float:
        return time.monotonic() * self.SPEED

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.SPEED)

    async def wait_for_tasks(self, tasks: Collection[asyncio.Task[None]], seconds: float) -> None:
        await super().wait_for_tasks(tasks, seconds / self.SPEED)


@dataclass
class Made:
    """A follower with what it needs."""

    follower: Follower
    prober: Prober


def follower_of(asker: SidecarClient, wake: Callable[[], None] = lambda: None, clock: Clock | None = None) -> Made:
    clock = clock or Clock()
    prober = Prober(asker, clock, wake)
    return Made(Follower(asker, prober, clock, wake), prober)


def errands_of(asker: SidecarClient, wake: Callable[[], None] = lambda: None, clock: Clock | None = None) -> Errands:
    return Errands(asker, JOB, Tries(clock or Clock(), wake))


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def plan_of(*pods: Pod) -> Plan:
    members = tuple(Member(i, pod.uid, pod.ip, f"n{i}", (i, i + 1)) for i, pod in enumerate(pods))
    first = pods[0]
    coordinator = Coordinator(0, first.uid, first.ip, first.port)
    return sealed(
        Plan(FORMAT, JOB, 1, "", 1, "h", len(pods), coordinator, members, Resume("none"), (), "start", SaveInterval(5))
    )
