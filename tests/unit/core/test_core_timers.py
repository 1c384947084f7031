"""R7, R16, R19, R28, R30: whatever stays silent or does not come, the attempt ends or a condition names what is missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everstep_operator.core import endings, pods
from everstep_operator.core.attempts import Ending
from everstep_operator.core.decide import decide
from everstep_operator.core.model import AskLeave, Decision, Doubt, Observed, WriteStatus
from everstep_protocol.messages import MemberSummary, SidecarStatus, Trouble
from unit.core.decisions import PLAN_2, planned_2
from unit.core.jobs import (
    SETTINGS,
    blind_sight,
    good_sight,
    nodes,
    observed,
    over,
    pod,
    preparing,
    rows,
    sidecar,
    spec,
    started_status,
    training,
)

HANGS = Trouble("StorageHangs", "a listing of /ckpt has not returned", 1e6)
FULL = Trouble("ENOSPC", "/ckpt is full", 1e6)
LONG = 1e6


def planned(**changes: Any) -> Observed:
    """Attempt 2 of workers 0, 1, 2 is Planned; everybody has the plan."""
    base: dict[str, Any] = {
        "status": planned_2(),
        "pods": tuple(pod(i, plan_attempt=2) for i in range(4)),
        "attempt_age_seconds": 15.0,
    }
    return preparing(**{**base, **changes})


def before_go(*states: str, troubles: dict[int, Trouble] | None = None, **changes: Any) -> SidecarStatus:
    base = sidecar(2, (0, 1, 2), states, gone=False, training=training(-1, library=False, phase="none"), **changes)
    told = troubles or {}
    return replace(base, members=tuple(replace(m, trouble=told.get(i)) for i, m in enumerate(base.members)))


def ending(seen: Observed) -> Ending | None:
    return endings.find(seen, SETTINGS)


def found(seen: Observed) -> Ending:
    end = ending(seen)
    assert end is not None
    return end


def condition(decision: Decision, kind: str) -> tuple[str, str, str]:
    (it,) = (c for c in decision.conditions if c.type == kind)
    return (it.status, it.reason, it.message)


# ---------------------------------------------------------------- Planned


def test_r28_a_coordinator_that_answers_nobody_is_the_one_left_out() -> None:
    end = found(planned(sidecar=None))
    assert (end.cause, end.lost) == ("not-delivered", {0})
    assert ending(planned(sidecar=None, attempt_age_seconds=14.9)) is None
    unsure = planned(sidecar=None, doubt=Doubt(False, True, 0.0, 0.0))
    assert ending(unsure) is None
    assert "does a NetworkPolicy forbid" in decide(unsure, SETTINGS).message


def test_r28_not_everybody_is_given_up_where_nobody_could_say_hello() -> None:
    assert found(planned(sidecar=before_go("absent", "absent", "absent"))).lost == {0}
    assert found(planned(sidecar=before_go("ready", "absent", "absent"))).lost == {1, 2}


def test_r28_what_a_member_said_of_its_mount_is_in_the_ending() -> None:
    trouble = Trouble("StorageNotShared", "/ckpt is another volume", 9.0)
    end = found(planned(sidecar=before_go("ready", "ready", "absent", troubles={2: trouble})))
    assert (end.cause, end.lost) == ("not-delivered", {2})
    assert end.message == ("worker 2 did not take attempt 2 within 15 s; /ckpt is another volume")


def test_r11_nobody_is_blamed_for_the_coordinators_storage() -> None:
    silent = before_go("absent", "absent", "absent", storage=HANGS)
    decision = decide(planned(sidecar=silent, attempt_age_seconds=59.0), SETTINGS)
    assert (decision.phase, decision.reason) == ("Recovering", "WaitingForStorage")
    assert "a listing of /ckpt has not returned" in decision.message
    assert condition(decision, "Ready")[:2] == ("False", "WaitingForStorage")
    assert condition(decision, "CheckpointHealthy")[:2] == ("False", "StorageHangs")


def test_r11_a_coordinator_without_storage_ends_the_attempt_and_another_pod_is_asked_first() -> None:
    silent = before_go("absent", "absent", "absent", storage=HANGS)
    seen = planned(sidecar=silent, attempt_age_seconds=60.0)
    end = found(seen)
    assert (end.cause, end.lost, end.ask_last) == ("storage", frozenset(), "u0")
    (write,) = decide(seen, SETTINGS).actions
    assert isinstance(write, WriteStatus)
    assert write.status.attempt
    assert write.status.attempt.ask_last == "u0"
    assert [row.state for row in write.status.workers if row.id < 3] == ["Joined"] * 3
    assert write.status.budget.crashes == ()
    lately = before_go("ready", "ready", "ready", storage=replace(HANGS, age_seconds=59.0))
    assert ending(planned(sidecar=lately, attempt_age_seconds=LONG)) is None


def test_r11_members_whose_storage_hangs_are_not_given_up_either() -> None:
    hang = before_go("ready", "absent", "absent", troubles={1: HANGS, 2: HANGS})
    assert ending(planned(sidecar=hang, attempt_age_seconds=59.0)) is None
    end = found(planned(sidecar=hang, attempt_age_seconds=60.0))
    assert (end.cause, end.lost, end.ask_last) == ("storage", frozenset(), "")
    assert end.message.endswith(f"it waited for the storage: {HANGS.message}; {HANGS.message}")
    mixed = before_go("ready", "absent", "absent", troubles={1: HANGS})
    assert found(planned(sidecar=mixed)).lost == {2}


def test_r28_members_that_verify_are_waited_for_and_named() -> None:
    seen = planned(sidecar=before_go("ready", "preparing", "ready"), attempt_age_seconds=LONG)
    decision = decide(seen, SETTINGS)
    assert decision.message.endswith("; worker 1 on node n1 still verify their part of the checkpoint")


def test_r28_a_coordinator_that_never_gives_go_is_left_out() -> None:
    ready = before_go("ready", "ready", "ready")
    assert ending(planned(sidecar=ready, attempt_age_seconds=599.0)) is None
    assert found(planned(sidecar=ready, attempt_age_seconds=600.0)).lost == {0}


def test_r32_before_go_a_container_that_ended_is_started_again() -> None:
    again = tuple(pod(i, plan_attempt=2, trainer_terminated=i == 1) for i in range(4))
    seen = planned(pods=again, sidecar=before_go("ready", "absent", "ready"), attempt_age_seconds=14.0)
    assert ending(seen) is None
    assert found(replace(seen, attempt_age_seconds=15.0)).cause == "not-delivered"


def test_r32_soon_after_go_our_view_of_a_container_may_be_old() -> None:
    seen = observed(pods=(pod(0), pod(1), pod(2), pod(3, trainer_terminated=True)), go_age_seconds=14.0)
    assert ending(seen) is None
    assert found(replace(seen, go_age_seconds=15.0)).cause == "crash"


# ---------------------------------------------------------------- Started


def witness(**changes: Any) -> SidecarStatus:
    """Another member's answer: it knows nothing of the others."""
    return replace(sidecar(role="member", pod_uid="u1", **changes), members=(), gone=False)


