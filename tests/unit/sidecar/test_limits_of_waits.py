"""Limits of what a sidecar waits for in the course of an attempt: each wait ends, and none ends too early."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from everstep_protocol import local
from everstep_protocol.messages import (
    Ack,
    Exited,
    Hello,
    MemberState,
    Over,
    Ping,
    PollRequest,
    StopAnswer,
)
from everstep_sidecar import agent as agents
from everstep_sidecar import coordinator as coordinators
from everstep_sidecar import prepare as prepares
from everstep_sidecar import routes, stop_rounds
from everstep_sidecar import run as runs
from everstep_sidecar.agent import Agent
from everstep_sidecar.client import Unanswered
from everstep_sidecar.coordinator import Coordinator
from everstep_sidecar.pod import Pod
from everstep_sidecar.prepare import Prepare
from everstep_sidecar.routes import Routes
from everstep_sidecar.run import AttemptRun
from everstep_sidecar.server import Rejected
from everstep_sidecar.stop_rounds import StopRounds, Ways
from store_support import world
from unit.sidecar.small_pod import (
    Launcher,
    Nobody,
    Pauses,
    Storage,
    pauses,
    played,
    pod_of,
    report,
    run,
    turns,
    until,
    within,
)
from unit.sidecar.test_sidecar_core import PLAN

__all__ = ["pauses"]
SHORT = 0.05


def exited(cause: str, code: int | None = 1, *, leaving: bool = False) -> Exited:
    return Exited(1, 0, cause, code, None, False, "", 0.0, leaving=leaving)  # type: ignore[arg-type]


def coordinator_of(pod: Pod) -> Coordinator:
    return Coordinator(
        pod,
        PLAN,
        on_higher=lambda highest: None,
        own_stop=lambda order: StopAnswer("agreed", order.step),
        own_step=lambda: -1,
    )


async def over_of(pod: Pod, coordinator: Coordinator) -> Over:
    await pod.changes.wait(lambda: coordinator.over is not None)
    assert coordinator.over is not None
    coordinator.close()
    return coordinator.over


# ---------------------------------------------------------------- the coordinator


def test_r32_what_is_reported_at_the_same_moment_is_one_failure(tmp_path: Path) -> None:
    async def scenario() -> None:
        pod = pod_of(tmp_path, "a")
        coordinator = coordinator_of(pod)
        coordinator.exited("a", exited("crash"))
        await turns()
        coordinator.exited("b", exited("launcher-gone"))
        assert (await over_of(pod, coordinator)).uid == "b"

    run(scenario())


def test_r32_who_only_lost_a_peer_waits_for_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(coordinators, "COLLECT_SECONDS", 0.0)
        pod = pod_of(tmp_path, "a")
        coordinator = coordinator_of(pod)
        coordinator.exited("a", exited("peer-lost"))
        await turns()
        coordinator.exited("b", exited("crash"))
        assert (await over_of(pod, coordinator)).uid == "b"
        alone = coordinator_of(pod)
        alone.exited("a", exited("peer-lost"))
        assert (await over_of(pod, alone)).cause == "peer-lost"

    run(scenario())


def test_r19_who_is_told_that_a_member_ended_is_told_that_it_leaves(tmp_path: Path) -> None:
    """Its word of itself comes on its own, later: a leaving pod without that would be a crash."""

    async def scenario() -> None:
        pod = pod_of(tmp_path, "a")
        coordinator = coordinator_of(pod)
        coordinator.exited("b", exited("launcher-gone", leaving=True))
        await over_of(pod, coordinator)
        assert [member.leaving for member in coordinator.words.summaries(frozenset(), gone=True)] == [False, True]

    run(scenario())


def test_r7_a_restarted_coordinator_without_a_launcher_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(coordinators, "LAUNCHER_SECONDS", SHORT)
        storage = Storage({"has_go": True, "is_finished": False})
        pod = pod_of(tmp_path, "a", calls=storage, link=Launcher(connected=False))
        coordinator = coordinator_of(pod)
        coordinator.start()
        assert (await over_of(pod, coordinator)).cause == "launcher-gone"

    run(scenario())


def test_r7_a_launcher_that_names_no_port_is_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(coordinators, "PORT_SECONDS", SHORT)
        pod = pod_of(tmp_path, "a", calls=Storage({"has_go": False}))
        coordinator = coordinator_of(pod)
        coordinator.start()
        said = [coordinator.hello(uid, Hello(1, "p", "nonce", ())) for uid in ("a", "b")]
        answers = await asyncio.gather(*said)
        assert [answer and answer.answer for answer in answers] == ["over", "over"]
        assert (await over_of(pod, coordinator)).cause == "not-started"

    run(scenario())


def test_r19_an_order_that_is_not_heard_is_told_after_a_while_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: Pauses
) -> None:
    now = [0.0]

    async def scenario() -> None:
        pod = pod_of(tmp_path, "a")
        ways = Ways(
            own=lambda order: StopAnswer("agreed", order.step),
            newest=lambda: 5,
            is_committed=lambda step: False,
            why_dropped=lambda step: "",
            is_stalled=lambda: False,
            end=lambda over: None,
        )
        rounds = StopRounds(pod, PLAN, ways)
        stopping = asyncio.create_task(rounds.confirm(7))
        await pauses.many.wait()
        assert rounds.trouble() is None
        now[0] += stop_rounds.LATE_SECONDS / 2
        assert rounds.trouble() is None
        now[0] += stop_rounds.LATE_SECONDS
        trouble = rounds.trouble()
        assert trouble is not None
        assert (trouble.reason, "workers w1" in trouble.message) == ("StopNotHeard", True)
        stopping.cancel()

    monkeypatch.setattr("everstep_sidecar.troubles.time", SimpleNamespace(monotonic=lambda: now[0]))
    run(scenario())


def test_r31_an_attempt_is_finished_when_the_last_member_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        coordinator = coordinator_of(pod_of(tmp_path, "a", calls=Storage({"mark_finished": None})))
        for uid in ("a", "b"):
            assert not coordinator.finished
            coordinator.state(uid, MemberState(1, "finished", -1, {}))
            await turns()
        assert coordinator.finished
        coordinator.close()

    run(scenario())


# ---------------------------------------------------------------- what is asked of it


def routes_of(pod: Pod, plan: object, coordinator: Coordinator | None) -> Routes:
    agent = SimpleNamespace(plan=plan, coordinator=coordinator, heard=lambda attempt: None)
    return Routes(pod, played(agent), played(None))


def test_r7_a_hello_is_held_for_the_others_and_for_the_own_plan_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(routes, "PLAN_SECONDS", SHORT)
        monkeypatch.setattr(routes, "HELLO_HELD_SECONDS", SHORT)
        pod = pod_of(tmp_path, "a", calls=Storage({"has_go": False}))
        coordinator = coordinator_of(pod)
        coordinator.start()
        hello = Hello(1, "p", "nonce", ())
        with pytest.raises(Rejected, match="other members have not said hello yet"):
            await routes_of(pod, PLAN, coordinator).hello("b", hello)
        with pytest.raises(Rejected, match="does not coordinate attempt 1"):
            await routes_of(pod, None, None).hello("b", hello)
        coordinator.close()

    run(scenario())


def test_a_poll_ends_whatever_it_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(routes, "LONGEST_POLL_SECONDS", SHORT)
        pod = pod_of(tmp_path, "a")
        asked = routes_of(pod, None, None)
        monkeypatch.setattr(asked, "status", lambda: "status")
        assert await asked.poll("operator", PollRequest(pod.changes.version, 1e9, 1)) == "status"

    run(scenario())


def test_r4_a_prepare_that_takes_long_is_answered_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(prepares, "HELD_SECONDS", SHORT)
        pod = pod_of(tmp_path, "a")
        agent = Agent(pod)
        answer = await Prepare(pod, agent).handle("operator", world.make_request(1))
        assert answer.outcome == "busy"
        await agent.close()

    run(scenario())


# ---------------------------------------------------------------- a member


class Coordination:
    """What a member hears from its coordinator: nothing, but it is heard."""

    def __init__(self) -> None:
        self.heard: list[Exited] = []

    async def exited(self, message: Exited) -> Ack:
        self.heard.append(message)
        return Ack(1)

    async def hello(self, hello: Hello) -> None:
        await asyncio.sleep(0)
        raise Unanswered("not yet")


def run_of(pod: Pod, coordination: Coordination) -> AttemptRun:
    return AttemptRun(pod, PLAN, PLAN.members[1], played(coordination), played(None), played(None))


def test_r31_a_script_that_fails_after_its_last_step_is_told_though_its_last_save_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(runs, "DRAIN_SECONDS", SHORT)
        report(tmp_path, 1, 40, "finished")
        pod = pod_of(tmp_path, "b")
        assert await pod.remember(1, started=True, started_at_ns=1)
        coordination = Coordination()
        end = local.ProcessExited(1, 1, 1, None, False, False, "")
        await run_of(pod, coordination)._exited("crash", end)
        assert [message.finished_step for message in coordination.heard] == [40]

    run(scenario())


def test_r7_hello_is_said_again_soon_for_all_wait_for_the_last_one(tmp_path: Path, pauses: Pauses) -> None:
    async def scenario() -> None:
        made = run_of(pod_of(tmp_path, "b"), Coordination())
        insisting = asyncio.create_task(made._insist_on_hello(Hello(1, "p", "nonce", ())))
        await pauses.many.wait()
        insisting.cancel()
        assert within(pauses.span(), 0.2, 1.0)

    run(scenario())


def test_r7_a_launcher_that_does_not_have_the_attempt_any_more_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(runs, "RESENT_SECONDS", SHORT)
        pod = pod_of(tmp_path, "b")
        assert await pod.remember(1, started=True, started_at_ns=1)
        coordination = Coordination()
        assert await run_of(pod, coordination)._start_once() is None
        assert [message.cause for message in coordination.heard] == ["launcher-gone"]

    run(scenario())


def test_r31_who_missed_the_last_word_looks_for_it_on_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def drained() -> None:
        pass

    async def scenario() -> None:
        monkeypatch.setattr(runs, "LOOK_SECONDS", SHORT)
        launcher = Launcher()
        pod = pod_of(tmp_path, "b", link=launcher, calls=Storage({"is_finished": True}))
        made = run_of(pod, Coordination())
        monkeypatch.setattr(made.saver, "drained", drained)
        await made._finish()
        assert launcher.orders == [local.Exit("finished")]

    run(scenario())


# ---------------------------------------------------------------- a pod


def test_r8_a_plan_that_was_announced_only_is_obeyed_after_a_restart(tmp_path: Path) -> None:
    """The kubelet brings it later, and may never: this pod's node may have lost the API server."""

    async def scenario() -> None:
        watched: list[object] = []
        parts = {"link": Launcher(), "peers": SimpleNamespace(watch=watched.append)}
        pod = pod_of(tmp_path, "c", **parts)
        await pod.remember(PLAN.attempt, plan=PLAN)
        agent = Agent(pod)
        await agent.start()
        assert agent.plan == PLAN
        assert parts["link"].forbidden == [(1, 0.0)], "it is not in the plan"
        await agent.close()

    run(scenario())


