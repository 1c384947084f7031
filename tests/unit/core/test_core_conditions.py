"""What is told while nothing ends: refusals of the API server, and pods that do not go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everstep_operator.core.decide import decide
from everstep_operator.core.model import Observed, RefusedAction
from unit.core.cases_ended import COMPLETE
from unit.core.cases_stopping import SUSPENDED
from unit.core.decisions import failed
from unit.core.jobs import SETTINGS, observed, pod, preparing, preparing_status, rows, spec, started_status

REFUSED = RefusedAction("delete pod gpt-w3", "admission webhook guard denied it", 5, 60.0)
AT_REST: dict[str, dict[str, Any]] = {
    "suspended": {"status": SUSPENDED, "spec": spec(suspend=True)},
    "finished": {"status": COMPLETE},
    "failed": {"status": failed("NoProgress", "why", started_status())},
}


def degraded(seen: Observed) -> tuple[str, str, str]:
    (found,) = (c for c in decide(seen, SETTINGS).conditions if c.type == "Degraded")
    return (found.status, found.reason, found.message)


@pytest.mark.parametrize("changes", [{}, *AT_REST.values()], ids=["running", *AT_REST])
def test_what_the_api_server_refuses_is_told_in_its_words_with_a_remedy(changes: dict[str, Any]) -> None:
    seen = observed(**changes, refused_actions=(REFUSED,))
    status, reason, message = degraded(seen)
    assert (status, reason) == ("True", "ApiRefuses")
    assert "delete pod gpt-w3: admission webhook guard denied it" in message
    assert "allow it" in message
    later = replace(seen, refused_actions=(replace(REFUSED, count=99, age_seconds=9e3),))
    assert degraded(later) == (status, reason, message), "stable"


def test_below_min_the_refusal_is_told_beside_who_is_missing() -> None:
    status = preparing_status(workers=(*rows(0), *rows(4, 5, 6, state="Wanted")), next_worker_id=7)
    seen = preparing(status=status, pods=(pod(0),), refused_actions=(replace(REFUSED, what="create pod gpt-w4"),))
    _, reason, message = degraded(seen)
    assert reason == "NotEnoughWorkers"
    assert message.startswith("1 of at least 2 workers can run")
    assert "create pod gpt-w4: admission webhook guard denied it" in message


@pytest.mark.parametrize("changes", AT_REST.values(), ids=AT_REST)
def test_pods_that_stay_after_the_end_are_named_with_their_node(changes: dict[str, Any]) -> None:
    seen = observed(**changes, pods=(pod(2, deletion_age_seconds=150.0, deletion_grace_seconds=30.0),))
    status, reason, message = degraded(seen)
    assert (status, reason) == ("True", "PodsRemain")
    assert "gpt-w2, worker 2 on node n2" in message
    assert "out-of-service" in message
    soon = replace(seen, pods=(pod(2, deletion_age_seconds=149.0, deletion_grace_seconds=30.0),))
    assert degraded(soon)[0] == "False"


def test_pods_of_lost_workers_that_stay_while_the_job_trains_are_no_trouble() -> None:
    seen = observed(pods=(*(pod(i) for i in range(4)), pod(9, deletion_age_seconds=1e6)))
    assert degraded(seen)[0] == "False"
