"""How often the operator asks, how it goes on after a fault of its own, and how fast it finds a loss: real sockets, quick clocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from everstep_operator.cluster.follow import Target
from everstep_protocol.messages import MemberSummary, Peer
from everstep_protocol.plan import sealed
from loopback import address, free_port
from unit.operator.small_sidecars import (
    HANG,
    JOB,
    FastClock,
    Pod,
    client,
    follower_of,
    plan_of,
    run,
    silent_host,
    status,
    until,
)


def most_in_a_second(times: list[float]) -> int:
    return max(sum(0 <= at - first < 1.0 for at in times) for first in times)


Answers = Callable[[Pod], Awaitable[None]]


async def at_once(pod: Pod) -> None:
    """A new version with each answer."""
    await pod.start()

    async def change() -> None:
        while True:
            pod.status = replace(pod.status, version=str(time.monotonic()))
            await asyncio.sleep(0.001)

    pod.background = asyncio.create_task(change())


async def never(pod: Pod) -> None:
    """Connections are refused."""


async def rejecting(pod: Pod) -> None:
    pod.paths = ("announce",)
    await pod.start()


@pytest.mark.parametrize("way", [at_once, never, rejecting])
def test_st3_the_polls_of_a_job_are_five_in_a_second_at_most_and_fewer_while_they_fail(
    way: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        port, clock = free_port(), FastClock()
        polled: dict[str, list[float]] = {"pod-0": [], "pod-1": []}
        pods = [Pod(address(number + 1), port, uid, status(uid)) for number, uid in enumerate(polled)]
        await way(pods[0])
        await pods[1].start()
        async with client(port) as asker:
            call = asker.call

            async def counted(*args: Any) -> Any:
                polled[args[1].uid].append(clock.now())
                return await call(*args)

            monkeypatch.setattr(asker, "call", counted)
            follower, begin = follower_of(asker, clock=clock).follower, clock.now()
            plan = plan_of(*pods)
            while clock.now() < begin + 20.0:
                follower.follow(Target(JOB, plan, ()))
                await asyncio.sleep(0.01)
            follower.follow(None)
        for times in polled.values():
            assert not times or most_in_a_second(times) <= 5
        if way is not at_once:
            assert 8 <= len(polled["pod-0"]) <= 13, "every two seconds in the end"
            assert most_in_a_second(polled["pod-0"][4:]) == 1
        for pod in pods:
            await pod.stop()

    run(test)


def test_st3_a_new_plan_in_every_pass_gives_no_more_polls() -> None:
    async def test() -> None:
        port, clock = free_port(), FastClock()
        pod = Pod(address(1), port, "pod-0", status("pod-0"))
        await pod.start()
        async with client(port) as asker:
            follower, begin, number = follower_of(asker, clock=clock).follower, clock.now(), 1
            while clock.now() < begin + 10.0:
                number += 1
                follower.follow(Target(JOB, sealed(replace(plan_of(pod), attempt=number)), ()))
                await asyncio.sleep(0.005)
            follower.follow(None)
            assert 1 <= len(pod.asked) <= 51
        await pod.stop()

    run(test)


def test_st14_a_follower_that_fails_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        port = free_port()
        pod = Pod(address(1), port, "pod-0", status("pod-0"))
        await pod.start()
        async with client(port) as asker:
            follower = follower_of(asker, clock=FastClock()).follower
            poll_once, failures = follower._poll, []

            async def fails_twice(target: Target) -> None:
                if len(failures) < 2:
                    failures.append(target)
                    raise KeyError("a fault of our own")
                await poll_once(target)

            monkeypatch.setattr(follower, "_poll", fails_twice)
            follower.follow(Target(JOB, plan_of(pod), ()))
            await until(lambda: follower.seen is not None)
            follower.follow(None)
        await pod.stop()

    run(test)


def test_st14_a_probe_that_fails_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with client(free_port()) as asker:
            prober = follower_of(asker, clock=FastClock()).prober
            forever, failures = prober._probe_forever, []

            async def fails_twice(peer: Peer) -> None:
                if len(failures) < 2:
                    failures.append(peer)
                    raise KeyError("a fault of our own")
                await forever(peer)

            monkeypatch.setattr(prober, "_probe_forever", fails_twice)
            prober.note("pod-0", alive=False)
            prober.start(Peer("pod-0", address(1)), "wished")
            await until(lambda: prober.failed("pod-0") == 0)
            prober.stop()

    run(test)


def test_r25_a_pod_is_probed_for_as_long_as_a_pass_wishes_it() -> None:
    async def test() -> None:
        port = free_port()
        async with client(port) as asker:
            prober, peer = follower_of(asker).prober, Peer("pod-7", address(1))
            with silent_host(address(1), port):
                for _ in range(3):
                    prober.keep([peer], "wished")
                await until(lambda: prober.failed("pod-7") >= 2)
                assert 0 < prober.silent_seconds("pod-7") < HANG
                prober.keep([], "wished")
                assert (prober.failed("pod-7"), prober.silent_seconds("pod-7"), len(prober)) == (0, 0.0, 0)

    run(test)


FOUND_SECONDS = 12.0  # a poll in hand, a connect that times out, the others' word, two probes: 5 s or so; and load


@pytest.mark.parametrize("late", [False, True], ids=["with the first poll", "after a while"])
@pytest.mark.parametrize("victim", [0, 1], ids=["coordinator", "member"])
def test_st13_a_loss_right_after_a_new_plan_is_found_as_fast_as_later(victim: int, late: bool) -> None:
    """The plan before had the same members: nothing of what was known of it keeps a probe back."""

    async def test() -> None:
        port = free_port()
        uids = ["pod-0", "pod-1", "pod-2"]
        lost = {uids[victim]: 2.0}
        summary = tuple(MemberSummary(uid, "running", 2 if uid in lost else 0, 2) for uid in uids)
        pods = [
            Pod(address(number + 1), port, uid, status(uid, attempt=2, members=summary, lost_peers=lost))
            for number, uid in enumerate(uids)
        ]
        healthy = [status(uid, attempt=2) for uid in uids]
        told = [pod.status for pod in pods]
        for pod, before in zip(pods, healthy, strict=True):
            pod.status = before
            await pod.start()
        async with client(port) as asker:
            made = follower_of(asker)
            plan = plan_of(*pods)
            made.follower.follow(Target(JOB, plan, ()))
            await until(lambda: made.follower.coordinator_at > 0 and len(pods[0].asked) > 0)
            second = Target(JOB, sealed(replace(plan, attempt=2)), ())
            if late:
                made.follower.follow(second)
                await until(lambda: made.follower.seen is not None)
            await pods[victim].stop()
            with silent_host(pods[victim].ip, port):
                for pod, after in zip(pods, told, strict=True):
                    pod.status = replace(after, version="v2")
                begin = time.monotonic()
                made.follower.follow(second)
                await until(lambda: made.prober.failed(uids[victim]) >= 2)
                await until(lambda: made.follower.lost.get(uids[victim], (0, 0))[0] == 2)
                assert time.monotonic() - begin < FOUND_SECONDS
            made.follower.follow(None)
            made.prober.stop()
        for pod in pods:
            await pod.stop()

    run(test)


def test_the_coordinators_own_silence_has_an_age() -> None:
    async def test() -> None:
        port = free_port()
        pods = [Pod(address(number + 1), port, f"pod-{number}", status(f"pod-{number}")) for number in range(2)]
        await pods[1].start()
        async with client(port) as asker:
            follower = follower_of(asker).follower
            follower.follow(Target(JOB, plan_of(*pods), ()))
            planned_at = follower.coordinator_at
            await until(lambda: follower.seen is not None)
            assert follower.coordinator_at == planned_at, "the other's answer is not the coordinator's"
            await pods[0].start()
            await until(lambda: follower.coordinator_at > planned_at)
            follower.follow(None)
        for pod in pods:
            await pod.stop()

    run(test)