def test_r16_a_coordinator_that_is_silent_for_a_minute_is_told() -> None:
    seen = observed(coordinator_age_seconds=61.0, sidecar_age_seconds=61.0)
    status, reason, message = condition(decide(seen, SETTINGS), "CheckpointHealthy")
    assert (status, reason) == ("False", "CoordinatorSilent")
    assert "worker 0 on node n0" in message
    assert condition(decide(replace(seen, coordinator_age_seconds=60.0), SETTINGS), "CheckpointHealthy")[0] == "True"


def test_r16_a_coordinator_that_is_silent_while_others_answer_is_replaced() -> None:
    seen = observed(coordinator_age_seconds=120.0, sidecar=witness())
    end = found(seen)
    assert (end.cause, end.lost) == ("not-delivered", {0})
    assert ending(replace(seen, coordinator_age_seconds=119.0)) is None
    assert ending(replace(seen, sidecar_age_seconds=10.0)) is None, "nobody answers us: it may be us"
    assert ending(replace(seen, sidecar=sidecar())) is None
    assert ending(replace(seen, doubt=Doubt(True, False, 0.0, 0.0))) is None
    done = replace(seen.status, workers=(*rows(0, state="Finished"), *rows(1, 2, 3)))
    assert ending(replace(seen, status=done)) is None


