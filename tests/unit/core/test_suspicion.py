"""R24-R27: who is lost, as a table over K, N, T, C and progress; and where each signal comes from."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from everstep_operator.core import pods, suspicion
from everstep_operator.core.model import Doubt, Network
from everstep_operator.core.suspicion import Evidence, is_lost
from unit.core.jobs import SETTINGS, SILENT, node, nodes, observed, pod, sidecar, started_status, training


@pytest.mark.parametrize(("k", "n", "t"), list(product((False, True), repeat=3)))
def test_r25_lost_is_k_and_n_or_n_and_t(k: bool, n: bool, t: bool) -> None:
    signals = "".join(name for name, is_on in zip("KNT", (k, n, t), strict=True) if is_on)
    assert is_lost(Evidence(k, n, t)) is (signals in ("KN", "NT", "KNT"))


@pytest.mark.parametrize(("k", "n", "t", "alive"), list(product((False, True), repeat=4)))
def test_r25_conclusive_is_enough_whatever_else(k: bool, n: bool, t: bool, alive: bool) -> None:
    assert is_lost(Evidence(k, n, t, "gone", alive))


@pytest.mark.parametrize(("k", "n", "t"), list(product((False, True), repeat=3)))
def test_r24_progress_clears_everything_that_is_not_conclusive(k: bool, n: bool, t: bool) -> None:
    assert not is_lost(Evidence(k, n, t, alive=True))


def stuck(**changes: Any) -> Any:
    """The coordinator reports no step for 4 s."""
    answer = sidecar(training=training(age_seconds=4.0))
    return observed(**{"sidecar": answer, "training_age_seconds": 4.0, "networks": {"u3": SILENT}, **changes})


def ids(seen: Any) -> list[int]:
    return [loss.id for loss in suspicion.losses(seen, SETTINGS)]


LATE = Doubt(True, True, 5.0, 0.0)
K_ON_N3 = nodes(n3={"lease_age_seconds": 20.0})
UNREACHABLE_N3 = nodes(n3={"unreachable": True})
NOT_TO_BE_FOUND = {f"u{i}": Network(0, 0, 2, False) for i in range(4)}

CASES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "N and T": ({}, [3]),
    "T alone is no loss": ({"networks": {}}, []),
    "N alone, the step advances": ({"training_age_seconds": 0.2, "sidecar": sidecar()}, []),
    "N needs two failed probes": ({"networks": {"u3": Network(3, 3, 1, False)}}, []),
    "N needs most peers": ({"networks": {"u3": Network(1, 3, 2, False)}}, []),
    "half of the peers are not most": ({"networks": {"u3": Network(1, 2, 2, False)}}, []),
    "N needs peers that were asked": ({"networks": {"u3": Network(0, 0, 2, False)}}, []),
    "two at once: the dead do not witness": (
        {"networks": {"u2": Network(1, 3, 2, False), "u3": Network(2, 3, 2, False)}},
        [3],
    ),
    "three at once, one witness": ({"networks": {f"u{i}": Network(1, 3, 2, False) for i in (1, 2, 3)}}, [1, 2, 3]),
    "R26 the sidecar's loop was late": ({"doubt": Doubt(True, True, 0.0, 5.0)}, []),
    "R26 our loop was late": ({"doubt": LATE}, []),
    "R26 the API did not answer": ({"doubt": Doubt(True, False, 0.0, 0.0)}, []),
    "R26 we saw no other node": ({"doubt": Doubt(False, True, 0.0, 0.0)}, []),
    "R26 we saw nobody, but the API server gave the node up": (
        {"doubt": Doubt(False, True, 0.0, 0.0), "nodes": UNREACHABLE_N3},
        [3],
    ),
    "R26 the API server gave up most nodes: it is not the nodes": (
        {"doubt": Doubt(False, True, 0.0, 0.0), "nodes": nodes(**{f"n{i}": {"unreachable": True} for i in (1, 2, 3)})},
        [],
    ),
    "everybody silent, control plane well, some node answers": (
        {"networks": NOT_TO_BE_FOUND, "sidecar_age_seconds": 9.0, "sidecar": None, "nodes": K_ON_N3},
        [3],
    ),
    "K and N without steps (a script without the library)": (
        {"sidecar": sidecar(training=training(-1, library=False, phase="none")), "nodes": K_ON_N3},
        [3],
    ),
    "N alone without steps": ({"sidecar": sidecar(training=training(-1, library=False, phase="none"))}, []),
    "K and N, but a step was finished just now": (
        {"sidecar": sidecar(), "training_age_seconds": 0.2, "nodes": K_ON_N3},
        [],
    ),
    "K and N, the last step is an old story": (
        {"sidecar": sidecar(), "sidecar_age_seconds": 9.0, "training_age_seconds": 0.2, "nodes": K_ON_N3},
        [3],
    ),
    "slow steps: three times the usual counts": (
        {"sidecar": sidecar(training=training(age_seconds=4.0, usual_seconds=2.0))},
        [],
    ),
    "node object gone": ({"networks": {}, "nodes": nodes(3), "gone_nodes": frozenset({"n3"})}, [3]),
    "the node is not in the cache, and nobody asked yet": ({"networks": {}, "nodes": nodes(3)}, []),
    "the node was gone and is there again": ({"networks": {}, "gone_nodes": frozenset({"n3"})}, []),
    "out of service": ({"networks": {}, "nodes": nodes(n3={"out_of_service": True})}, [3]),
    "pod gone": ({"networks": {}, "pods": (pod(0), pod(1), pod(2)), "gone_pods": frozenset({"u3"})}, [3]),
    "the pod is not in the cache, and nobody asked yet": ({"networks": {}, "pods": (pod(0), pod(1), pod(2))}, []),
    "pod failed": ({"networks": {}, "pods": (pod(0), pod(1), pod(2), pod(3, phase="Failed"))}, [3]),
    "R22 another pod has its address": ({"networks": {"u3": Network(0, 3, 0, True)}}, [3]),
    "R22 same UID, another address": ({"networks": {}, "pods": (pod(0), pod(1), pod(2), pod(3, ip="10.9.9.9"))}, [3]),
    "trainer container ended": (
        {"networks": {}, "pods": (pod(0), pod(1), pod(2), pod(3, trainer_terminated=True))},
        [3],
    ),
    "R19 being deleted is leaving, not lost": (
        {"networks": {}, "pods": (pod(0), pod(1), pod(2), pod(3, deletion_age_seconds=1.0))},
        [],
    ),
    "conclusive in spite of all doubts": ({"doubt": LATE, "nodes": nodes(3), "gone_nodes": frozenset({"n3"})}, [3]),
}


@pytest.mark.parametrize(("changes", "expected"), CASES.values(), ids=CASES)
def test_r25_losses(changes: dict[str, Any], expected: list[int]) -> None:
    assert ids(stuck(**changes)) == expected


def test_r25_before_go_nothing_trains_that_could_contradict_n() -> None:
    seen = stuck(sidecar=sidecar(gone=False, training=training(-1)), attempt_age_seconds=3.0)
    planned = replace(seen, status=replace(seen.status, attempt=replace(seen.status.attempt, state="Planned")))
    assert ids(planned) == [3]
    assert ids(replace(planned, attempt_age_seconds=2.9)) == []


def alone(**changes: Any) -> Any:
    """A job of one worker, the only one in the cluster: nobody else is there to be reached."""
    return observed(
        status=started_status((0,)),
        pods=(pod(0),),
        sidecar=sidecar(members=(0,)),
        sidecar_age_seconds=25.0,
        networks={"u0": Network(0, 0, 2, False)},
        **{"doubt": Doubt(False, True, 0.0, 0.0), "nodes": nodes(n0={"lease_age_seconds": 20.0}), **changes},
    )


def test_r25_n_of_a_job_of_one_is_our_own_probes_with_the_api_reachable() -> None:
    assert ids(alone()) == [0]
    assert ids(alone(nodes=nodes())) == [], "N alone: it may be us"
    assert ids(alone(doubt=Doubt(False, False, 0.0, 0.0))) == []
    assert ids(alone(nodes=nodes(**{f"n{i}": {"lease_age_seconds": 20.0} for i in range(3)}))) == [], "most kubelets"


def suspected_for(silent_seconds: float, step_age: float, usual: float) -> Any:
    """K, and N since so long; a step was finished so long ago."""
    return stuck(
        sidecar=sidecar(training=training(age_seconds=step_age, usual_seconds=usual)),
        sidecar_age_seconds=0.0,
        training_age_seconds=step_age,
        networks={"u3": replace(SILENT, silent_seconds=silent_seconds)},
        nodes=K_ON_N3,
    )


@pytest.mark.parametrize(
    ("silent", "step_age", "usual", "lost"),
    [
        (18.0, 20.0, 14.0, [3]),
        (18.0, 17.0, 14.0, [3]),
        (18.0, 3.0, 14.0, []),
        (18.0, 0.1, 0.2, []),
        (0.2, 0.3, 0.2, [3]),
    ],
    ids=[
        "the step is older than the suspicion, three times the usual or not",
        "it was in flight when the suspicion began",
        "it was begun and finished since",
        "short steps go on",
        "short steps, just before",
    ],
)
def test_r24_only_a_step_of_after_the_suspicion_clears_it(
    silent: float, step_age: float, usual: float, lost: list[int]
) -> None:
    assert ids(suspected_for(silent, step_age, usual)) == lost


def test_r26_t_of_a_sidecar_that_was_late_is_none_where_nobody_is_left_to_witness() -> None:
    nobody = {"networks": NOT_TO_BE_FOUND, "nodes": nodes()}
    assert ids(stuck(**nobody)) == [0, 1, 2, 3]
    assert ids(stuck(**nobody, doubt=Doubt(True, True, 0.0, 5.0))) == []


@pytest.mark.parametrize(
    ("library", "go_age", "lost"),
    [(True, 2.9, []), (True, 3.0, [3]), (True, 500.0, [3]), (False, 3.0, [3]), (False, 59.0, [3]), (False, 60.0, [])],
)
def test_r25_from_go_to_the_first_step_nothing_trains_that_could_contradict_n(
    library: bool, go_age: float, lost: list[int]
) -> None:
    script = training(-1, library=library, phase="starting", age_seconds=go_age)
    assert ids(stuck(sidecar=sidecar(training=script), training_age_seconds=go_age, go_age_seconds=go_age)) == lost


def test_r25_k_is_half_of_the_leases_own_duration() -> None:
    assert not pods.is_kubelet_silent(observed(), node("n9", lease_age_seconds=19.9))
    assert pods.is_kubelet_silent(observed(), node("n9", lease_age_seconds=20.0))
    assert not pods.is_kubelet_silent(observed(), node("n9", lease_age_seconds=20.0, lease_duration_seconds=60.0))


def test_r26_many_stale_leases_need_the_api_servers_own_word() -> None:
    stale = {f"n{i}": {"lease_age_seconds": 30.0} for i in range(3)}
    seen = observed(nodes=nodes(**stale))
    assert not any(pods.is_kubelet_silent(seen, seen.nodes[name]) for name in seen.nodes)
    told = observed(nodes=nodes(**{name: {**age, "unreachable": True} for name, age in stale.items()}))
    assert [name for name in told.nodes if pods.is_kubelet_silent(told, told.nodes[name])] == ["n0", "n1", "n2"]
