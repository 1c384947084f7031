"""Limits of what the operator asks of sidecars: one that never answers keeps nothing back, and who stays away is asked less often."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from everstep_operator.cluster import errands, follow, pace, sidecars
from everstep_operator.cluster.sidecars import SidecarClient
from everstep_operator.core import model
from everstep_protocol.messages import Ack, Peer, Ping
from loopback import address, free_port
from unit.operator.small_api import run
from unit.operator.small_sidecars import (
    FastClock,
    Pod,
    errands_of,
    follower_of,
    plan_of,
    status,
    until,
)
from unit.operator.small_sidecars import client as sidecar_client
from unit.operator.test_errands import prepare


async def answers_never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()


@contextlib.asynccontextmanager
async def deaf(ip: str, port: int) -> AsyncIterator[None]:
    """A sidecar that takes requests and never answers, as one that is stopped."""
    server = await asyncio.start_server(answers_never, ip, port)
    try:
        yield
    finally:
        server.close()


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errands, "_PREPARE_SECONDS", 0.1)
    monkeypatch.setattr(errands, "_SHORT_SECONDS", 0.1)
    monkeypatch.setattr(pace, "_POLL_SECONDS", 0.1)
    monkeypatch.setattr(follow, "_MARGIN_SECONDS", 0.1)
    monkeypatch.setattr(follow, "_OTHERS_SECONDS", 0.1)


def test_an_errand_that_is_never_answered_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)

    async def test() -> None:
        port = free_port()
        pod = Pod(address(1), port, "pod-a", status("pod-a"))
        async with deaf(pod.ip, port), sidecar_client(port) as asker:
            made = errands_of(asker)
            prepare(made, pod)
            await until(lambda: made.failed(4, "intent") == ("pod-a",))
            woken = asyncio.Event()
            made = errands_of(asker, woken.set)
            made.ask_sight(model.AskSight("pod-a", pod.ip, 4, "intent"))
            await woken.wait()
            assert made.sights(4, "intent") == {}

    run(test)


def test_a_question_whose_time_is_over_does_not_wait_for_ever() -> None:
    async def test() -> None:
        port = free_port()
        async with deaf(address(1), port), sidecar_client(port) as asker:
            with pytest.raises(sidecars.Silent):
                await asker.call("job-uid", Peer("pod-a", address(1)), "/v1/ping", Ping(1), Ack, 0.0)

    run(test)


def test_r25_a_coordinator_that_takes_polls_and_never_answers_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)

    async def test() -> None:
        port = free_port()
        pod = Pod(address(1), port, "pod-0", status("pod-0"))
        noted: list[str] = []
        async with deaf(pod.ip, port), sidecar_client(port) as asker:
            made = follower_of(asker, clock=FastClock())
            monkeypatch.setattr(made.prober, "note", lambda uid, *, alive: noted.append(uid) if not alive else None)
            made.follower.follow(follow.Target("job-uid", plan_of(pod), ()))
            await until(lambda: "pod-0" in noted)
            made.follower.follow(None)

    run(test)


def test_a_member_that_never_answers_does_not_keep_the_coordinator_from_being_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hurry(monkeypatch)

    async def test() -> None:
        port = free_port()
        pods = [Pod(address(number + 1), port, f"pod-{number}", status(f"pod-{number}")) for number in range(2)]
        async with deaf(pods[1].ip, port), sidecar_client(port) as asker:
            made = follower_of(asker, clock=FastClock())
            made.follower.follow(follow.Target("job-uid", plan_of(*pods), ()))
            await until(lambda: made.prober.failed("pod-1") > 0)
            await pods[0].start()
            await until(lambda: made.follower.seen is not None and made.follower.seen.status.pod_uid == "pod-0")
            made.follower.follow(None)
            made.prober.stop()
        await pods[0].stop()

    run(test)


def test_a_quiet_coordinator_holds_a_poll_and_a_suspicion_makes_polls_short() -> None:
    async def test() -> None:
        port = free_port()
        pod = Pod(address(1), port, "pod-0", status("pod-0"))
        await pod.start()
        async with sidecar_client(port) as asker:
            made = follower_of(asker)
            made.follower.follow(follow.Target("job-uid", plan_of(pod), ()))
            await until(lambda: len(pod.asked) >= 1)
            made.follower.follow(None)
            made.prober.start(Peer("pod-9", address(1)), "followed")
            made.follower._target = target = follow.Target("job-uid", plan_of(pod), ())
            await made.follower._poll(target)
            made.prober.stop()
        await pod.stop()
        first, suspicious = pod.asked[0].wait_seconds, pod.asked[-1].wait_seconds
        assert (3.0 <= first <= 5.0, suspicious) == (True, 0.4)

    run(test)


def test_a_host_that_stays_away_is_probed_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        probed: list[float] = []
        clock = FastClock()
        async with sidecar_client(free_port()) as asker:

            async def probe(ip: str) -> bool:
                probed.append(clock.now())
                return False

            monkeypatch.setattr(asker, "probe", probe)
            prober, begun = follower_of(asker, clock=clock).prober, clock.now()
            prober.start(Peer("pod-7", address(1)), "wished")
            await until(lambda: clock.now() > begun + 18.0)
            prober.stop()
        early = sum(at < begun + 9.0 for at in probed)
        late = sum(at >= begun + 12.0 for at in probed)
        assert (early <= 19, late <= 4) == (True, True), (early, late)

    run(test)


def test_what_a_node_that_went_said_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecars, "_MEMORY_SECONDS", -1.0)
    made = SidecarClient(b"k" * 32, 1)
    for number in range(100):
        made.heard(f"n{number}")
    assert len(made._heard) <= 1
