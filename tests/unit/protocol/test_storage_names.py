"""Names on storage: made and read in one place; every other name is nobody's (B02)."""

import pytest
from everstep_protocol import storage
from hypothesis import given
from hypothesis import strategies as st

numbers = st.integers(0, 10**12)


@given(numbers, numbers)
def test_what_is_made_can_be_read(step: int, attempt: int) -> None:
    assert storage.parse_step_name(storage.step_name(step)) == step
    assert storage.parse_step_name(storage.step_name_of_attempt(step, attempt)) == step
    assert storage.parse_temporary_name(storage.temporary_name(step, attempt)) == (step, attempt)
    assert storage.parse_attempt_name(storage.attempt_name(attempt)) == attempt
    assert storage.parse_step_name(storage.temporary_name(step, attempt)) is None
    assert storage.parse_temporary_name(storage.step_name(step)) is None


OTHERS = """
best step_12a step_-5 step_1e3 Step_7 step_ step_1.a step_600.tmp xstep_1 step_٣ step_1.tmp-2 .trash-step_1 step_1.a2.a3
"""


@pytest.mark.parametrize("name", [*OTHERS.split(), "step_1 ", "step_1\n", ""])
def test_b02_other_names_are_no_checkpoints(name: str) -> None:
    assert storage.parse_step_name(name) is None


@pytest.mark.parametrize("name", ["7", "007", "0007x", "-0001", "fence", "0007.tmp", "٠٠٠٧", ""])
def test_other_names_are_no_attempts(name: str) -> None:
    assert storage.parse_attempt_name(name) is None


def test_attempts_beyond_9999_still_parse() -> None:
    assert storage.parse_attempt_name("12345") == 12345


def test_data_files_belong_to_one_rank() -> None:
    assert storage.is_data_name("__3_0.distcp", 3)
    assert storage.is_data_name("__3_12.distcp", 3)
    for name in (
        "__13_0.distcp",
        "__3_0.distcp.tmp",
        "__3_x.distcp",
        "a/__3_0.distcp",
        "__3_0xdistcp",
        "__3_0.distcp\n",
    ):
        assert not storage.is_data_name(name, 3)
