"""CL6: what ended an attempt, by the kubelet's own words, and whose budget it spends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everstep_operator.core import endings
from everstep_operator.core.budget import SPENDING
from everstep_operator.core.decide import decide
from everstep_operator.core.model import Observed
from unit.core.jobs import SETTINGS, nodes, observed, over, pod, sidecar

EMPTY_DIR = 'Evicted: Usage of EmptyDir volume "cache" exceeds the limit "1Gi". '
STORAGE = "Evicted: Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. "
CONTAINER = 'Evicted: Container trainer exceeded its local ephemeral storage limit "1Gi". '
PRESSURE = "Evicted: The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi. "
KILLED = {"trainer_end": "OOMKilled", "trainer_end_age_seconds": 1.0}
GONE = over("launcher-gone")


def failed(words: str, **changes: Any) -> Any:
    return pod(1, phase="Failed", trainer_terminated=True, ended_as=words, **changes)


def seen_of(one: Any, **changes: Any) -> Observed:
    return observed(pods=(pod(0), one, pod(2), pod(3)), **changes)


def said(what: Any, *, leaving: bool = False) -> Any:
    answer = sidecar(over=what)
    members = tuple(replace(m, leaving=leaving and m.uid == "u1") for m in answer.members)
    return replace(answer, members=members)


ENDS: dict[str, tuple[Observed, str, str]] = {
    "evicted for its own emptyDir": (seen_of(failed(EMPTY_DIR)), "evicted", 'exceeds the limit "1Gi"'),
    "for its own storage": (seen_of(failed(STORAGE)), "evicted", "raise that limit in the template"),
    "for a container's": (seen_of(failed(CONTAINER)), "evicted", "Container trainer exceeded"),
    "though its peers felt it first": (
        seen_of(failed(EMPTY_DIR), sidecar=said(over("peer-lost"))),
        "evicted",
        "Usage of EmptyDir",
    ),
    "evicted by pressure on the node": (seen_of(failed(PRESSURE)), "drain", "The node was low on resource: memory"),
    "with its warning": (seen_of(failed(PRESSURE, disruption="TerminationByKubelet")), "drain", "low on resource"),
    "ended for another reason": (seen_of(failed("Terminated: Pod was terminated")), "node-lost", "Pod was terminated"),
    "a container killed for memory": (
        seen_of(pod(1, **KILLED), sidecar=said(GONE)),
        "oom",
        "worker 1 on node n1 ran out of memory (OOMKilled): raise its memory limit",
    ),
    "before the coordinator said anything": (seen_of(pod(1, trainer_terminated=True, **KILLED)), "oom", "memory limit"),
    "a trainer killed for memory": (
        seen_of(pod(1), sidecar=said(over("crash", oom=True))),
        "oom",
        "crash happened",
    ),
    "killed for memory in another attempt": (
        seen_of(
            pod(1, trainer_end="OOMKilled", trainer_end_age_seconds=101.0),
            sidecar=said(over("launcher-gone", age_seconds=4.0)),
        ),
        "crash",
        "launcher-gone happened",
    ),
    "a container that ended by itself": (
        seen_of(pod(1, trainer_end="Error", trainer_end_age_seconds=1.0), sidecar=said(GONE)),
        "crash",
        "launcher-gone happened",
    ),
    "a sandbox that died": (
        seen_of(pod(1, ip="10.0.0.99"), sidecar=said(GONE, leaving=True)),
        "pod-restart",
        "the pod's sandbox died, and the kubelet starts its containers anew",
    ),
    "and has no address yet": (
        seen_of(pod(1, ip=""), sidecar=said(over("launcher-gone", age_seconds=4.0), leaving=True)),
        "pod-restart",
        "the containers of worker 1 on node n1 were stopped, and nobody deletes the pod",
    ),
    "with its whole node": (
        seen_of(pod(1, ip="10.0.0.99"), nodes=nodes(n1={"ready_age_seconds": 5.0})),
        "node-lost",
        "its node was rebooted",
    ),
    "deleted": (seen_of(pod(1, deletion_age_seconds=0.1), sidecar=said(GONE, leaving=True)), "drain", "told to leave"),
}


@pytest.mark.parametrize(("seen", "cause", "words"), ENDS.values(), ids=ENDS)
def test_the_cause_and_its_words(seen: Observed, cause: str, words: str) -> None:
    ending = endings.find(seen, SETTINGS)
    assert ending is not None
    assert (ending.cause, words in ending.message) == (cause, True), ending.message


UNEXPLAINED = {
    "a container that vanished": seen_of(pod(1), sidecar=said(GONE)),
    "a launcher that was told to end": seen_of(pod(1), sidecar=said(GONE, leaving=True)),
    "broken connections": seen_of(pod(1), sidecar=said(over("peer-lost"))),
}


@pytest.mark.parametrize("seen", UNEXPLAINED.values(), ids=UNEXPLAINED)
def test_the_kubelet_s_word_is_waited_for_but_not_for_ever(seen: Observed) -> None:
    assert endings.find(seen, SETTINGS) is None
    assert seen.sidecar is not None
    assert seen.sidecar.over is not None
    late = replace(seen.sidecar.over, age_seconds=SETTINGS.victim_wait)
    assert endings.find(replace(seen, sidecar=replace(seen.sidecar, over=late)), SETTINGS) is not None


@pytest.mark.parametrize(("seen", "cause", "words"), ENDS.values(), ids=ENDS)
def test_what_a_job_does_to_itself_spends_its_budget(seen: Observed, cause: str, words: str) -> None:
    (write,) = decide(seen, SETTINGS).actions
    assert len(write.status.budget.crashes) == (cause in ("oom", "evicted", "crash"))  # type: ignore[union-attr]
    assert (cause in SPENDING) == (cause in ("oom", "evicted", "crash"))
