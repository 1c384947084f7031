"""Real sidecars whose storage hangs: who asks is answered, nothing waits for what never comes, everything is said."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from everstep_protocol import local
from everstep_protocol.messages import PrepareAnswer, Sight, SightRequest
from integration.sidecar.faulty_world import PHASES, Call, Life, faulty_world
from integration.sidecar.sidecar_harness import Trainer, until

MOST_A_SECOND = 5
FAILING_SECONDS = 4.0


@pytest.fixture
def life() -> Iterator[Life]:
    with faulty_world() as one:
        yield one


def _begin(life: Life) -> None:
    life.world.pump_until(life.prepare(), "prepared")
    life.world.pump_until(life.start(), "started")


def _ask(life: Life, attempt: int) -> PrepareAnswer:
    return life.world.pods[0].ask_ok("/v1/prepare", life.world.request(attempt), PrepareAnswer)


def test_st1_sight_is_answered_and_holds_one_thread_however_often_it_is_asked(life: Life) -> None:
    pod = life.world.pods[0]
    life.world.pump_until(life.prepare(), "prepared")
    sight = pod.ask_ok("/v1/sight", SightRequest(1, "intent-1"), Sight)
    assert sight == Sight("uid-0", None, launcher=True, highest=1)
    life.storage.set("* * hang")
    began = time.monotonic()
    for _ in range(3):
        sight = pod.ask_ok("/v1/sight", SightRequest(1, "intent-1"), Sight)
        assert sight.storage is not None
        assert sight.storage.reason == "StorageHangs"
        assert "gpt-w0 on node-0" in sight.storage.message
    assert len(life.storage.steps(pod, began)) == 1
    life.storage.set()
    until(lambda: pod.ask_ok("/v1/sight", SightRequest(1, "intent-1"), Sight).storage is None, "seen again")


def test_st7_a_prepare_that_takes_its_time_is_busy_and_its_answer_is_kept(life: Life) -> None:
    pod = life.world.pods[0]
    life.storage.set("list attempts hang")
    ages = [(answer := _ask(life, 1)).progress_age_seconds for _ in range(3)]
    assert (answer.outcome, answer.attempt, answer.intent_id) == ("busy", 1, "intent-1")
    assert ages == sorted(ages)
    assert ages[0] < ages[-1]
    began = time.monotonic()
    life.storage.set()
    ready = until(lambda: (found := _ask(life, 1)).outcome == "ready" and found, "ready")
    num_steps = len(life.storage.steps(pod, began))
    assert _ask(life, 1) == ready
    assert len(life.storage.steps(pod, began)) == num_steps, "kept"


def test_st7_what_never_ends_stands_in_nobodys_way(life: Life) -> None:
    life.storage.set("mkdir attempts/0001 hang")
    assert _ask(life, 1).outcome == "busy"
    until(lambda: _ask(life, 2).outcome == "ready", "the next number")
    assert _ask(life, 1).outcome == "fenced"
    storage = until(lambda: life.world.pods[0].status().storage, "the hanging one is said")
    assert str(life.world.root / "attempts" / "0001") in storage.message


def test_st9_a_coordinator_that_waits_for_its_storage_says_so_and_blames_nobody(life: Life) -> None:
    life.world.pump_until(life.prepare(), "prepared")
    life.storage.set("list attempts/0001 hang")  # is there a go?
    started = life.start()
    coordinator = life.world.pods[0]
    life.world.pump_until(
        lambda: [member.state for member in coordinator.status().members] == ["ready", "ready"],
        "both have done their part",
    )
    storage = until(lambda: coordinator.status().storage, "it is said")
    assert storage.reason == "StorageHangs"
    assert coordinator.status().members[1].heard_age_seconds is not None
    life.storage.set()
    life.world.pump_until(started, "the hellos were not lost")


def test_st4_a_launcher_that_names_no_port_ends_the_attempt(life: Life) -> None:
    coordinator = life.world.pods[0]
    life.world.pump_until(life.prepare(), "prepared")
    coordinator.launcher.ignored = (local.ChoosePort,)
    life.start()
    over = life.world.pump_until(lambda: coordinator.status().over, "over")
    assert (over.cause, over.uid) == ("not-started", "uid-0")
    assert "gpt-w0 on node-0 does not answer" in over.message


def test_st4_an_order_that_a_member_never_hears_is_said_and_the_next_one_takes_its_place(life: Life) -> None:
    _begin(life)
    trainers = [Trainer(pod.memory, pod.index, 0, life.plan) for pod in life.world.pods]
    for trainer in trainers:
        trainer.report(7)
    first, second = life.world.pods
    second.process.send_signal(signal.SIGSTOP)
    first.leave(1, deadline_seconds=0.3)
    failing = until(lambda: first.status().failing, "who does not hear it")
    assert failing.reason == "StopNotHeard"
    assert "workers w1 do not answer the order to go on after step" in failing.message
    assert trainers[0].control().stop_step == -1
    second.process.send_signal(signal.SIGCONT)
    until(lambda: first.status().failing is None, "heard in the end")
    second.process.send_signal(signal.SIGSTOP)
    first.leave(1, deadline_seconds=0.3)
    until(lambda: first.status().failing, "again")
    second.process.send_signal(signal.SIGCONT)
    first.leave(1, deadline_seconds=20.0)  # while the withdrawal may still be told
    until(lambda: all(t.control() and t.control().confirmed for t in trainers), "confirmed to all")


def test_st4_a_stop_whose_save_never_comes_is_said(life: Life) -> None:
    _begin(life)
    trainers = [Trainer(pod.memory, pod.index, 0, life.plan) for pod in life.world.pods]
    for trainer in trainers:
        trainer.report(7)
    first = life.world.pods[0]
    first.leave(1)
    until(lambda: all(t.control() and t.control().confirmed for t in trainers), "confirmed to all")
    step = trainers[0].control().stop_step
    assert first.status().failing is None
    for trainer in trainers:
        trainer.report(step, "stopped")
    failing = until(lambda: first.status().failing, "no save comes")
    assert (failing.reason, f"step {step}" in failing.message) == ("StopNotSaved", True)
    for trainer in trainers:
        trainer.snapshot(step)
    over = life.world.pump_until(lambda: first.status().over, "it comes")
    assert (over.cause, over.step) == ("stopped", step)


def test_a_sidecar_whose_storage_hangs_ends_when_it_is_told_to(life: Life) -> None:
    _begin(life)
    life.storage.set("* * hang")
    Trainer(life.world.pods[0].memory, 0, 0, life.plan).snapshot(10)
    until(lambda: life.world.pods[0].status().storage, "it hangs")
    assert life.world.pods[0].terminate() == 0


@pytest.mark.parametrize("phase", ["start", "save", "finish"])
def test_st3_a_storage_that_fails_for_long_makes_no_loop(life: Life, phase: str) -> None:
    for earlier in PHASES[: PHASES.index(phase)]:
        life.world.pump_until(getattr(life, earlier)(), earlier)
    life.storage.set("* * 5")
    began = time.monotonic()
    done = getattr(life, phase)()
    life.world.pods[0].poll(None, 1, wait=0.0, condemned=("0" * 64,))
    life.world.pump_until(lambda: time.monotonic() - began > FAILING_SECONDS, "it fails for a while")
    tried: dict[tuple[int, Call], list[float]] = {}
    for pod in life.world.pods:
        for at, call in life.storage.steps(pod, began):
            tried.setdefault((pod.index, call), []).append(at - began)
    assert tried
    for where, times in tried.items():
        assert len(times) <= MOST_A_SECOND * FAILING_SECONDS, (where, times)
        late = [at for at in times if at > FAILING_SECONDS / 2]
        assert len(late) <= max(len(times) - len(late), 2), (where, times)
    life.storage.set()
    life.world.pump_until(done, "it is well again")
