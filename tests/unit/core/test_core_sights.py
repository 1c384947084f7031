"""R4, R11, R32: who is asked, who is waited for, and who is no member because it does not see the storage or has no launcher."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everstep_operator.core import attempts, coordinators, sights
from everstep_operator.core.decide import decide
from everstep_operator.core.model import (
    AskLeave,
    AskSight,
    Decision,
    JobStatus,
    Observed,
    Prepare,
    WorkerStatus,
    WriteStatus,
)
from everstep_protocol.messages import Sight
from unit.core.jobs import (
    SETTINGS,
    answer,
    blind_sight,
    good_sight,
    nodes,
    observed,
    pod,
    preparing,
    rows,
    sidecar,
    spec,
    started_status,
)

GOOD = good_sight(0, 1, 2)


def condition(decision: Decision, kind: str) -> tuple[str, str, str]:
    (found,) = (c for c in decision.conditions if c.type == kind)
    return (found.status, found.reason, found.message)


def asked(seen: Observed) -> list[str]:
    return [action.uid for action in decide(seen, SETTINGS).actions if isinstance(action, Prepare)]


def members(seen: Observed) -> list[int]:
    (write,) = decide(seen, SETTINGS).actions
    assert isinstance(write, WriteStatus)
    assert write.status.attempt
    assert write.status.attempt.plan
    return [member.id for member in write.status.attempt.plan.members]


def answered(*sight: Sight, by: str = "u0", age: float = 1.0, **changes: Any) -> Observed:
    """The pod `by` answered prepare, with these sights."""
    return preparing(**{"prepare": answer(sights=sight), "prepare_by": by, "prepare_age_seconds": age, **changes})


def test_r11_everybody_that_may_be_a_member_is_expected_also_one_that_saw_nothing() -> None:
    seen = preparing(sights={"u2": blind_sight(2)})
    (ask,) = (action for action in decide(seen, SETTINGS).actions if isinstance(action, Prepare))
    assert ask.request.expected == ("u0", "u1", "u2")


def test_r11_who_does_not_see_the_storage_is_no_member() -> None:
    assert members(answered(GOOD["u0"], GOOD["u1"], blind_sight(2))) == [0, 1]
    assert members(preparing(prepare=answer(), prepare_by="u0", sights={"u2": blind_sight(2)})) == [0, 1]


def test_r11_the_newer_of_two_words_counts() -> None:
    told = answered(GOOD["u0"], GOOD["u1"], blind_sight(2), sights=GOOD, sight_ages={"u2": 0.5})
    assert members(told) == [0, 1, 2]
    assert members(replace(told, sight_ages={"u2": 20.0})) == [0, 1]


def test_r11_silence_is_no_trouble() -> None:
    assert members(answered(GOOD["u0"])) == [0, 1, 2]


def test_r11_too_few_that_see_the_storage_wait_and_are_named_with_the_remedy() -> None:
    seen = answered(GOOD["u0"], GOOD["u1"], blind_sight(2), spec=spec(min_workers=3), sight_ages={}, age=10.0)
    decision = decide(seen, SETTINGS)
    assert (decision.phase, decision.reason) == ("Waiting", "StorageNotShared")
    assert "gpt-w2 on n2 does not see this job's storage: mount the claim there" in decision.message
    assert condition(decision, "CheckpointHealthy") == ("False", "StorageNotShared", decision.message)
    assert AskSight("u2", "10.0.0.2", 2, "i2") in decision.actions
    early = decide(replace(seen, prepare_age_seconds=9.9), SETTINGS)
    assert not [action for action in early.actions if isinstance(action, AskSight)]


def test_r11_the_question_names_whose_fence_must_be_seen() -> None:
    """Of mounts that are all apart each may hold a fence of this number and intent."""
    told = answered(GOOD["u0"], GOOD["u1"], blind_sight(2), spec=spec(min_workers=3), sight_ages={}, age=10.0)
    told = replace(told, prepare=replace(answer(sights=told.prepare.sights), raised_by="u0"))  # type: ignore[union-attr]
    assert AskSight("u2", "10.0.0.2", 2, "i2", "u0") in decide(told, SETTINGS).actions
    planned = answered(*GOOD.values())
    planned = replace(planned, prepare=replace(answer(sights=tuple(GOOD.values())), raised_by="u1"))
    (write,) = decide(planned, SETTINGS).actions
    assert isinstance(write, WriteStatus)
    assert write.status.attempt
    assert (write.status.attempt.state, write.status.attempt.fenced_by) == ("Planned", "u1")


@pytest.mark.parametrize("reason", ["StorageHangs", "StorageError"])
def test_r11_whatever_keeps_a_pod_from_the_storage_it_is_no_member_and_the_reason_is_told(reason: str) -> None:
    seen = answered(GOOD["u0"], GOOD["u1"], blind_sight(2, reason))
    assert members(seen) == [0, 1]
    assert decide(replace(seen, spec=spec(min_workers=3)), SETTINGS).reason == reason


def test_r11_an_odd_mount_is_not_believed_each_pod_is_asked_once_and_then_it_goes_on() -> None:
    odd = answered(GOOD["u0"], blind_sight(1), blind_sight(2))
    assert asked(odd) == ["u1"]
    others = answered(blind_sight(0), GOOD["u1"], GOOD["u2"], by="u1")
    assert members(others) == [1, 2]
    all_asked = answered(blind_sight(0), blind_sight(1), GOOD["u2"], by="u2")
    assert asked(all_asked) == []
    assert decide(all_asked, SETTINGS).reason == "StorageNotShared"
    assert asked(replace(all_asked, prepare_age_seconds=30.0)) == ["u0"], "a mount may come back"
    assert asked(replace(odd, attempt_age_seconds=60.0)) == [], "within a bounded time"


def test_r11_the_pod_that_answered_coordinates() -> None:
    status = decide(answered(*GOOD.values(), by="u1"), SETTINGS).actions[0].status  # type: ignore[union-attr]
    assert status.attempt.plan.coordinator.uid == "u1"


BUSY = answer(outcome="busy", reason="", message="")
WAIT = answer(outcome="wait", reason="StorageMissing", message="not there")
TURNS: dict[str, tuple[dict[str, Any], str]] = {
    "nobody asked": ({}, "u0"),
    "the first failed": ({"prepare_failed": ("u0",)}, "u1"),
    "all failed: the oldest": ({"prepare_failed": ("u2", "u0", "u1")}, "u2"),
    "busy: the same": ({"prepare": BUSY, "prepare_by": "u1"}, "u1"),
    "stalled: the next": ({"prepare": replace(BUSY, progress_age_seconds=30.0), "prepare_by": "u1"}, "u2"),
    "wait: the next": ({"prepare": WAIT, "prepare_by": "u0"}, "u1"),
    "wait: round": ({"prepare": WAIT, "prepare_by": "u2"}, "u0"),
    "wait: not those that failed": ({"prepare": WAIT, "prepare_by": "u0", "prepare_failed": ("u1",)}, "u2"),
    "wait, all others failed": ({"prepare": WAIT, "prepare_by": "u0", "prepare_failed": ("u2", "u1")}, "u2"),
    "wait, all others failed, long ago": (
        {"prepare": WAIT, "prepare_by": "u0", "prepare_failed": ("u2", "u1"), "prepare_age_seconds": 30.0},
        "u0",
    ),
    "wait, by one that is gone": ({"prepare": WAIT, "prepare_by": "u9"}, "u0"),
    "stop: the same": ({"prepare": answer(outcome="stop"), "prepare_by": "u1"}, "u1"),
}


@pytest.mark.parametrize(("changes", "expected"), TURNS.values(), ids=TURNS)
def test_r4_whose_turn_it_is(changes: dict[str, Any], expected: str) -> None:
    seen = preparing(**{"prepare_age_seconds": 3.0, **changes})
    assert coordinators.choose(seen, SETTINGS, attempts.candidates(seen, SETTINGS)).uid == expected


def asked_last(status: JobStatus, uid: str) -> JobStatus:
    assert status.attempt
    return replace(status, attempt=replace(status.attempt, ask_last=uid))


def test_r4_whose_storage_failed_the_attempt_before_is_asked_last_if_there_is_another() -> None:
    seen = preparing()
    seen = replace(seen, status=asked_last(seen.status, "u0"))
    assert asked(seen) == ["u1"]
    alone = replace(seen, pods=(pod(0),), spec=spec(min_workers=1))
    alone = replace(alone, status=replace(alone.status, workers=(*rows(0), *rows(1, 2, 3, state="Wanted"))))
    assert asked(alone) == ["u0"]


def test_r4_busy_is_asked_again_soon_and_a_stalled_look_is_told_with_its_node() -> None:
    decision = decide(preparing(prepare=BUSY, prepare_by="u0"), SETTINGS)
    assert (decision.phase, decision.reason, decision.requeue_after) == ("Recovering", "Preparing", 1.0)
    stalled = decide(preparing(prepare=replace(BUSY, progress_age_seconds=31.0), prepare_by="u0"), SETTINGS)
    assert (stalled.phase, stalled.reason) == ("Waiting", "StorageHangs")
    assert "worker 0 on node n0" in stalled.message
    assert condition(stalled, "CheckpointHealthy")[:2] == ("False", "StorageHangs")
    again = decide(preparing(prepare=replace(BUSY, progress_age_seconds=55.0), prepare_by="u0"), SETTINGS)
    assert again.message == stalled.message, "stable"


def test_r32_a_launcher_that_is_not_connected_is_waited_for_and_asked_again_then_left_out() -> None:
    absent = replace(GOOD["u2"], launcher=False)
    seen = answered(GOOD["u0"], GOOD["u1"], absent)
    decision = decide(seen, SETTINGS)
    assert (decision.phase, decision.reason) == ("Recovering", "RestartingWorkers")
    assert "worker 2 on node n2" in decision.message
    assert AskSight("u2", "10.0.0.2", 2, "i2") in decision.actions
    assert members(replace(seen, sights={"u2": GOOD["u2"]}, sight_ages={"u2": 0.1})) == [0, 1, 2]
    assert members(replace(seen, prepare_age_seconds=15.0)) == [0, 1]
    alone = decide(replace(seen, prepare_age_seconds=15.0, spec=spec(min_workers=3)), SETTINGS)
    assert alone.reason == "NotEnoughWorkers"
    assert "worker 2 on node n2: its launcher is not connected" in alone.message


def test_r32_survivors_do_not_wait_for_the_launcher_of_a_worker_that_only_just_comes() -> None:
    coming = Sight("u4", None, launcher=False)
    there = (*(pod(i) for i in range(4)), pod(4, plan_attempt=0))
    seen = answered(*GOOD.values(), coming, pods=there, nodes=nodes(5, n3={"unreachable": True}))
    assert members(seen) == [0, 1, 2]
    status = seen.status
    assert status.attempt
    first = replace(status, attempt=replace(status.attempt, cause="start"))
    assert decide(replace(seen, status=first), SETTINGS).reason == "RestartingWorkers", "nothing was training"
    wanted = replace(status, workers=(*rows(0), *rows(1, 2, 4, state="Wanted")))
    assert decide(replace(seen, status=wanted), SETTINGS).reason == "RestartingWorkers", "too few survived"


def test_r32_a_trainer_container_that_the_kubelet_starts_again_is_waited_for() -> None:
    again = (pod(0), pod(1), pod(2, trainer_terminated=True))
    seen = answered(*GOOD.values(), pods=(*again, pod(3), pod(4, plan_attempt=0)))
    seen = replace(seen, status=replace(seen.status, workers=rows(0, 1, 2, 3)), nodes=nodes())
    assert decide(seen, SETTINGS).reason == "RestartingWorkers"
    assert members(replace(seen, prepare_age_seconds=15.0)) == [0, 1, 3]


def test_r32_a_job_of_one_whose_container_is_started_again_is_starting_for_a_while() -> None:
    seen = preparing(pods=(pod(0, trainer_terminated=True),), spec=spec(min_workers=1, max_workers=1))
    seen = replace(seen, status=replace(seen.status, workers=rows(0)))
    assert decide(seen, SETTINGS).reason == "StartingWorkers"
    assert decide(replace(seen, attempt_age_seconds=15.0), SETTINGS).reason == "NotEnoughWorkers"


JOINER = started_status((0, 1, 2), workers=(*rows(0, 1, 2), WorkerStatus(4, "Wanted")), next_worker_id=5)
GROWING: dict[str, tuple[dict[str, Any], bool, bool]] = {
    "not asked yet": ({}, False, True),
    "sees it": ({"sights": good_sight(4)}, True, False),
    "does not": ({"sights": {"u4": blind_sight(4)}, "sight_ages": {"u4": 9.9}}, False, False),
    "did not, a while ago": ({"sights": {"u4": blind_sight(4)}, "sight_ages": {"u4": 10.0}}, False, True),
    "sees it, without a launcher": (
        {"sights": {"u4": Sight("u4", None, launcher=False)}, "sight_ages": {"u4": 1.0}},
        False,
        True,
    ),
}


@pytest.mark.parametrize(("changes", "stops", "asks"), GROWING.values(), ids=GROWING)
def test_r11_a_job_is_stopped_only_for_who_sees_its_storage(changes: dict[str, Any], stops: bool, asks: bool) -> None:
    seen = observed(
        status=JOINER,
        pods=(pod(0), pod(1), pod(2), pod(4)),
        nodes=nodes(5),
        sidecar=sidecar(members=(0, 1, 2)),
        **changes,
    )
    actions = decide(seen, SETTINGS).actions
    assert any(isinstance(action, AskLeave) for action in actions) is stops
    assert (AskSight("u4", "10.0.0.4", 1, "i1") in actions) is asks


def test_r11_a_joiner_that_does_not_see_the_storage_is_told_in_both_conditions() -> None:
    seen = observed(
        status=JOINER, pods=(pod(0), pod(1), pod(2), pod(4)), nodes=nodes(5), sidecar=sidecar(members=(0, 1, 2))
    )
    assert (
        "worker 4 on node n4 to say that the storage is seen there" in condition(decide(seen, SETTINGS), "Degraded")[2]
    )
    blind = decide(replace(seen, sights={"u4": blind_sight(4)}), SETTINGS)
    assert "gpt-w4 on n4 does not see this job's storage" in condition(blind, "Degraded")[2]
    healthy, reason, message = condition(blind, "CheckpointHealthy")
    assert (healthy, reason) == ("False", "StorageNotShared")
    assert message == "gpt-w4 on n4 does not see this job's storage: mount the claim there"


def test_r32_an_old_word_of_a_launcher_is_silence_of_the_sidecar() -> None:
    """It is asked every few seconds: what it said a minute ago tells nothing of its container."""
    word = {"u2": Sight("u2", None, launcher=False)}
    assert "its launcher is not connected" in sights.why_not(observed(sights=word, sight_ages={"u2": 59.9}), pod(2))
    assert "does not answer the operator" in sights.why_not(observed(sights=word, sight_ages={"u2": 60.0}), pod(2))


def test_r19_a_stop_for_joiners_that_takes_long_is_told_and_a_usual_one_is_not() -> None:
    seen = observed(
        status=JOINER,
        pods=(pod(0), pod(1), pod(2), pod(4)),
        nodes=nodes(5),
        sidecar=sidecar(members=(0, 1, 2)),
        sights=good_sight(4),
        leave_purpose="change",
        leave_accepted=True,
    )
    told = [
        condition(decide(replace(seen, leave_age_seconds=age), SETTINGS), "Degraded")[2] for age in (None, 29.9, 30.0)
    ]
    assert ["asked for in vain" in message for message in told] == [False, False, True]
    assert "worker 0 on node n0" in told[2]
