"""The operator's side of the sidecars' API, against the sidecars' own server on real sockets: signatures, silence, refusal, probes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web
from everstep_operator.cluster.errands import Errands
from everstep_operator.cluster.follow import Follower, Target
from everstep_operator.cluster.sidecars import Refusing, Rejected, SidecarClient, Silent
from everstep_operator.core import model
from everstep_protocol import auth, messages
from everstep_protocol.messages import MemberSummary, Peer, PollRequest, PrepareRequest, SidecarStatus, Training
from everstep_protocol.plan import FORMAT, Coordinator, Member, Plan, Resume, SaveInterval, sealed
from everstep_sidecar.server import Identity, Route, Server
from everstep_sidecar.server import Rejected as ServerRejects

KEY = b"k" * 32
JOB = "job-uid"
HANG = 20.0


def status(uid: str, **changes: Any) -> SidecarStatus:
    training = Training(True, 5, 0.1, 0.1, "training")
    base = SidecarStatus(1, "v1", uid, 1, 1, "p", "member", True, False, 0.0, training)
    return replace(base, **changes)


@dataclass
class Pod:
    """A sidecar at 127.0.0.<n>: answers what it is told."""

    ip: str
    port: int
    uid: str
    status: SidecarStatus
    key: bytes = KEY
    asked: list[Any] = field(default_factory=list)
    answer: Callable[[Any], Any] = lambda request: messages.Ack(1)
    _runner: web.AppRunner | None = None

    async def start(self) -> None:
        identity = Identity(auth.job_token(self.key, JOB), JOB, self.uid)
        kinds = {
            "poll": PollRequest,
            "announce": messages.Announce,
            "leave": messages.LeaveRequest,
            "prepare": PrepareRequest,
        }
        routes = {f"/v1/{name}": Route(kind, self._handle, "job") for name, kind in kinds.items()}
        server = Server(identity, routes, is_member=lambda uid: True, highest=lambda: 9, status=lambda: self.status)
        self._runner = web.AppRunner(server.application())
        await self._runner.setup()
        await web.TCPSite(self._runner, self.ip, self.port).start()

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _handle(self, sender: str, request: Any) -> Any:
        assert sender == auth.OPERATOR
        self.asked.append(request)
        if not isinstance(request, PollRequest):
            return self.answer(request)
        if request.version == self.status.version:
            await asyncio.sleep(request.wait_seconds)
        return self.status


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


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


def test_r22_an_answer_of_the_pod_that_is_meant() -> None:
    async def test() -> None:
        pod = Pod("127.0.0.1", free_port(), "pod-a", status("pod-a"))
        await pod.start()
        async with client(pod.port) as asker:
            assert await poll(asker, Peer("pod-a", pod.ip)) == pod.status
        await pod.stop()

    run(test)


@pytest.mark.parametrize("case", ["another pod has the IP", "another job's token"])
def test_r22_any_other_answer_is_silence(case: str) -> None:
    async def test() -> None:
        key = KEY if case == "another pod has the IP" else b"x" * 32
        pod = Pod("127.0.0.1", free_port(), "pod-b", status("pod-b"), key=key)
        await pod.start()
        async with client(pod.port) as asker:
            with pytest.raises(Silent, match="not signed by pod pod-a"):
                await poll(asker, Peer("pod-a", pod.ip))
        await pod.stop()

    run(test)


def test_r25_a_refused_connection_is_no_silence() -> None:
    async def test() -> None:
        async with client(free_port()) as asker:
            with pytest.raises(Refusing):
                await poll(asker, Peer("pod-a", "127.0.0.1"))
            assert await asker.probe("127.0.0.1")

    run(test)


def test_r25_a_host_that_does_not_answer_is_silent() -> None:
    async def test() -> None:
        port = free_port()
        async with client(port) as asker:
            with silent_host("127.0.0.1", port):
                with pytest.raises(Silent):
                    await poll(asker, Peer("pod-a", "127.0.0.1"))
                assert not await asker.probe("127.0.0.1")

    run(test)


def test_a_signed_no_is_told_with_its_reason() -> None:
    def refuse(request: Any) -> Any:
        raise ServerRejects(409, "a higher attempt exists")

    async def test() -> None:
        pod = Pod("127.0.0.1", free_port(), "pod-a", status("pod-a"), answer=refuse)
        await pod.start()
        async with client(pod.port) as asker:
            with pytest.raises(Rejected, match="a higher attempt exists") as caught:
                await asker.call(JOB, Peer("pod-a", pod.ip), "/v1/announce", messages.Announce(1), messages.Ack, 3.0)
            assert caught.value.problem.highest == 9
        await pod.stop()

    run(test)


def test_r22_a_restarted_sidecar_costs_one_refusal_that_nobody_sees() -> None:
    async def test() -> None:
        pod = Pod("127.0.0.1", free_port(), "pod-a", status("pod-a"))
        async with client(pod.port) as asker:
            for _ in range(3):
                await pod.start()
                for _ in range(3):
                    assert await poll(asker, Peer("pod-a", pod.ip)) == pod.status
                await pod.stop()
        assert len(pod.asked) == 9

    run(test)


def test_r22_a_request_is_repeated_once_and_no_more() -> None:
    def refuse(request: Any) -> Any:
        raise ServerRejects(auth.OTHER_BOOT, "another boot id, for ever")

    async def test() -> None:
        pod = Pod("127.0.0.1", free_port(), "pod-a", status("pod-a"), answer=refuse)
        await pod.start()
        async with client(pod.port) as asker:
            with pytest.raises(Rejected, match="for ever"):
                await asker.call(JOB, Peer("pod-a", pod.ip), "/v1/announce", messages.Announce(1), messages.Ack, 3.0)
        assert len(pod.asked) == 1  # the first contact was refused before it got there
        await pod.stop()

    run(test)


async def _answer_without_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        for _ in range(64):  # 4 MiB, then nothing more
            writer.write(b"x" * 65536)
            await writer.drain()
        while await reader.read(1000):
            pass
    writer.close()


def test_st16_an_answer_without_end_is_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        port = free_port()
        async with client(port) as asker, await asyncio.start_server(_answer_without_end, "127.0.0.1", port):
            with pytest.raises(Silent, match="the answer has more than"):
                await asker.call(JOB, Peer("pod-a", "127.0.0.1"), "/v1/leave", {}, messages.Ack, 5.0)

    monkeypatch.setattr(auth, "LARGEST_ANSWER_BYTES", 1 << 20)
    run(test)


def test_the_coordinator_alone_is_asked_and_condemned_ids_go_with_the_poll() -> None:
    async def test() -> None:
        port = free_port()
        pods = [Pod(f"127.0.0.{i + 1}", port, f"pod-{i}", status(f"pod-{i}")) for i in range(2)]
        for pod in pods:
            await pod.start()
        woken = asyncio.Event()
        async with client(port) as asker:
            follower = Follower(asker, woken.set)
            follower.follow(Target(JOB, plan_of(*pods), ("old",)))
            await until(lambda: follower.seen is not None)
            assert follower.seen is not None
            assert (follower.seen.status, woken.is_set(), pods[1].asked) == (pods[0].status, True, [])
            assert pods[0].asked[0].condemned == ("old",)
            assert follower.gone_at is not None
            follower.stop()
        for pod in pods:
            await pod.stop()

    run(test)


def test_r25_a_silent_coordinator_is_probed_and_the_others_are_asked() -> None:
    async def test() -> None:
        port = free_port()
        dead = Pod("127.0.0.1", port, "pod-0", status("pod-0"))
        pods = [
            Pod(f"127.0.0.{i + 1}", port, f"pod-{i}", status(f"pod-{i}", lost_peers={"pod-0": 2.0})) for i in (1, 2)
        ]
        for pod in pods:
            await pod.start()
        async with client(port) as asker:
            follower = Follower(asker, lambda: None)
            with silent_host("127.0.0.1", port):
                follower.follow(Target(JOB, plan_of(dead, *pods), ()))
                await until(
                    lambda: follower.failed_probes.get("pod-0", 0) >= 2 and follower.lost.get("pod-0") == (2, 2)
                )
            assert follower.lost["pod-1"] == (0, 1)
            assert follower.failed_probes.get("pod-1", 0) == 0
            assert asker.heard_within(5.0, other_than={"n0"})
            assert not asker.heard_within(5.0, other_than={"n1", "n2"})
            follower.stop()
        for pod in pods:
            await pod.stop()

    run(test)


def test_r25_a_member_that_peers_lost_is_probed_until_it_answers() -> None:
    async def test() -> None:
        port = free_port()
        summary = (MemberSummary("pod-0", "running", 0, 1), MemberSummary("pod-1", "running", 1, 1))
        coordinator = Pod("127.0.0.1", port, "pod-0", status("pod-0", members=summary))
        member = Pod("127.0.0.2", port, "pod-1", status("pod-1"))
        await coordinator.start()
        async with client(port) as asker:
            follower = Follower(asker, lambda: None)
            with silent_host(member.ip, port):
                follower.follow(Target(JOB, plan_of(coordinator, member), ()))
                await until(lambda: follower.failed_probes.get("pod-1", 0) >= 2)
                assert follower.lost["pod-1"] == (1, 1)
            await until(lambda: follower.failed_probes["pod-1"] == 0)  # it refuses now: it lives
            follower.stop()
        await coordinator.stop()

    run(test)


def test_a_new_plan_begins_without_memory_of_the_old() -> None:
    async def test() -> None:
        port = free_port()
        pod = Pod("127.0.0.1", port, "pod-0", status("pod-0"))
        await pod.start()
        async with client(port) as asker:
            follower = Follower(asker, lambda: None)
            plan = plan_of(pod)
            follower.follow(Target(JOB, plan, ()))
            await until(lambda: follower.seen is not None)
            follower.follow(Target(JOB, sealed(replace(plan, attempt=2)), ()))
            assert follower.seen is None
            count = len(pod.asked)
            await until(lambda: len(pod.asked) > count + 2)  # it answers of attempt 1: not of the one that is followed
            assert follower.seen is None
            versions = [request.version for request in pod.asked[count:]]
            first = versions.index(None)  # a poll for the old plan may have been on its way
            assert versions[first : first + 2] == [None, "v1"], (
                "an answer that does not count is not asked for again at once"
            )
            follower.stop()
        await pod.stop()

    run(test)


REQUEST = PrepareRequest(4, "intent", (), 3, (), (), False, True, None, ())
READY = messages.PrepareAnswer(4, "intent", "ready", "Newest", "", 4, Resume("none"), ())


def test_r4_prepare_is_asked_once_at_a_time_and_its_answer_belongs_to_its_intent() -> None:
    async def test() -> None:
        pod = Pod("127.0.0.1", free_port(), "pod-a", status("pod-a"), answer=lambda request: READY)
        await pod.start()
        woken = asyncio.Event()
        async with client(pod.port) as asker:
            errands = Errands(asker, JOB, woken.set)
            for _ in range(5):
                errands.prepare(model.Prepare("pod-a", pod.ip, REQUEST))
            await woken.wait()
            prepared = errands.prepared(4, "intent")
            assert prepared is not None
            assert prepared.answer == READY
            assert (errands.prepared(4, "other"), errands.prepared(5, "intent"), len(pod.asked)) == (None, None, 1)
        await pod.stop()

    run(test)


def test_r4_who_does_not_answer_prepare_is_named() -> None:
    async def test() -> None:
        woken = asyncio.Event()
        async with client(free_port()) as asker:
            errands = Errands(asker, JOB, woken.set)
            for uid in ("pod-a", "pod-b"):
                woken.clear()
                errands.prepare(model.Prepare(uid, "127.0.0.1", REQUEST))
                await woken.wait()
            assert errands.failed(4, "intent") == ("pod-a", "pod-b")
            errands.forget_before(5)
            assert errands.failed(4, "intent") == ()

    run(test)


def test_r23_an_announced_plan_is_not_told_again() -> None:
    async def test() -> None:
        pod = Pod("127.0.0.1", free_port(), "pod-a", status("pod-a"))
        await pod.start()
        async with client(pod.port) as asker:
            errands = Errands(asker, JOB, lambda: None)
            plan = plan_of(pod)
            for _ in range(3):
                errands.announce(model.Announce("pod-a", pod.ip, 1, plan))
                errands.leave(model.AskLeave("pod-a", pod.ip, 1, 5.0))
                await until(lambda: errands.announced(1) == ("pod-a",) and errands.leave_age_seconds(1) is not None)
            assert sorted(type(request).__name__ for request in pod.asked) == ["Announce", "LeaveRequest"]
            assert errands.leave_age_seconds(2) is None
        await pod.stop()

    run(test)


def test_r19_save_and_stop_is_asked_again_when_the_core_wants_it_for_another_purpose() -> None:
    async def test() -> None:
        pod = Pod("127.0.0.1", free_port(), "pod-a", status("pod-a"))
        await pod.start()
        async with client(pod.port) as asker:
            errands = Errands(asker, JOB, lambda: None)
            errands.leave(model.AskLeave("pod-a", pod.ip, 1, 120.0, "change"))
            await until(lambda: errands.leave_purpose(1) == "change")
            first = errands.leave_age_seconds(1)
            errands.leave(model.AskLeave("pod-a", pod.ip, 1, 25.0, "departure"))
            await until(lambda: errands.leave_purpose(1) == "departure")
            second = errands.leave_age_seconds(1)
            assert first is not None
            assert second is not None
            assert [request.deadline_seconds for request in pod.asked] == [120.0, 25.0]
        await pod.stop()

    run(test)
