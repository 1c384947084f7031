"""R20, R25, R29: which ids and pods a job should have, and which can be members."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everstep_operator.core import attempts, pods, workers
from everstep_operator.core.decide import decide
from everstep_operator.core.model import (
    AskLeave,
    DeletePod,
    Doubt,
    Network,
    Observed,
    Probe,
    WorkerStatus,
)
from unit.core.jobs import (
    SETTINGS,
    nodes,
    observed,
    over,
    pending,
    pod,
    preparing,
    preparing_status,
    rows,
    sidecar,
    spec,
    started_status,
)


def settled(**changes: Any) -> tuple[tuple[tuple[int, str], ...], int]:
    seen = preparing(**changes)
    status = workers.settle(seen, SETTINGS, seen.status)
    return tuple((row.id, row.state) for row in status.workers), status.next_worker_id


NO_N2 = {name: node for name, node in nodes().items() if name != "n2"}
NO_N3 = {name: node for name, node in nodes().items() if name != "n3"}
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
    "pending because of a node that is gone for good: another id": (
        {"pods": (pod(0), pod(1), pod(2), pending(4, avoid=("n3",))), "nodes": NO_N3, "gone_nodes": frozenset({"n3"})},
        ((0, "Joined"), (1, "Joined"), (2, "Joined"), (5, "Wanted")),
    ),
    "pending because of a node that came back a moment ago: it waits": (
        {
            "pods": (pod(0), pod(1), pod(2), pending(4, avoid=("n3",))),
            "nodes": nodes(n3={"ready_age_seconds": 1.0}),
        },
        ((0, "Joined"), (1, "Joined"), (2, "Joined"), (4, "Wanted")),
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
    seen = observed(nodes=nodes(n3={"unreachable": True}), networks={"u3": Network(0, 0, 2, False)})
    assert decide(seen, SETTINGS).actions == ()
    touched = workers.settle(seen, SETTINGS, seen.status)
    assert [row.state for row in touched.workers] == ["Joined", "Joined", "Joined", "Lost", "Wanted"]


BAD = {"unreachable": True}
AVOIDED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "where a worker was lost and its pod is": ({"nodes": nodes()}, ("n3",)),
    "and where it was, while that node is bad": ({"pods": (pod(0), pod(1), pod(2)), "nodes": nodes(n3=BAD)}, ("n3",)),
    "but not when it is well again": ({"pods": (pod(0), pod(1), pod(2)), "nodes": nodes()}, ()),
    "nor when it is gone": ({"nodes": NO_N3}, ()),
    "nor where its pod has ended": ({"pods": (pod(0), pod(1), pod(2), pod(3, phase="Failed")), "nodes": nodes()}, ()),
    "where a pod may not be counted on": ({"nodes": nodes(n1=BAD)}, ("n1", "n3")),
    "no other node of the cluster": ({"nodes": nodes(9, n7=BAD, n8={"ready_age_seconds": 1.0})}, ("n3",)),
}


@pytest.mark.parametrize(("changes", "expected"), AVOIDED.values(), ids=AVOIDED)
def test_new_pods_keep_off_the_nodes_where_this_job_lost_a_worker(
    changes: dict[str, Any], expected: tuple[str, ...]
) -> None:
    seen = preparing(**{"pods": tuple(pod(i) for i in range(4)), **changes})
    assert pods.avoided_nodes(seen) == expected
    assert {order.avoid for order in workers.creations(seen, SETTINGS)} == {expected}


def test_a_pod_names_no_more_than_50_nodes_that_it_keeps_off() -> None:
    lost = tuple(range(60))
    status = preparing_status(workers=(*rows(*lost, state="Lost"), *rows(60, state="Wanted")), next_worker_id=61)
    seen = preparing(status=status, pods=tuple(pod(i) for i in lost), nodes=nodes(60))
    (order,) = workers.creations(seen, SETTINGS)
    assert order.avoid == pods.avoided_nodes(seen)[:50]
    assert len(pods.avoided_nodes(seen)) == 60


SILENCE: dict[str, tuple[dict[str, Any], bool]] = {
    "K alone": ({}, False),
    "K and N": ({"networks": {"u2": Network(0, 0, 2, False)}}, True),
    "N alone": ({"networks": {"u2": Network(0, 0, 2, False)}, "nodes": nodes()}, False),
    "K and a probe that failed once": ({"networks": {"u2": Network(0, 0, 1, False)}}, False),
    "K for as long as Kubernetes waits": ({"nodes": nodes(n2={"lease_age_seconds": 300.0})}, True),
    "K nearly as long": ({"nodes": nodes(n2={"lease_age_seconds": 299.0})}, False),
    "out of service": ({"nodes": nodes(n2={"out_of_service": True})}, True),
    "gone, said a GET": ({"nodes": NO_N2, "gone_nodes": frozenset({"n2"})}, True),
    "not in the cache": ({"nodes": NO_N2}, False),
    "we doubt ourselves": (
        {"networks": {"u2": Network(0, 0, 2, False)}, "doubt": Doubt(True, False, 0.0, 0.0)},
        False,
    ),
}


@pytest.mark.parametrize(("changes", "is_given_up"), SILENCE.values(), ids=SILENCE)
def test_r25_while_preparing_k_alone_gives_nobody_up(changes: dict[str, Any], is_given_up: bool) -> None:
    seen = preparing(**{"nodes": nodes(n2={"unreachable": True}), "pods": tuple(pod(i) for i in range(4)), **changes})
    rows_after = {row.id: row.state for row in workers.settle(seen, SETTINGS, seen.status).workers}
    assert (rows_after[2] == "Lost") is is_given_up


def test_r25_who_is_on_a_silent_node_is_no_member_and_is_probed() -> None:
    seen = preparing(nodes=nodes(n2={"unreachable": True}), pods=tuple(pod(i) for i in range(4)))
    decision = decide(seen, SETTINGS)
    assert Probe("u2", "10.0.0.2") in decision.actions
    assert [p.worker_id for p in workers.usable(seen, SETTINGS)] == [0, 1]
    running = observed(
        status=started_status((0, 1, 3), workers=(*rows(0, 1, 3), *rows(2, state="Wanted"))),
        nodes=nodes(n2={"unreachable": True}, n3={"unreachable": True}),
    )
    assert probed(running) == ["u2", "u0", "u1"], "members are the follower's, and witnesses here"


def probed(seen: Observed) -> list[str]:
    return [action.uid for action in decide(seen, SETTINGS).actions if isinstance(action, Probe)]


def test_r26_with_whom_a_silent_kubelets_pod_does_not_answer_a_few_others_are_asked_too() -> None:
    """While too few can run nobody is polled, and an operator that reaches nobody believes nothing."""
    status = preparing_status(workers=rows(*range(6)))
    seen = preparing(status=status, pods=tuple(pod(i) for i in range(6)), nodes=nodes(6), spec=spec(max_workers=6))
    assert probed(seen) == [], "nobody is in question"
    silent = replace(seen, nodes=nodes(6, n1={"unreachable": True}, n4={"unreachable": True}))
    assert probed(silent) == ["u1", "u4", "u0", "u2", "u3"], "three others are enough"
    gone = replace(silent, nodes=nodes(6, n1={"out_of_service": True}, n4={"out_of_service": True}))
    assert probed(gone) == [], "they are given up already"


def test_r21_a_pod_on_a_node_that_the_cache_does_not_show_is_not_forced() -> None:
    status = started_status((0, 1, 2), workers=(*rows(0, 1, 2), *rows(4, state="Lost")), next_worker_id=5)
    seen = observed(status=status, spec=spec(max_workers=3), pods=(pod(0), pod(1), pod(2), pod(4, node="n9")))
    assert decide(seen, SETTINGS).actions == (DeletePod("gpt-w4", "u4", "7"),)
    gone = decide(replace(seen, gone_nodes=frozenset({"n9"})), SETTINGS)
    assert gone.actions == (DeletePod("gpt-w4", "u4", "7", force=True),)


def test_r25_a_pod_on_the_node_of_a_lost_worker_is_no_member_although_its_lease_is_fresh() -> None:
    status = preparing_status(workers=(*rows(0, 1, 2), *rows(3, state="Lost"), *rows(4, state="Wanted")))
    seen = preparing(status=status, pods=(*(pod(i) for i in range(4)), pod(4, node="n3")), nodes=nodes())
    assert pods.suspect_nodes(seen, SETTINGS) == ("n3",)
    assert [p.worker_id for p in workers.usable(seen, SETTINGS)] == [0, 1, 2]


UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "runs": ({}, ""),
    "no sidecar": ({"sidecar_running": False}, "it is starting on node n2; look at its events if it stays so"),
    "no address": ({"ip": ""}, "it is starting on node n2; look at its events if it stays so"),
    "not running": ({"phase": "Pending"}, "it is starting on node n2; look at its events if it stays so"),
    "no node": ({"phase": "Pending", "node": ""}, "it is being scheduled"),
    "trainer container ended": (
        {"trainer_terminated": True},
        "its trainer container on node n2 ended and is being restarted; look at its last output",
    ),
    "told to leave": ({"disruption": "EvictionByEvictionAPI"}, "its pod is being deleted"),
    "ended": ({"phase": "Succeeded"}, "its pod ended (Succeeded)"),
    "silent kubelet": ({"node": "n3"}, f"node n3 does not answer; {workers.REPAIR}"),
    "node gone": ({"node": "n8"}, f"node n8 does not answer; {workers.REPAIR}"),
    "node not known": ({"node": "n7"}, "node n7 is not known to the operator yet; look whether it may list nodes"),
}


@pytest.mark.parametrize(("changes", "expected"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_worker_that_cannot_be_a_member_says_why(changes: dict[str, Any], expected: str) -> None:
    seen = preparing(pods=(pod(2, **changes),), gone_nodes=frozenset({"n8"}))
    assert workers.why_unusable(seen, SETTINGS, 2) == expected


def test_a_node_that_came_back_takes_no_new_member_at_once_but_keeps_its_own() -> None:
    seen = preparing(
        nodes=nodes(5, n2={"ready_age_seconds": 9.0}, n4={"ready_age_seconds": 9.0}), pods=(pod(2), pod(4))
    )
    assert workers.why_unusable(seen, SETTINGS, 2) == ""
    assert workers.why_unusable(seen, SETTINGS, 4) == "node n4 came back a moment ago"


def test_r25_in_preparing_a_sidecar_that_leaves_probes_unanswered_is_no_member() -> None:
    seen = preparing(networks={"u2": Network(0, 0, 2, False)})
    why = "its sidecar on node n2 does not answer; look at that container and at the network to it"
    assert workers.why_unusable(seen, SETTINGS, 2) == why


def test_r29_no_more_members_than_wanted_those_of_the_last_attempt_first() -> None:
    status = preparing_status(workers=(WorkerStatus(0, "Wanted"), *rows(1, 2, 3)))
    seen = preparing(status=status, pods=tuple(pod(i) for i in range(4)), nodes=nodes(), spec=spec(max_workers=3))
    assert [p.worker_id for p in attempts.choose_members(seen, SETTINGS)] == [1, 2, 3]


def test_r29_a_plan_is_of_one_template() -> None:
    there = (*(pod(i) for i in range(3)), pod(4, template_hash="t2", plan_attempt=0))
    seen = preparing(pods=there, spec=spec(template_hash="t2"), nodes=nodes(5))
    assert [
        p.worker_id for p in workers.usable(replace(seen, status=workers.settle(seen, SETTINGS, seen.status)), SETTINGS)
    ] == [4]
    after = workers.settle(seen, SETTINGS, seen.status)
    assert [(row.id, row.state) for row in after.workers] == [
        (0, "Leaving"), (1, "Leaving"), (2, "Leaving"), (4, "Wanted"), (5, "Wanted"), (6, "Wanted"), (7, "Wanted"),
    ]  # fmt: skip
    decision = decide(replace(seen, status=after), SETTINGS)
    assert {action.name for action in decision.actions if isinstance(action, DeletePod)} == {
        "gpt-w0",
        "gpt-w1",
        "gpt-w2",
    }


def test_r29_a_running_attempt_is_stopped_for_a_template_that_was_edited_unseen() -> None:
    seen = observed(spec=spec(template_hash="t2"))
    (ask,) = [action for action in decide(seen, SETTINGS).actions if isinstance(action, AskLeave)]
    assert ask.purpose == "change"
    told = next(c for c in decide(seen, SETTINGS).conditions if c.type == "Degraded")
    assert (told.status, told.reason) == ("True", "OldTemplate")
    stopped = observed(spec=spec(template_hash="t2"), sidecar=sidecar(over=over("stopped", step=40)))
    (write,) = decide(stopped, SETTINGS).actions
    assert write.status.attempt.cause == "template"  # type: ignore[union-attr]
    assert {row.state for row in write.status.workers if row.id < 4} == {"Leaving"}  # type: ignore[union-attr]


def test_r29_new_pods_have_the_image_of_those_that_are_there() -> None:
    old = {"image": "everstep:1"}
    gone = (pod(1, **old, deletion_age_seconds=1.0), pod(2, **old, phase="Failed"), pod(3, **old))
    wanted = {"status": preparing_status(workers=(*rows(0, 1, 2), *rows(3, state="Lost"), *rows(4, state="Wanted")))}
    (order,) = workers.creations(preparing(pods=(pod(0, **old), *gone), **wanted), SETTINGS)
    assert order.image == "everstep:1"
    (order,) = workers.creations(preparing(pods=gone, **wanted), SETTINGS)
    assert order.image == "", "nobody is left whose version it must have"