def plain(idle: float, go: float, **changes: Any) -> Observed:
    script = training(-1, **{"library": False, "phase": "starting", "age_seconds": idle, **changes})
    return observed(sidecar=sidecar(training=script), training_age_seconds=idle, go_age_seconds=go)


HANGING: dict[str, tuple[Observed, str]] = {
    "R7 no first step": (
        observed(sidecar=sidecar(training=training(-1)), go_age_seconds=600.0),
        "no first step for 600 s",
    ),
    "R7 no sign of life from go on": (plain(600.0, 600.0), "no CPU time used and nothing printed for 600 s"),
    "no sign of life any more": (plain(600.0, 9999.0), "no CPU time used and nothing printed for 600 s"),
    "no step": (observed(training_age_seconds=600.0), "no step for 600 s"),
    "saving, no byte advances": (
        observed(
            sidecar=sidecar(training=training(phase="saving"), bytes_age_seconds=600.0), training_age_seconds=LONG
        ),
        "no step for 600 s",
    ),
    "stopped, nothing fails and nothing is saved": (
        observed(sidecar=sidecar(training=training(phase="stopped")), training_age_seconds=LONG),
        "the trainers stopped for a save that was not committed for 600 s",
    ),
    "stopped, and what fails is no storage": (
        observed(
            sidecar=sidecar(
                training=training(phase="stopped"), failing=Trouble("SavesOverdue", "worker 2 is missing", 9.0)
            ),
            training_age_seconds=LONG,
        ),
        "the trainers stopped for a save that was not committed for 600 s",
    ),
}


@pytest.mark.parametrize(("seen", "what"), HANGING.values(), ids=HANGING)
def test_r7_a_hang(seen: Observed, what: str) -> None:
    end = found(seen)
    assert (end.cause, end.message) == ("hang", f"{what} and nothing else is wrong: the trainers hang")


ALIVE: dict[str, Observed] = {
    "a first step may take a while": observed(sidecar=sidecar(training=training(-1)), go_age_seconds=599.0),
    "a plain script that works": plain(3.0, LONG),
    "a plain script that started just now": plain(599.0, 599.0),
    "a plain script seen by a new operator": plain(LONG, 5.0),
    "bytes of a save advance": observed(
        sidecar=sidecar(training=training(phase="saving"), bytes_age_seconds=599.0), training_age_seconds=LONG
    ),
    "bytes of the last save advance": observed(
        sidecar=sidecar(training=training(phase="finished"), bytes_age_seconds=1.0), training_age_seconds=LONG
    ),
    "the storage is full, and nothing is lost by waiting": observed(
        sidecar=sidecar(training=training(phase="stopped"), failing=FULL), training_age_seconds=LONG
    ),
    "a step takes longer than the deadline, as ever": observed(
        sidecar=sidecar(training=training(usual_seconds=700.0)), training_age_seconds=2099.0
    ),
    "the script evaluates after its last step": observed(
        sidecar=sidecar(training=training(phase="finished")), training_age_seconds=LONG
    ),
    "we doubt ourselves": observed(training_age_seconds=LONG, doubt=Doubt(True, True, 5.0, 0.0)),
}


@pytest.mark.parametrize("seen", ALIVE.values(), ids=ALIVE)
def test_r7_no_hang(seen: Observed) -> None:
    assert ending(seen) is None


def test_r7_a_step_that_takes_three_times_the_usual_and_longer_than_the_deadline_is_a_hang() -> None:
    slow = observed(sidecar=sidecar(training=training(usual_seconds=700.0)), training_age_seconds=2100.0)
    assert found(slow).message == "no step for 2100 s and nothing else is wrong: the trainers hang"


