"""The end of a job: what can never work ends it at once; what its pods are told."""

from __future__ import annotations

from everstep_operator.core.decide import decide
from everstep_operator.core.model import AskExit, WriteStatus
from everstep_operator.core.results import clean_up
from unit.core.decisions import failed
from unit.core.jobs import SETTINGS, observed, over, pod, sidecar, started_status


def test_pods_of_a_failed_job_are_told_why_in_few_words() -> None:
    seen = observed(status=failed("NoProgress", "x" * 9000, started_status()), pods=(pod(0),))
    actions, _ = clean_up(seen, SETTINGS)
    assert actions == (AskExit("u0", "10.0.0.0", 1, "NoProgress: " + "x" * 488),)


def test_what_can_never_work_is_not_tried_again() -> None:
    end = over("crash", refused=True, details="everstep: a world of its own")
    (write,) = decide(observed(sidecar=sidecar(over=end)), SETTINGS).actions
    assert isinstance(write, WriteStatus)
    assert (write.status.result, write.status.result_reason) == ("Failed", "WorkerCannotStart")
    assert write.status.result_message == (
        "the command cannot work, and is not tried again. crash happened: everstep: a world of its own"
    )
