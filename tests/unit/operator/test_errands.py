"""What the operator asks of sidecars in the background: prepare, sight, announce, leave; what it keeps of the answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from everstep_operator.cluster.errands import Errands
from everstep_operator.core import coordinators, model
from everstep_protocol import messages
from everstep_protocol.messages import PrepareAnswer, PrepareRequest, Sight, Trouble
from everstep_protocol.plan import Resume
from everstep_sidecar.server import Rejected
from loopback import address, free_port
from unit.core import jobs
from unit.operator.small_sidecars import (
    FastClock,
    Pod,
    client,
    errands_of,
    plan_of,
    run,
    status,
    until,
)

REQUEST = PrepareRequest(4, "intent", (), 3, (), (), False, True, None, ())
READY = messages.PrepareAnswer(4, "intent", "ready", "Newest", "", 4, Resume("none"), ())


def test_r4_prepare_is_asked_once_at_a_time_and_its_answer_belongs_to_its_intent() -> None:
    async def test() -> None:
        pod = Pod(address(1), free_port(), "pod-a", status("pod-a"), answer=lambda request: READY)
        await pod.start()
        woken = asyncio.Event()
        async with client(pod.port) as asker:
            errands = errands_of(asker, woken.set)
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
            errands = errands_of(asker, woken.set)
            for uid in ("pod-a", "pod-b"):
                woken.clear()
                errands.prepare(model.Prepare(uid, address(1), REQUEST))
                await woken.wait()
            assert errands.failed(4, "intent") == ("pod-a", "pod-b")
            errands.keep(5, {"pod-a", "pod-b"})
            assert errands.failed(4, "intent") == ()

    run(test)


def test_r23_an_announced_plan_is_not_told_again() -> None:
    async def test() -> None:
        pod = Pod(address(1), free_port(), "pod-a", status("pod-a"))
        await pod.start()
        async with client(pod.port) as asker:
            errands = errands_of(asker, lambda: None)
            plan = plan_of(pod)
            for _ in range(3):
                errands.announce(model.Announce("pod-a", pod.ip, 1, plan))
                errands.leave(model.AskLeave("pod-a", pod.ip, 1, 5.0))
                await until(lambda: errands.announced(1) == ("pod-a",) and is_accepted(errands))
            assert sorted(type(request).__name__ for request in pod.asked) == ["Announce", "LeaveRequest"]
            assert errands.stop_of(2) is None
        await pod.stop()

    run(test)


def is_accepted(errands: Errands, purpose: str = "") -> bool:
    stop = errands.stop_of(1)
    return stop is not None and stop.purpose == purpose and stop.accepted


def test_r19_save_and_stop_is_asked_again_when_the_core_wants_it_for_another_purpose() -> None:
    async def test() -> None:
        pod = Pod(address(1), free_port(), "pod-a", status("pod-a"))
        await pod.start()
        async with client(pod.port) as asker:
            errands = errands_of(asker)
            errands.leave(model.AskLeave("pod-a", pod.ip, 1, 120.0, "change"))
            await until(lambda: is_accepted(errands, "change"))
            errands.leave(model.AskLeave("pod-a", pod.ip, 1, 25.0, "departure"))
            await until(lambda: is_accepted(errands, "departure"))
            assert [request.deadline_seconds for request in pod.asked] == [120.0, 25.0]
        await pod.stop()

    run(test)


def test_r19_a_stop_that_nobody_accepts_is_as_old_as_its_first_try() -> None:
    answers = iter(["no", "no", "yes"])

    def answer(request: Any) -> Any:
        if next(answers) == "no":
            raise Rejected(409, "not now")
        return messages.Ack(1)

    async def test() -> None:
        pod = Pod(address(1), free_port(), "pod-a", status("pod-a"), answer=answer)
        await pod.start()
        async with client(pod.port) as asker:
            errands, tried = errands_of(asker, clock=FastClock()), []
            while not is_accepted(errands, "suspend"):
                errands.leave(model.AskLeave("pod-a", pod.ip, 1, 5.0, "suspend"))
                await asyncio.sleep(0.01)
                stop = errands.stop_of(1)
                assert stop is not None
                tried.append(stop.tried_at)
            assert len(pod.asked) == 3
            assert len(set(tried)) == 1
        await pod.stop()

    run(test)


def answered(outcome: Any, **changes: Any) -> PrepareAnswer:
    return replace(READY, outcome=outcome, **changes)


def prepare(errands: Errands, pod: Pod, number: int = 4) -> None:
    errands.prepare(model.Prepare(pod.uid, pod.ip, replace(REQUEST, attempt=number)))


FINAL = ("ready", "fenced", "wait", "stop")


@pytest.mark.parametrize("first", [*FINAL, "busy"])
@pytest.mark.parametrize("second", [*FINAL, "busy"])
def test_r4_what_settles_the_question_is_not_replaced_by_less_of_another_pod(first: str, second: str) -> None:
    weight = {"ready": 2, "fenced": 2, "wait": 1, "stop": 1, "busy": 0}

    async def test() -> None:
        port, heard = free_port(), asyncio.Event()
        pods = [
            Pod(
                address(number + 1),
                port,
                f"pod-{number}",
                status(f"pod-{number}"),
                answer=lambda _, o=outcome: answered(o),
            )
            for number, outcome in enumerate((first, second))
        ]
        async with client(port) as asker:
            errands = errands_of(asker, heard.set)
            for pod in pods:
                await pod.start()
                heard.clear()
                prepare(errands, pod)
                await heard.wait()
            found = errands.prepared(4, "intent")
            assert found is not None
            kept = first if weight[first] > weight[second] else second
            assert (found.answer.outcome, found.by) == (kept, "pod-0" if kept is first and first != second else "pod-1")
        for pod in pods:
            await pod.stop()

    run(test)


def test_st7_a_busy_answer_is_an_answer_and_the_next_one_of_that_pod_replaces_any() -> None:
    answers = iter([answered("busy", progress_age_seconds=3.0), answered("wait"), answered("busy"), READY])

    async def test() -> None:
        pod = Pod(address(1), free_port(), "pod-a", status("pod-a"), answer=lambda _: next(answers))
        await pod.start()
        async with client(pod.port) as asker:
            errands, seen = errands_of(asker, clock=FastClock()), []
            while "ready" not in seen:
                prepare(errands, pod)
                await asyncio.sleep(0.01)
                found = errands.prepared(4, "intent")
                if found and found.answer.outcome not in seen[-1:]:
                    seen.append(found.answer.outcome)
            assert seen == ["busy", "wait", "busy", "ready"]
            assert errands.failed(4, "intent") == ()
        await pod.stop()

    run(test)


def test_st9_every_pod_has_its_turn_where_one_misses_the_storage_and_that_of_another_hangs() -> None:
    """The core asks as `coordinators.choose` says, until one of them can prepare."""
    port, outcomes = free_port(), ("wait", "busy", "wait", "ready")
    pods = [
        Pod(address(i + 1), port, f"u{i}", status(f"u{i}"), answer=lambda _, o=outcome: answered(o))
        for i, outcome in enumerate(outcomes)
    ]
    there = tuple(jobs.pod(i, ip=pod.ip) for i, pod in enumerate(pods))

    async def test() -> None:
        async with client(port) as asker:
            errands = errands_of(asker, clock=FastClock())
            for pod in pods:
                await pod.start()

            def is_prepared() -> bool:
                found = errands.prepared(4, "intent")
                seen = jobs.observed(
                    pods=there,
                    prepare=found.answer if found else None,
                    prepare_by=found.by if found else "",
                    prepare_failed=errands.failed(4, "intent"),
                    prepare_age_seconds=3.0,
                )
                chosen = coordinators.choose(seen, jobs.SETTINGS, there)
                errands.prepare(model.Prepare(chosen.uid, chosen.ip, REQUEST))
                return found is not None and found.answer.outcome == "ready"

            await until(is_prepared)
        for pod in pods:
            await pod.stop()

    run(test)


def test_r4_a_late_answer_of_an_older_attempt_does_not_push_out_the_newer_one() -> None:
    late = asyncio.Event()

    async def slowly(request: PrepareRequest) -> PrepareAnswer:
        if request.attempt == 4:
            await late.wait()
        return replace(READY, attempt=request.attempt)

    async def test() -> None:
        pod = Pod(address(1), free_port(), "pod-a", status("pod-a"), answer=slowly)
        await pod.start()
        async with client(pod.port) as asker:
            errands = errands_of(asker)
            prepare(errands, pod, 4)
            prepare(errands, pod, 5)
            await until(lambda: errands.prepared(5, "intent") is not None)
            late.set()
            await until(lambda: errands.prepared(4, "intent") is not None)
            assert errands.prepared(5, "intent") is not None
        await pod.stop()

    run(test)


NOT_SHARED = Trouble("StorageNotShared", "worker 1 on node n1: /ckpt has no everstep.json", 1.0)


def test_st1_sights_are_kept_for_their_attempt_whoever_told_them() -> None:
    answers = {
        "SightRequest": Sight("pod-a", NOT_SHARED, launcher=True),
        "PrepareRequest": replace(READY, sights=(Sight("pod-a", None, True), Sight("pod-b", NOT_SHARED, False))),
    }

    async def test() -> None:
        pod = Pod(address(1), free_port(), "pod-a", status("pod-a"), answer=lambda asked: answers[type(asked).__name__])
        await pod.start()
        async with client(pod.port) as asker:
            errands = errands_of(asker)
            errands.ask_sight(model.AskSight("pod-a", pod.ip, 4, "intent"))
            await until(lambda: bool(errands.sights(4, "intent")))
            assert {uid: sight for uid, (sight, _) in errands.sights(4, "intent").items()} == {
                "pod-a": Sight("pod-a", NOT_SHARED, launcher=True)
            }
            prepare(errands, pod)
            await until(lambda: "pod-b" in errands.sights(4, "intent"))
            assert errands.sights(4, "intent")["pod-a"][0].storage is None
            assert errands.sights(5, "intent") == {}
            errands.keep(4, {"pod-b"})
            assert set(errands.sights(4, "intent")) == {"pod-b"}
        await pod.stop()

    run(test)


def test_st1_a_pod_that_is_too_old_to_be_asked_is_no_hindrance() -> None:
    async def test() -> None:
        pod = Pod(address(1), free_port(), "pod-a", status("pod-a"), paths=("poll",))
        await pod.start()
        async with client(pod.port) as asker:
            errands = errands_of(asker)
            errands.ask_sight(model.AskSight("pod-a", pod.ip, 4, "intent"))
            await until(lambda: bool(errands.sights(4, "intent")))
            assert errands.sights(4, "intent")["pod-a"][0] == Sight("pod-a", None, launcher=True)
        await pod.stop()

    run(test)


def test_st17_a_message_that_differs_only_in_numbers_keeps_its_first_form() -> None:
    texts = iter(["/ckpt has 3 of 40 GiB left", "/ckpt has 2.5 of 40 GiB left", "/ckpt is gone"])

    async def test() -> None:
        pod = Pod(
            address(1), free_port(), "pod-a", status("pod-a"), answer=lambda _: answered("wait", message=next(texts))
        )
        await pod.start()
        async with client(pod.port) as asker:
            errands, seen = errands_of(asker, clock=FastClock()), []
            while len(pod.asked) < 3 or len(seen) < 2:
                prepare(errands, pod)
                await asyncio.sleep(0.01)
                found = errands.prepared(4, "intent")
                if found and found.answer.message not in seen:
                    seen.append(found.answer.message)
            assert seen == ["/ckpt has 3 of 40 GiB left", "/ckpt is gone"]
        await pod.stop()

    run(test)


def test_a_pod_of_a_failed_job_is_told_once_and_again_where_that_failed() -> None:
    answers = iter([False, True, True])

    def answer(request: Any) -> Any:
        if not next(answers):
            raise Rejected(503, "not now")
        return messages.Ack(1)

    async def test() -> None:
        pod = Pod(address(1), free_port(), "pod-a", status("pod-a"), answer=answer)
        await pod.start()
        async with client(pod.port) as asker:
            errands = errands_of(asker, clock=FastClock())
            for count in (1, 2):
                while len(pod.asked) < count:
                    errands.exit(model.AskExit("pod-a", pod.ip, 4, "NoProgress: why"))
                    await asyncio.sleep(0.01)
            for _ in range(20):
                errands.exit(model.AskExit("pod-a", pod.ip, 4, "NoProgress: why"))
                await asyncio.sleep(0.01)
            assert pod.asked == 2 * [messages.ExitRequest(4, "NoProgress: why")]
        await pod.stop()

    run(test)