QUIET: dict[str, tuple[Observed, str]] = {
    "a step of minutes": (observed(training_age_seconds=299.0), ""),
    "an evaluation between two steps": (observed(training_age_seconds=240.0), ""),
    "no step": (observed(training_age_seconds=300.0), "no step;"),
    "steps of ten minutes": (
        observed(sidecar=sidecar(training=training(usual_seconds=600.0)), training_age_seconds=1799.0),
        "",
    ),
    "a first step that compiles": (observed(sidecar=sidecar(training=training(-1)), go_age_seconds=299.0), ""),
    "no first step": (observed(sidecar=sidecar(training=training(-1)), go_age_seconds=300.0), "no first step;"),
    "a download without output": (plain(299.0, LONG), ""),
    "no sign of life": (plain(300.0, LONG), "no CPU time used and nothing printed;"),
    "after the last step": (
        observed(sidecar=sidecar(training=training(phase="finished")), training_age_seconds=299.0),
        "",
    ),
    "long after the last step": (
        observed(
            sidecar=sidecar(
                states=("finished", "running", "finished", "finished"), training=training(phase="finished")
            ),
            training_age_seconds=LONG,
        ),
        "the processes of worker 1 on node n1 have not ended: they may evaluate, export, or hang; "
        "look at the trainers' output; nothing ends it",
    ),
}


@pytest.mark.parametrize(("seen", "said"), QUIET.values(), ids=QUIET)
def test_r7_that_nothing_comes_is_said_at_half_of_the_deadline_and_healthy_jobs_do_not_flap(
    seen: Observed, said: str
) -> None:
    status, reason, message = condition(decide(seen, SETTINGS), "Ready")
    quiet = ("False", "StartingTrainers") if pods.is_first_step_awaited(seen) else ("True", "Training")
    assert (status, reason) == (("False", "NotProgressing") if said else quiet)
    assert said in message


def test_r7_after_a_hang_that_nothing_comes_is_said_soon() -> None:
    status = started_status()
    assert status.attempt
    again = replace(status, attempt=replace(status.attempt, cause="hang"))
    seen = observed(status=again, training_age_seconds=60.0)
    assert condition(decide(seen, SETTINGS), "Ready")[1] == "NotProgressing"
    assert condition(decide(replace(seen, training_age_seconds=59.0), SETTINGS), "Ready")[1] == "Training"


def test_r7_a_start_may_have_more_time_or_less_than_later_silence() -> None:
    patient = replace(SETTINGS, start_deadline=3600.0)
    assert endings.find(plain(3599.0, 3599.0), patient) is None
    assert endings.find(plain(3600.0, 3600.0), patient) is not None
    strict = replace(SETTINGS, start_deadline=60.0)
    assert endings.find(plain(60.0, 65.0), strict) is not None
    assert endings.find(plain(60.0, 999.0), strict) is None, "that was not its start"


@pytest.mark.parametrize("phase", ["stopped", "finished"])
def test_r16_a_stop_whose_save_fails_waits_and_says_so(phase: str) -> None:
    status = started_status((0, 1, 2), workers=(*rows(0, 1, 2), *rows(4, state="Wanted")), next_worker_id=5)
    seen = observed(
        status=status, pods=(pod(0), pod(1), pod(2), pod(4)), nodes=nodes(5), sights=good_sight(4),
        sidecar=sidecar(members=(0, 1, 2), training=training(40, phase=phase, age_seconds=LONG), failing=FULL),
        leave_age_seconds=LONG, leave_purpose="change", training_age_seconds=LONG,
    )  # fmt: skip
    decision = decide(seen, SETTINGS)
    assert (decision.phase, decision.reason) == ("Waiting", "StoppedWithoutSave")
    assert "/ckpt is full" in decision.message
    assert condition(decision, "Ready")[:2] == ("False", "StoppedWithoutSave")
    assert condition(decision, "CheckpointHealthy")[:2] == ("False", "CheckpointFailing")
    going = (pod(0), pod(1), pod(2, deletion_age_seconds=26.0, deletion_grace_seconds=30.0), pod(4))
    assert found(replace(seen, pods=going)).cause == "drain", "a departure ends by its deadline"
    suspend = replace(seen, spec=spec(suspend=True), leave_age_seconds=120.0, leave_purpose="suspend")
    assert decide(suspend, SETTINGS).reason == "Suspended", "and so does a suspension"