def test_r23_the_number_in_a_ping_is_heard(tmp_path: Path) -> None:
    async def scenario() -> None:
        heard: list[int] = []
        agent = SimpleNamespace(plan=None, coordinator=None, heard=heard.append)
        await Routes(pod_of(tmp_path, "a"), played(agent), played(None)).ping("b", Ping(7))
        assert heard == [7]

    run(scenario())


def test_r23_peers_are_pinged_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(agents, "PING_SECONDS", 0.01)
        others = Nobody()
        agent = Agent(pod_of(tmp_path, "a", client=others))
        agent.plan = PLAN
        agent.spawn(agent._ping_peers())
        await until(lambda: len(others.waited.get("/v1/ping", ())) >= 3)
        assert max(others.waited["/v1/ping"]) <= 2.0
        await agent.close()

    run(scenario())


def test_a_pod_that_is_not_needed_leaves_though_its_launcher_does_not_say_that_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(agents, "STOP_GRACE_SECONDS", SHORT)
        launcher = Launcher(leaving=True)
        pod = pod_of(tmp_path, "a", link=launcher)
        assert await pod.remember(1)
        agent = Agent(pod)
        agent.spawn(agent._let_leave())
        await until(lambda: launcher.orders)
        assert launcher.orders == [local.Exit("left")]
        await agent.close()

    run(scenario())


def test_r19_a_script_without_the_library_has_time_to_save_when_it_is_stopped(tmp_path: Path) -> None:
    async def scenario() -> None:
        launcher = Launcher()
        agent = Agent(pod_of(tmp_path, "a", link=launcher))
        agent.run = played(SimpleNamespace(desk=SimpleNamespace(had_no_library=True)))
        await agent.see(3)
        assert launcher.forbidden == [(2, 2.0)]
        await agent.see(4)
        assert launcher.forbidden[1] == (3, 0.0)

    run(scenario())
