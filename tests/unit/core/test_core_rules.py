"""One test a rule, beside the tables of `test_decide` and `test_suspicion`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everstep_operator.core import attempts, budget, clock, leaving, pods, retention, workers
from everstep_operator.core.attempts import Ending
from everstep_operator.core.budget import Ended
from everstep_operator.core.decide import decide
from everstep_operator.core.model import (
    Budget,
    CheckpointStatus,
    Crash,
    JobStatus,
    Network,
    RestartPolicy,
    WorkerStatus,
)
from everstep_operator.core.retention import Branch, KeepLatest, condemn
from everstep_protocol.codec import dumps
from everstep_protocol.plan import parse_plan
from everstep_protocol.resume import Refusal
from hypothesis import given
from hypothesis import strategies as st
from unit.core.jobs import (
    NOW,
    NOW_TEXT,
    SETTINGS,
    answer,
    info,
    node,
    nodes,
    observed,
    pending,
    pod,
    preparing,
    preparing_status,
    resume,
    rows,
    sidecar,
    spec,
    started_status,
)

POLICY = RestartPolicy()

# ------------------------------------------------------------ attempts


def test_r1_the_number_is_above_status_every_fence_and_every_sidecar() -> None:
    assert attempts.next_number(observed(status=JobStatus(), sidecar=None)) == 1
    assert attempts.next_number(observed()) == 2
    assert attempts.next_number(observed(sidecar=sidecar(highest=6))) == 7
    assert attempts.next_number(observed(prepare=answer(highest=9))) == 10


def planned(**changes: Any) -> Any:
    seen = preparing(prepare=answer(), **changes)
    return decide(seen, SETTINGS).actions[0].status  # type: ignore[union-attr]


def test_r3_ranks_follow_ids_and_the_plan_is_sealed() -> None:
    plan = planned(spec=spec(processes_per_worker=2)).attempt.plan
    assert [(member.id, member.ranks) for member in plan.members] == [(0, (0, 2)), (1, (2, 4)), (2, (4, 6))]
    assert plan.world == 6
    assert parse_plan(dumps(plan)) == plan


def test_r4_a_coordinator_that_left_prepare_unanswered_is_not_chosen_and_the_chosen_one_holds_rank_0() -> None:
    plan = planned(prepare_failed=("u0",)).attempt.plan
    assert plan.coordinator.id == 1
    assert [(member.id, member.ranks) for member in plan.members] == [(1, (0, 1)), (0, (1, 2)), (2, (2, 3))]


def test_r4_only_the_answer_becomes_the_resume() -> None:
    status = planned()
    assert (status.attempt.plan.resume, status.lineage, status.last_attempt) == (resume(1, 30), ((1, 30),), 2)


def test_r9_the_lineage_loses_only_attempts_without_a_checkpoint_and_none_while_one_is_refused() -> None:
    lineage = ((1, 10), (2, 20), (3, 30))
    found = answer(lineage=lineage, checkpoints=(info(1, 10), info(3, 30)))
    assert attempts._pruned(found) == ((1, 10), (3, 30))
    assert attempts._pruned(replace(found, refused=(Refusal("step_20", "short"),))) == lineage


def test_r12_resume_from_is_obeyed_once_and_not_again_because_another_field_was_edited() -> None:
    seen = preparing(spec=spec(resume_from="none"), generation=1)
    assert attempts.resume_asked(seen) == "none"
    obeyed = planned(spec=spec(resume_from="none"))
    assert (obeyed.honoured_resume_generation, obeyed.honoured_resume_from) == (1, "none")
    assert attempts.resume_asked(replace(seen, status=obeyed, generation=2)) is None
    other = replace(seen, status=obeyed, generation=2, spec=spec(resume_from="step_10"))
    assert attempts.resume_asked(other) == "step_10"


def test_r12_the_same_value_counts_again_once_it_was_taken_out() -> None:
    seen = observed(status=started_status(honoured_resume_from="none", honoured_resume_generation=1), generation=2)
    written = decide(seen, SETTINGS).actions[0].status  # type: ignore[union-attr]
    assert written.honoured_resume_from == ""


def test_r12_an_answer_to_another_question_is_not_used() -> None:
    seen = preparing(prepare=answer(), generation=2, spec=spec(resume_from="none"))
    decision = decide(seen, SETTINGS)
    assert decision.reason == "Renumbered"
    assert decide(replace(seen, spec=spec(keep_last=5)), SETTINGS).reason == "StartingAttempt"


def test_a_commit_that_was_never_reported_resets_the_counts() -> None:
    status = preparing_status(budget=Budget((), 2, 2))
    assert planned(status=status).budget == Budget()
    never = answer(
        checkpoints=(), resume=replace(resume(1, 30), kind="none", id="", dir="", attempt=0, step=0), lineage=((0, 0),)
    )
    seen = preparing(status=status, prepare=never)
    assert decide(seen, SETTINGS).actions[0].status.budget == Budget((), 2, 2)  # type: ignore[union-attr]


# ------------------------------------------------------------ workers


def settled(**changes: Any) -> tuple[tuple[tuple[int, str], ...], int]:
    seen = preparing(**changes)
    status = workers.settle(seen, SETTINGS, seen.status)
    return tuple((row.id, row.state) for row in status.workers), status.next_worker_id


SETTLED: dict[str, tuple[dict[str, Any], tuple[tuple[int, str], ...]]] = {
    "a lost id stays while its pod exists": (
        {},
        ((0, "Joined"), (1, "Joined"), (2, "Joined"), (3, "Lost"), (4, "Wanted")),
    ),
    "and is forgotten with it": (
        {"pods": (pod(0), pod(1), pod(2), pending(4))},
        ((0, "Joined"), (1, "Joined"), (2, "Joined"), (4, "Wanted")),
    ),
    "a member whose pod vanished is burnt": (
        {"pods": (pod(0), pod(1), pod(3), pending(4))},
        ((0, "Joined"), (1, "Joined"), (3, "Lost"), (4, "Wanted"), (5, "Wanted")),
    ),
    "Terminating counts 0": (
        {"pods": (pod(0), pod(1), pod(2, deletion_age_seconds=0.0), pod(3), pending(4))},
        ((0, "Joined"), (1, "Joined"), (2, "Leaving"), (3, "Lost"), (4, "Wanted"), (5, "Wanted")),
    ),
    "a wanted pod on a silent node is given up": (
        {"pods": (pod(0), pod(1), pod(2), pod(3), pending(4, node="n3"))},
        ((0, "Joined"), (1, "Joined"), (2, "Joined"), (3, "Lost"), (4, "Lost"), (5, "Wanted")),
    ),
    "a wanted pod that failed young is left for a while": (
        {"pods": (pod(0), pod(1), pod(2), pod(3), pod(4, node="n0", phase="Failed", age_seconds=9.0))},
        ((0, "Joined"), (1, "Joined"), (2, "Joined"), (3, "Lost"), (4, "Wanted")),
    ),
    "and replaced then": (
        {"pods": (pod(0), pod(1), pod(2), pod(3), pod(4, node="n0", phase="Failed", age_seconds=10.0))},
        ((0, "Joined"), (1, "Joined"), (2, "Joined"), (3, "Lost"), (4, "Lost"), (5, "Wanted")),
    ),
    "pending because of a node that is well again: another id": (
        {"pods": (pod(0), pod(1), pod(2), pending(4, avoid=("n3",))), "nodes": nodes()},
        ((0, "Joined"), (1, "Joined"), (2, "Joined"), (5, "Wanted")),
    ),
    "pending because of two nodes, one of them well again: another id": (
        {"pods": (pod(0), pod(1), pod(2), pending(4, avoid=("n3", "n0"))), "nodes": nodes(n3={"unreachable": True})},
        ((0, "Joined"), (1, "Joined"), (2, "Joined"), (5, "Wanted")),
    ),
    "fewer wanted: the one without a running pod goes first": (
        {"spec": spec(max_workers=3)},
        ((0, "Joined"), (1, "Joined"), (2, "Joined"), (3, "Lost")),
    ),
    "then the highest ids": (
        {"spec": spec(max_workers=2)},
        ((0, "Joined"), (1, "Joined"), (2, "Leaving"), (3, "Lost")),
    ),
    "a name that is not ours burns the id": (
        {"pods": (pod(0), pod(1), pod(2), pod(3)), "names_taken": (4,)},
        ((0, "Joined"), (1, "Joined"), (2, "Joined"), (3, "Lost"), (5, "Wanted")),
    ),
}


@pytest.mark.parametrize(("changes", "expected"), SETTLED.values(), ids=SETTLED)
def test_r20_rows(changes: dict[str, Any], expected: tuple[tuple[int, str], ...]) -> None:
    got, following = settled(**changes)
    assert got == expected
    assert following == max(5, *(number + 1 for number, _ in got))


def test_r20_members_of_a_running_attempt_are_not_touched_by_a_silent_kubelet() -> None:
    seen = observed(nodes=nodes(n3={"unreachable": True}))
    assert decide(seen, SETTINGS).actions == ()
    touched = workers.settle(seen, SETTINGS, seen.status)
    assert [row.state for row in touched.workers] == ["Joined", "Joined", "Joined", "Lost", "Wanted"]


def test_r25_a_pod_on_the_node_of_a_lost_worker_is_no_member_although_its_lease_is_fresh() -> None:
    status = preparing_status(workers=(*rows(0, 1, 2), *rows(3, state="Lost"), *rows(4, state="Wanted")))
    seen = preparing(status=status, pods=(*(pod(i) for i in range(4)), pod(4, node="n3")), nodes=nodes())
    assert pods.suspect_nodes(seen, SETTINGS) == ("n3",)
    assert [p.worker_id for p in workers.usable(seen, SETTINGS)] == [0, 1, 2]


UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "runs": ({}, ""),
    "no sidecar": ({"sidecar_running": False}, "it is starting on node n2"),
    "no address": ({"ip": ""}, "it is starting on node n2"),
    "not running": ({"phase": "Pending"}, "it is starting on node n2"),
    "no node": ({"phase": "Pending", "node": ""}, "it is being scheduled"),
    "trainer container ended": ({"trainer_terminated": True}, "its trainer container ended and is being restarted"),
    "told to leave": ({"disruption": "EvictionByEvictionAPI"}, "its pod is being deleted"),
    "ended": ({"phase": "Succeeded"}, "its pod ended (Succeeded)"),
    "silent kubelet": ({"node": "n3"}, "node n3 does not answer"),
    "node gone": ({"node": "n7"}, "node n7 does not answer"),
}


@pytest.mark.parametrize(("changes", "expected"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_worker_that_cannot_be_a_member_says_why(changes: dict[str, Any], expected: str) -> None:
    seen = preparing(pods=(pod(2, **changes),))
    assert workers.why_unusable(seen, SETTINGS, 2) == expected


def test_a_node_that_came_back_takes_no_new_member_at_once_but_keeps_its_own() -> None:
    seen = preparing(
        nodes=nodes(5, n2={"ready_age_seconds": 9.0}, n4={"ready_age_seconds": 9.0}), pods=(pod(2), pod(4))
    )
    assert workers.why_unusable(seen, SETTINGS, 2) == ""
    assert workers.why_unusable(seen, SETTINGS, 4) == "node n4 came back a moment ago"


def test_r25_in_preparing_a_sidecar_that_leaves_probes_unanswered_is_no_member() -> None:
    seen = preparing(networks={"u2": Network(0, 0, 2, False)})
    assert workers.why_unusable(seen, SETTINGS, 2) == "its sidecar on node n2 does not answer"


def test_r29_no_more_members_than_wanted_those_of_the_last_attempt_first() -> None:
    status = preparing_status(workers=(WorkerStatus(0, "Wanted"), *rows(1, 2, 3)))
    seen = preparing(status=status, pods=tuple(pod(i) for i in range(4)), nodes=nodes(), spec=spec(max_workers=3))
    assert [p.worker_id for p in attempts.choose_members(seen, SETTINGS)] == [1, 2, 3]


# ------------------------------------------------------------ budget

SPENT: dict[str, tuple[Budget, Ended, Budget]] = {
    "a crash without a commit": (Budget((), 1, 1), Ended(1, "crash", False), Budget((Crash(1, NOW_TEXT),), 2, 2)),
    "a crash after a commit": (Budget((), 1, 1), Ended(1, "crash", True), Budget((Crash(1, NOW_TEXT),), 0, 0)),
    "a hang is a crash": (Budget(), Ended(1, "hang", False), Budget((Crash(1, NOW_TEXT),), 1, 1)),
    "a node lost is free, but no progress": (Budget((), 1, 1), Ended(1, "node-lost", False), Budget((), 1, 2)),
    "preemption too": (Budget(), Ended(1, "preemption", False), Budget((), 0, 1)),
    "growing is nobody's failure": (Budget((), 1, 1), Ended(1, "grow", False), Budget((), 1, 1)),
}


@pytest.mark.parametrize(("before", "ended", "after"), SPENT.values(), ids=SPENT)
def test_r32_spend(before: Budget, ended: Ended, after: Budget) -> None:
    assert budget.spend(before, ended, now=NOW, policy=POLICY) == after


def crashes(*ages: float) -> Budget:
    return Budget(tuple(Crash(i, clock.rfc3339(NOW - age)) for i, age in enumerate(ages)))


STOPS: dict[str, tuple[Budget, RestartPolicy, str]] = {
    "as many crashes as allowed": (crashes(1, 2, 3, 4, 5), POLICY, ""),
    "one more": (crashes(1, 2, 3, 4, 5, 6), POLICY, "CrashBudgetExceeded"),
    "those before the window do not count": (crashes(1, 2, 3, 4, 5, 3601), POLICY, ""),
    "no crash allowed": (crashes(1), RestartPolicy(max_crashes=0), "CrashBudgetExceeded"),
    "two without progress": (Budget((), 2, 2), POLICY, ""),
    "three without progress": (Budget((), 3, 3), POLICY, "NoProgress"),
    "nine of any cause": (Budget((), 0, 9), POLICY, ""),
    "ten of any cause": (Budget((), 0, 10), POLICY, "NoProgress"),
}


@pytest.mark.parametrize(("spent", "policy", "reason"), STOPS.values(), ids=STOPS)
def test_r32_stop(spent: Budget, policy: RestartPolicy, reason: str) -> None:
    found = budget.stop(spent, now=NOW, policy=policy, settings=SETTINGS)
    assert (found.reason if found else "") == reason


def test_r32_backoff_doubles_from_the_third_attempt_without_a_commit_up_to_five_minutes() -> None:
    waits = [budget.backoff_seconds(Budget((), 0, count), SETTINGS) for count in range(12)]
    assert waits == [0, 0, 0, 5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_b42_the_ledger_and_the_crashes_do_not_grow_without_end() -> None:
    spent, seen = Budget(), observed()
    status = seen.status
    for number in range(500):
        spent = budget.spend(spent, Ended(number, "crash", True), now=NOW, policy=POLICY)
        status = attempts.begin(replace(seen, status=status), SETTINGS, status, Ending("crash", "x" * 5000))
        status = replace(status, attempt=replace(status.attempt, state="Planned"))  # type: ignore[type-var]
    assert (len(spent.crashes), len(status.history)) == (20, 20)
    assert all(len(entry.message) <= 300 for entry in status.history)


# ------------------------------------------------------------ retention

LINE = Branch(((1, 30), (3, 60)), 4, "c3-60")
RETAINED: dict[str, tuple[int, tuple[Any, ...], set[str]]] = {
    "few enough": (3, (info(3, 60), info(4, 70), info(4, 80)), set()),
    "the oldest goes": (2, (info(1, 30), info(4, 70), info(4, 80)), {"c1-30"}),
    "never fewer than two": (1, (info(4, 70), info(4, 80), info(4, 90)), {"c4-70"}),
    "the resume stays": (1, (info(3, 60), info(4, 70), info(4, 80)), set()),
    "off the lineage, before the first commit: the only other way back": (
        1,
        (info(3, 60), info(2, 50), info(3, 90)),
        set(),
    ),
    "off the lineage, after it": (1, (info(3, 60), info(2, 50), info(3, 90), info(4, 70)), {"c2-50", "c3-90"}),
    "order is attempt, then step": (2, (info(1, 30), info(3, 40), info(4, 35)), {"c1-30"}),
    "a stock import is never ours to delete": (
        1,
        (info(0, 5, id=""), info(0, 6), info(4, 70), info(4, 80), info(4, 90)),
        {"c4-70"},
    ),
}


@pytest.mark.parametrize(("keep", "infos", "doomed"), RETAINED.values(), ids=RETAINED)
def test_r13_condemn(keep: int, infos: tuple[Any, ...], doomed: set[str]) -> None:
    assert condemn(KeepLatest(keep), LINE, infos, frozenset()) == doomed


PLACES = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), unique=True, max_size=20)


@given(PLACES, st.integers(0, 5))
def test_r13_whatever_is_there_two_on_the_lineage_and_the_resume_stay(places: list[tuple[int, int]], keep: int) -> None:
    infos = tuple(info(attempt, step) for attempt, step in places)
    line = Branch(((1, 4), (2, 6)), 3, "c2-6")
    left = [i for i in infos if i.id not in condemn(KeepLatest(keep), line, infos, frozenset())]
    on = [
        i
        for i in infos
        if i.attempt == 3 or (i.attempt, i.step) in {(1, s) for s in range(5)} | {(2, s) for s in range(7)}
    ]
    best = sorted(on, key=retention.place)[-max(2, keep) :]
    assert set(best) <= set(left)
    assert [i for i in infos if i.id == "c2-6"] == [i for i in left if i.id == "c2-6"]


def test_r13_nothing_is_condemned_while_preparing_or_before_go() -> None:
    many = tuple(info(1, step) for step in (10, 20, 30))
    status = started_status()
    seen = observed(sidecar=sidecar(gone=False, checkpoints=many), attempt_age_seconds=1.0)
    planned = replace(seen, status=replace(status, attempt=replace(status.attempt, state="Planned")))  # type: ignore[type-var]
    assert decide(planned, SETTINGS).actions == ()
    assert decide(preparing(sidecar=sidecar(checkpoints=many)), SETTINGS).reason == "Preparing"


def test_r13_condemned_ones_and_bad_ones_do_not_count_as_kept() -> None:
    infos = tuple(info(4, step) for step in (70, 80, 90))
    assert condemn(KeepLatest(2), LINE, infos, frozenset({"c4-90"})) == frozenset()


# ------------------------------------------------------------ leaving


def test_r19_a_pod_that_was_only_warned_counts_from_when_we_asked() -> None:
    seen = observed(pods=(pod(0), pod(1), pod(2), pod(3, disruption="PreemptionByScheduler")), leave_age_seconds=10.0)
    assert leaving.deadline(seen, SETTINGS, leaving.leaving_members(seen)) == 15.0
    late = replace(seen, leave_age_seconds=25.0)
    assert leaving.graceful(late, SETTINGS) == Ending(
        "preemption", "worker 3 on node n3 was preempted by the scheduler", 0.0
    )


def test_r19_no_time_is_left_for_a_save_with_a_short_grace() -> None:
    seen = observed(pods=(pod(0), pod(1), pod(2), pod(3, deletion_age_seconds=0.1, deletion_grace_seconds=5.0)))
    assert decide(seen, SETTINGS).reason == "Preparing"


@pytest.mark.parametrize(
    ("joiner", "grows"),
    [
        ({}, True),
        ({"sidecar_age_seconds": 2.9}, False),
        ({"node": "n3"}, False),
        ({"phase": "Pending"}, False),
    ],
    ids=["settled", "not settled yet", "on a suspect node", "still starting"],
)
def test_grow_only_for_a_worker_that_settled(joiner: dict[str, Any], grows: bool) -> None:
    status = started_status((0, 1, 2), workers=(*rows(0, 1, 2), *rows(4, state="Wanted")), next_worker_id=5)
    seen = observed(
        status=status, pods=(pod(0), pod(1), pod(2), pod(4, **joiner)),
        nodes={**nodes(n3={"ready_age_seconds": 5.0}), "n4": node("n4")}, sidecar=sidecar(members=(0, 1, 2)),
    )  # fmt: skip
    assert bool(decide(seen, SETTINGS).actions) is grows


def test_grow_waits_for_another_worker_that_is_about_to_be_ready() -> None:
    status = started_status((0, 1), workers=(*rows(0, 1), *rows(2, 3, state="Wanted")), next_worker_id=4)
    coming = pending(3, node="n3", age_seconds=5.0)
    seen = observed(status=status, pods=(pod(0), pod(1), pod(2), coming), sidecar=sidecar(members=(0, 1)))
    assert decide(seen, SETTINGS).actions == ()
    stuck = replace(seen, pods=(*seen.pods[:3], replace(coming, age_seconds=31.0)))
    assert decide(stuck, SETTINGS).actions != ()


def test_a_grow_that_was_given_up_is_asked_for_again_much_later() -> None:
    status = started_status((0, 1, 2), workers=(*rows(0, 1, 2), *rows(4, state="Wanted")), next_worker_id=5)
    seen = observed(
        status=status, pods=(pod(0), pod(1), pod(2), pod(4)), nodes=nodes(5), sidecar=sidecar(members=(0, 1, 2))
    )
    asked = [bool(decide(replace(seen, leave_age_seconds=age), SETTINGS).actions) for age in (None, 1.0, 239.0, 240.0)]
    assert asked == [True, False, False, True]


def test_times_are_rfc_3339_and_come_back() -> None:
    assert clock.rfc3339(NOW) == NOW_TEXT
    assert clock.since_epoch(NOW_TEXT) == NOW
    assert clock.seconds_between("", NOW) is None


def test_checkpoint_status_keeps_ever() -> None:
    assert attempts.found(CheckpointStatus(ever=True), LINE, ()).ever
