"""The specification of `decide`: each id is a sentence, each case compares a whole Decision. The tables are in `cases_*`."""

from __future__ import annotations

import pytest
from everstep_operator.core.decide import decide
from everstep_operator.core.model import Decision, Observed, WriteStatus
from unit.core import cases_ended, cases_planned, cases_recovering, cases_running, cases_starting, cases_stopping
from unit.core.jobs import SETTINGS

TABLES = (cases_starting, cases_recovering, cases_planned, cases_running, cases_stopping, cases_ended)
CASES = {name: case for table in TABLES for name, case in table.TABLE.items()}


@pytest.mark.parametrize(("seen", "expected"), CASES.values(), ids=CASES)
def test_decide(seen: Observed, expected: Decision) -> None:
    assert decide(seen, SETTINGS) == expected


@pytest.mark.parametrize(("seen", "expected"), CASES.values(), ids=CASES)
def test_a_status_write_is_the_only_action_of_its_decision(seen: Observed, expected: Decision) -> None:
    actions = decide(seen, SETTINGS).actions
    assert len(actions) == 1 or not any(isinstance(action, WriteStatus) for action in actions)