# ---------------------------------------------------------------- asking to leave


def test_r19_a_stop_is_asked_for_until_it_is_accepted() -> None:
    going = (pod(0), pod(1), pod(2), pod(3, deletion_age_seconds=5.0, deletion_grace_seconds=30.0))
    seen = observed(
        pods=going, announced=("u3",), leave_age_seconds=4.0, leave_purpose="departure", leave_accepted=False
    )
    assert AskLeave("u0", "10.0.0.0", 1, 20.0, "departure") in decide(seen, SETTINGS).actions
    assert decide(replace(seen, leave_accepted=True), SETTINGS).actions == ()


@pytest.mark.parametrize(
    "silence",
    [
        {"leave_age_seconds": 120.0, "leave_purpose": "suspend", "leave_accepted": False},
        {"leave_age_seconds": None, "coordinator_age_seconds": 120.0},
        {"leave_age_seconds": 120.0, "leave_purpose": "suspend", "sidecar": None},
    ],
    ids=["never accepted", "no try was possible", "nobody answers at all"],
)
def test_r30_a_suspension_ends_whoever_is_silent_and_says_what_was_not_saved(silence: dict[str, Any]) -> None:
    decision = decide(observed(spec=spec(suspend=True), **silence), SETTINGS)
    assert decision.reason == "Suspended"
    assert [notice.reason for notice in decision.notices] == ["Suspended", "SuspendedWithoutSave"]


# ---------------------------------------------------------------- words


def test_r32_the_last_lines_of_who_died_first_are_part_of_what_is_told() -> None:
    seen = observed(sidecar=sidecar(over=over("crash", details="ValueError: no")))
    assert found(seen).message == "crash happened: ValueError: no"


def test_r31_a_last_word_of_an_older_attempt_is_no_success() -> None:
    word = '{"attempt": 1, "result": "finished"}'
    ended = tuple(pod(i, plan_attempt=2, trainer_terminated=True, termination_message=word) for i in range(4))
    status = planned_2()
    assert status.attempt
    started = replace(status, attempt=replace(status.attempt, state="Started", plan=PLAN_2))
    decision = decide(planned(status=started, pods=ended, sidecar=None, go_age_seconds=99.0), SETTINGS)
    assert decision.phase == "Recovering"


MEMBER = MemberSummary(
    "u2", "running", 0, 3, trouble=Trouble("StorageNotShared", "the folder of the save is not there", 9.0)
)
SAVING: dict[str, tuple[dict[str, Any], str, str]] = {
    **{
        word: ({"sidecar": sidecar(failing=Trouble(word, "what to do", 9.0))}, word, "what to do")
        for word in ("StateRefused", "SaveFailed", "SavesOverdue", "StorageNotShared", "DeletionFails")
    },
    "EIO": (
        {"sidecar": sidecar(failing=Trouble("EIO", "what to do", 9.0))},
        "CheckpointFailing",
        "saves fail (EIO): what to do",
    ),
    "a member's trouble": (
        {"sidecar": replace(sidecar(), members=(MEMBER,))},
        "StorageNotShared",
        "the folder of the save is not there",
    ),
    "the coordinator's storage": (
        {"sidecar": sidecar(storage=HANGS)},
        "StorageHangs",
        "a listing of /ckpt has not returned",
    ),
}


@pytest.mark.parametrize(("changes", "reason", "message"), SAVING.values(), ids=SAVING)
def test_r16_why_checkpoints_are_not_healthy(changes: dict[str, Any], reason: str, message: str) -> None:
    assert condition(decide(observed(**changes), SETTINGS), "CheckpointHealthy") == ("False", reason, message)


def test_r16_what_cannot_be_deleted_keeps_nobody_from_joining() -> None:
    seen = observed(
        spec=spec(max_workers=3),
        sidecar=sidecar(failing=Trouble("DeletionFails", "remove it", 9.0)),
        sights={"u9": blind_sight(9)},
    )
    assert any(isinstance(action, AskLeave) for action in decide(seen, SETTINGS).actions)
