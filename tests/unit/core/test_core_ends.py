"""The end of a job: what its pods are told."""

from __future__ import annotations

from everstep_operator.core.model import AskExit
from everstep_operator.core.results import clean_up
from unit.core.decisions import failed
from unit.core.jobs import SETTINGS, observed, pod, started_status


def test_pods_of_a_failed_job_are_told_why_in_few_words() -> None:
    seen = observed(status=failed("NoProgress", "x" * 9000, started_status()), pods=(pod(0),))
    actions, _ = clean_up(seen, SETTINGS)
    assert actions == (AskExit("u0", "10.0.0.0", 1, "NoProgress: " + "x" * 488),)
