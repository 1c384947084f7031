"""ST17: texts of the API server, the scheduler and the kubelet as they really are; only what they say counts, not their numbers."""

from __future__ import annotations

from typing import Any

import pytest
from everstep_operator.cluster.records import trim_pod
from everstep_operator.cluster.stable import stable_among, stable_text
from unit.operator.test_records import RUNNING, pod

QUOTA = (
    'pods "gpt-w3" is forbidden: exceeded quota: team, requested: pods=1,requests.cpu={}, '
    "used: pods={},requests.cpu=15500m, limited: pods=4,requests.cpu=16"
)
SCHEDULER = (
    "0/{0} nodes are available: 1 node(s) had untolerated taint {{node.kubernetes.io/unreachable: }}, {1} Insufficient cpu. "
    "preemption: 0/{0} nodes are available: {1} No preemption victims found for incoming pod."
)
KUBELET = "back-off {} restarting failed container=trainer pod=gpt-w3_team(0c1f3f4e-8f0e-4f7a-9d6b-3f7a2b1c0d9e)"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (QUOTA.format("2", "4"), QUOTA.format("1500m", "3")),
        (SCHEDULER.format(4, 3), SCHEDULER.format(12, 11)),
        (KUBELET.format("10s"), KUBELET.format("1m20s")),
        ("/ckpt: 3.2Gi of 40Gi left", "/ckpt: 1536Mi of 40Gi left"),
    ],
)
def test_st17_other_numbers_are_no_news(before: str, after: str) -> None:
    assert before != after
    assert stable_text(before, after) == before
    assert stable_among(["something else", before], after) == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('pods "gpt-w3" is forbidden', 'pods "gpt-w4" is forbidden'),
        ("worker 3 does not see /ckpt", "worker 4 does not see /ckpt"),
        ("node ip-10-0-0-7 is gone", "node ip-10-0-0-8 is gone"),
        ("dial tcp 10.0.0.1:443: refused", "dial tcp 10.0.0.2:443: refused"),
        ("step_40 is broken", "step_50 is broken"),
        ("exceeded quota: team", "exceeded quota: other"),
        ("", "0/4 nodes are available"),
    ],
)
def test_st17_another_name_is_news(before: str, after: str) -> None:
    assert stable_text(before, after) == after


def test_st17_a_pod_that_waits_keeps_its_words() -> None:
    def waiting(nodes: int, pause: str) -> Any:
        condition = {"type": "PodScheduled", "status": "False", "message": SCHEDULER.format(nodes, nodes - 1)}
        state = {"state": {"waiting": {"reason": "CreateContainerError", "message": KUBELET.format(pause)}}}
        return pod(RUNNING, state, conditions=[condition])

    first = trim_pod(waiting(4, "10s"), None, 0.0)
    second = trim_pod(waiting(7, "20s"), first, 1.0)
    assert (second.view.unschedulable, second.view.hindrance) == (first.view.unschedulable, first.view.hindrance)
    assert trim_pod(pod(), second, 2.0).view.hindrance is None


def test_st17_a_long_text_is_no_burden() -> None:
    assert stable_text("1" * 100_000, "1a" * 100_000 + "-") != ""
