"""Limits of what sidecars ask each other: one that never answers keeps nobody waiting, and an answer that is held is waited for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from everstep_protocol.messages import Ack, Hello, MemberState, Peer, Ping, SaveNotice, SightRequest, StopAnswer
from everstep_sidecar import client as clients
from everstep_sidecar import commits, routes, sight
from everstep_sidecar.client import Client, Unanswered
from everstep_sidecar.coordinator_link import CoordinatorLink
from everstep_sidecar.prepare import Prepare
from everstep_sidecar.sight import Sights, ask_all
from everstep_sidecar.stop_rounds import StopRounds, Ways
from everstep_sidecar.tasks import Tasks
from store_support import world
from unit.sidecar.small_pod import FOR_EVER, Nobody, Pauses, pauses, played, pod_of, run, turns, until, within
from unit.sidecar.test_sidecar_core import PLAN

__all__ = ["pauses"]


@contextlib.contextmanager
def full() -> Iterator[int]:
    """A port of which the kernel takes no connection any more, as of a host that is gone."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]


@contextlib.contextmanager
def deaf() -> Iterator[int]:
    """A port that takes connections and never answers, as of a process that is stopped."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


async def ask(port: int, seconds: float) -> None:
    client = Client(
        token="t", job_uid="job", own_uid="me", port=port, on_highest=lambda highest: None, source_ip="127.0.0.1"
    )
    await client.start()
    try:
        with pytest.raises(Unanswered):
            await client.post(Peer("uid", "127.0.0.1"), "/v1/ping", Ping(1), Ack, seconds=seconds)
    finally:
        await client.close()


def test_a_host_that_takes_no_connection_is_given_up_sooner_than_one_that_holds_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "CONNECT_SECONDS", 0.05)
    with full() as port:
        run(ask(port, FOR_EVER))


def test_a_question_whose_time_is_over_does_not_wait_for_ever() -> None:
    with deaf() as port:
        run(ask(port, 0.0))


def test_what_the_coordinator_holds_is_waited_for_and_the_rest_briefly(tmp_path: Path) -> None:
    async def scenario() -> None:
        others = Nobody()
        link = CoordinatorLink(played(others), PLAN, "b", None)
        for question in (
            link.hello(Hello(1, "p", "nonce")),
            link.save(SaveNotice(1, "p", 10, (1, 2), "durable")),
            link.state(MemberState(1, "running", 5, {})),
        ):
            with pytest.raises(Unanswered):
                await question
        assert others.waited["/v1/hello"][0] >= routes.PLAN_SECONDS + routes.HELLO_HELD_SECONDS
        assert others.waited["/v1/save"][0] > commits.HELD_SECONDS
        assert others.waited["/v1/state"][0] <= 2.0
        assert max(max(seconds) for seconds in others.waited.values()) < 60.0

    run(scenario())


def test_r19_a_member_that_does_not_hear_an_order_is_asked_again_soon(tmp_path: Path) -> None:
    async def scenario() -> None:
        others = Nobody()
        pod = pod_of(tmp_path, "a", client=others)
        ways = Ways(
            own=lambda order: StopAnswer("agreed", order.step),
            newest=lambda: 5,
            is_committed=lambda step: False,
            why_dropped=lambda step: "",
            is_stalled=lambda: False,
            end=lambda over: None,
        )
        stopping = asyncio.create_task(StopRounds(pod, PLAN, ways).run(FOR_EVER))
        await until(lambda: "/v1/stop" in others.waited)
        stopping.cancel()
        assert others.waited["/v1/stop"][0] <= 2.0

    run(scenario())


def test_r4_who_does_not_hear_of_an_attempt_is_told_some_times_and_no_more(tmp_path: Path, pauses: Pauses) -> None:
    async def scenario() -> None:
        others = Nobody()
        pod = pod_of(tmp_path, "a", client=others)
        await Prepare(pod, played(None))._announce(Peer("b", "10.0.0.2"), 1)
        assert others.waited["/v1/announce"] == [1.0] * 5
        assert within(pauses.span(), 0.5, 5.0)

    run(scenario())


def test_r11_who_is_asked_what_it_sees_answers_before_the_asker_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        others = Nobody()
        pod = pod_of(tmp_path, "a", client=others)
        own = Sights(pod, Tasks(lambda: None))
        request = world.make_request(1, peers=(Peer("b", "10.0.0.2"),), expected=("b",))
        assert await ask_all(played(others), own, "a", request, "a") == ()
        assert sight.ANSWER_SECONDS < others.waited["/v1/sight"][0] <= 2.0
        monkeypatch.setattr(sight, "ANSWER_SECONDS", 0.05)
        answer = await own.handle("b", SightRequest(1, "intent-1"))
        assert answer.storage is not None
        assert answer.storage.reason == "StorageHangs"
        await turns()

    run(scenario())
