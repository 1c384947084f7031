"""The operator's side of the sidecars' API, against the sidecars' own server on real sockets: signatures, silence, refusal, probes."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import pytest
from everstep_operator.cluster.follow import Target
from everstep_operator.cluster.sidecars import Refusing, Rejected, Silent
from everstep_protocol import auth, messages
from everstep_protocol.messages import MemberSummary, Peer
from everstep_protocol.plan import sealed
from everstep_sidecar.server import Rejected as ServerRejects
from loopback import address, free_port
from unit.operator.small_sidecars import (
    JOB,
    KEY,
    Pod,
    client,
    follower_of,
    plan_of,
    poll,
    run,
    silent_host,
    status,
    until,
)


def test_r22_an_answer_of_the_pod_that_is_meant() -> None:
    async def test() -> None:
        pod = Pod(address(1), free_port(), "pod-a", status("pod-a"))
        await pod.start()
        async with client(pod.port) as asker:
            assert await poll(asker, Peer("pod-a", pod.ip)) == pod.status
        await pod.stop()

    run(test)


@pytest.mark.parametrize("case", ["another pod has the IP", "another job's token"])
def test_r22_any_other_answer_is_silence(case: str) -> None:
    async def test() -> None:
        key = KEY if case == "another pod has the IP" else b"x" * 32
        pod = Pod(address(1), free_port(), "pod-b", status("pod-b"), key=key)
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
                await poll(asker, Peer("pod-a", address(1)))
            assert await asker.probe(address(1))

    run(test)


def test_r25_a_host_that_does_not_answer_is_silent() -> None:
    async def test() -> None:
        port = free_port()
        async with client(port) as asker:
            with silent_host(address(1), port):
                with pytest.raises(Silent):
                    await poll(asker, Peer("pod-a", address(1)))
                assert not await asker.probe(address(1))

    run(test)


def test_a_signed_no_is_told_with_its_reason() -> None:
    def refuse(request: Any) -> Any:
        raise ServerRejects(409, "a higher attempt exists")

    async def test() -> None:
        pod = Pod(address(1), free_port(), "pod-a", status("pod-a"), answer=refuse)
        await pod.start()
        async with client(pod.port) as asker:
            with pytest.raises(Rejected, match="a higher attempt exists") as caught:
                await asker.call(JOB, Peer("pod-a", pod.ip), "/v1/announce", messages.Announce(1), messages.Ack, 3.0)
            assert caught.value.problem.highest == 9
        await pod.stop()

    run(test)


def test_r22_a_restarted_sidecar_costs_one_refusal_that_nobody_sees() -> None:
    async def test() -> None:
        pod = Pod(address(1), free_port(), "pod-a", status("pod-a"))
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
        pod = Pod(address(1), free_port(), "pod-a", status("pod-a"), answer=refuse)
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
        async with client(port) as asker, await asyncio.start_server(_answer_without_end, address(1), port):
            with pytest.raises(Silent, match="the answer has more than"):
                await asker.call(JOB, Peer("pod-a", address(1)), "/v1/leave", {}, messages.Ack, 5.0)

    monkeypatch.setattr(auth, "LARGEST_ANSWER_BYTES", 1 << 20)
    run(test)


def test_the_coordinator_alone_is_asked_and_condemned_ids_go_with_the_poll() -> None:
    async def test() -> None:
        port = free_port()
        pods = [Pod(address(i + 1), port, f"pod-{i}", status(f"pod-{i}")) for i in range(2)]
        for pod in pods:
            await pod.start()
        woken = asyncio.Event()
        async with client(port) as asker:
            follower = follower_of(asker, woken.set).follower
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
        dead = Pod(address(1), port, "pod-0", status("pod-0"))
        pods = [Pod(address(i + 1), port, f"pod-{i}", status(f"pod-{i}", lost_peers={"pod-0": 2.0})) for i in (1, 2)]
        for pod in pods:
            await pod.start()
        async with client(port) as asker:
            made = follower_of(asker)
            follower, prober = made.follower, made.prober
            with silent_host(address(1), port):
                follower.follow(Target(JOB, plan_of(dead, *pods), ()))
                await until(lambda: prober.failed("pod-0") >= 2 and follower.lost.get("pod-0") == (2, 2))
            assert follower.lost["pod-1"] == (0, 1)
            assert prober.failed("pod-1") == 0
            assert asker.heard_within(5.0, other_than={"n0"})
            assert not asker.heard_within(5.0, other_than={"n1", "n2"})
            follower.stop()
        for pod in pods:
            await pod.stop()

    run(test)


def test_r16_of_a_coordinator_that_rejects_polls_the_others_tell_and_it_is_as_old_as_its_last_answer() -> None:
    """Its host lives, so nobody is suspected; without it nothing is saved, which its age brings to an end."""

    async def test() -> None:
        port = free_port()
        pods = [Pod(address(i + 1), port, f"pod-{i}", status(f"pod-{i}"), rejects_polls=i == 0) for i in range(2)]
        for pod in pods:
            await pod.start()
        async with client(port) as asker:
            made = follower_of(asker)
            follower = made.follower
            follower.follow(Target(JOB, plan_of(*pods), ()))
            asked_first = follower.coordinator_at
            await until(lambda: follower.seen is not None and len(pods[0].asked) >= 2)
            assert follower.seen is not None
            assert (follower.seen.status.pod_uid, follower.coordinator_at) == ("pod-1", asked_first)
            assert made.prober.uids() == set()
            follower.stop()
        for pod in pods:
            await pod.stop()

    run(test)


def test_r25_a_member_that_peers_lost_is_probed_until_it_answers() -> None:
    async def test() -> None:
        port = free_port()
        summary = (MemberSummary("pod-0", "running", 0, 1), MemberSummary("pod-1", "running", 1, 1))
        coordinator = Pod(address(1), port, "pod-0", status("pod-0", members=summary))
        member = Pod(address(2), port, "pod-1", status("pod-1"))
        await coordinator.start()
        async with client(port) as asker:
            made = follower_of(asker)
            follower, prober = made.follower, made.prober
            with silent_host(member.ip, port):
                follower.follow(Target(JOB, plan_of(coordinator, member), ()))
                await until(lambda: prober.failed("pod-1") >= 2)
                assert follower.lost["pod-1"] == (1, 1)
            await until(lambda: prober.failed("pod-1") == 0)  # it refuses now: it lives
            follower.stop()
        await coordinator.stop()

    run(test)


def test_a_new_plan_begins_without_memory_of_the_old() -> None:
    async def test() -> None:
        port = free_port()
        pod = Pod(address(1), port, "pod-0", status("pod-0"))
        await pod.start()
        async with client(port) as asker:
            follower = follower_of(asker).follower
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
