"""How often a sidecar looks at what nobody tells it, and how often it speaks of itself."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from everstep_protocol import codec
from everstep_protocol.messages import Ack, MemberState, Peer, Training
from everstep_protocol.plan import Plan
from everstep_sidecar import loop_watch, state_reporter
from everstep_sidecar import peers as peers_module
from everstep_sidecar.loop_watch import LoopWatch
from everstep_sidecar.peers import Peers
from everstep_sidecar.pod_files import PodFiles
from everstep_sidecar.state_reporter import StateReporter
from store_support import world
from unit.sidecar.small_pod import FOR_EVER, Pauses, pauses, played, pod_of, run, until
from unit.sidecar.test_limits_of_calls import full

__all__ = ["pauses"]


def peers_of(port: int) -> Peers:
    return Peers(source_ip="127.0.0.1", port=port, on_change=lambda uid, lost: None, on_failure=lambda: None)


def test_r25_a_peer_that_takes_no_connection_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(port: int) -> None:
        monkeypatch.setattr(peers_module, "CONNECT_SECONDS", 0.05)
        peers = peers_of(port)
        peers.watch(frozenset({Peer("u", "127.0.0.1")}))
        await until(lambda: "u" in peers.lost())
        await peers.close()

    with full() as port:
        run(scenario(port))


def test_r25_a_peer_that_is_back_is_found_within_seconds(pauses: Pauses) -> None:
    async def scenario() -> None:
        peers = peers_of(1)  # refused
        peers.watch(frozenset({Peer("u", "127.0.0.1")}))
        await pauses.many.wait()
        await peers.close()
        assert max(pauses.taken) <= 2.5

    run(scenario())


def test_r25_the_kernel_notices_within_three_seconds_that_a_host_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    real = peers_module.keep_alive

    def keep_alive(connection: socket.socket, **options: int) -> None:
        real(connection, **options)
        made.append(connection)

    async def scenario() -> None:
        monkeypatch.setattr(peers_module, "keep_alive", keep_alive)
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        peers = peers_of(server.sockets[0].getsockname()[1])
        peers.watch(frozenset({Peer("u", "127.0.0.1")}))
        await until(lambda: made)
        idle, interval, count = (
            made[0].getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        await peers.close()
        server.close()
        assert made[0].fileno() == -1
        assert (idle + interval * count, count) == (3, 2), "one probe may be lost"

    run(scenario())


def test_r26_a_stall_of_its_own_is_known_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [0.0], [0.0]

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds
        await asyncio.sleep(0)

    async def go_on(seconds: float) -> None:
        end = now[0] + seconds
        while now[0] < end:  # noqa: ASYNC110 - its own clock goes on meanwhile
            await asyncio.sleep(0)

    async def scenario() -> None:
        watch = LoopWatch()
        watching = asyncio.create_task(watch.run())
        await go_on(2.0)
        assert watch.late_seconds() == 0.0
        now[0] += 1.0  # the stall
        assert watch.late_seconds() > 0.7, "it is told while it lasts"
        await go_on(3.0)
        assert watch.late_seconds() > 0.7, "and remembered"
        await go_on(4.0)
        assert watch.late_seconds() == 0.0, "and forgotten"
        assert max(slept) <= 0.5, "a stall of half a second counts"
        watching.cancel()

    monkeypatch.setattr(loop_watch, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(loop_watch, "asyncio", SimpleNamespace(sleep=sleep))
    run(scenario())


def test_a_plan_that_comes_late_is_found(tmp_path: Path) -> None:
    found: list[Plan] = []

    async def on_plan(plan: Plan) -> None:
        found.append(plan)

    async def on_attempt(attempt: int) -> None:
        pass

    async def scenario() -> None:
        looking = asyncio.create_task(PodFiles(tmp_path, on_plan=on_plan, on_attempt=on_attempt).run())
        await asyncio.sleep(0.01)
        (tmp_path / "plan").write_text(codec.dumps(world.make_plan(1)))
        await until(lambda: found)
        looking.cancel()

    run(scenario())


class Reported:
    """A member's part in an attempt, as the test says."""

    state_name = "running"
    trouble = None
    bytes_age_seconds = None
    finished_step = -1

    def training(self) -> Training:
        return Training(True, 5, 0.0, 0.0, "training")


class Reporting:
    """A reporter, and what the coordinator hears."""

    def __init__(self, folder: Path, state_name: str = "running") -> None:
        self.heard: list[str] = []
        self.run = Reported()
        self.run.state_name = state_name
        lost = SimpleNamespace(lost=dict)
        pod = pod_of(folder, "b", peers=lost)
        reporter = StateReporter(pod, played(self.run), 1, played(self), on_finished=lambda: None)
        self.task = asyncio.create_task(reporter.run())

    async def state(self, state: MemberState) -> Ack:
        self.heard.append(state.state)
        return Ack(1)


def _seconds(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    for name, value in {"REPORT": FOR_EVER, "FINISHED": FOR_EVER, **seconds}.items():
        monkeypatch.setattr(state_reporter, f"{name}_SECONDS", value)


def test_a_member_says_at_once_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        _seconds(monkeypatch)
        made = Reporting(tmp_path)
        await until(lambda: made.heard)
        made.run.state_name = "stopped"
        await until(lambda: made.heard[-1] == "stopped")
        made.task.cancel()
        assert made.heard == ["running", "stopped"]

    run(scenario())


@pytest.mark.parametrize(("state", "interval"), [("running", "REPORT"), ("finished", "FINISHED")])
def test_a_member_says_again_what_has_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, interval: str
) -> None:
    async def scenario() -> None:
        _seconds(monkeypatch, **{interval: 0.01})
        made = Reporting(tmp_path, state)
        await until(lambda: len(made.heard) >= 3)
        made.task.cancel()
        assert set(made.heard) == {state}

    run(scenario())
