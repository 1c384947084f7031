"""JSON and back: strict, canonical, every problem with its path."""

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from everstep_protocol import codec
from everstep_protocol.codec import InvalidDocument
from everstep_protocol.messages import PollRequest
from hypothesis import given
from hypothesis import strategies as st


@dataclass(frozen=True)
class Inner:
    pod_uid: str
    ranks: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class Outer:
    job_uid: str
    xxh3_128: str
    pairs: tuple[tuple[int, int], ...]
    inner: Inner | None
    kind: Literal["a", "b"] = "a"
    nonces: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    on: bool = False
    anything: Any = None


inners = st.builds(Inner, st.text(), st.tuples(st.integers(), st.integers()))
outers = st.builds(
    Outer,
    st.text(),
    st.text(),
    st.lists(st.tuples(st.integers(), st.integers())).map(tuple),
    st.none() | inners,
    st.sampled_from(["a", "b"]),
    st.dictionaries(st.text(), st.text()),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
)


@given(outers)
def test_there_and_back(value: Outer) -> None:
    assert codec.loads(Outer, codec.dumps(value)) == value
    assert codec.dumps(codec.loads(Outer, codec.dumps(value))) == codec.dumps(value)


def test_names_are_camel_case_with_acronyms() -> None:
    assert codec.to_json(Outer("j", "h", ((1, 2),), Inner("p"))) == {
        "jobUID": "j",
        "xxh3_128": "h",
        "pairs": [[1, 2]],
        "inner": {"podUID": "p", "ranks": [0, 1]},
        "kind": "a",
        "nonces": {},
        "seconds": 0.0,
        "on": False,
        "anything": None,
    }


def test_all_problems_are_told_at_once_with_their_paths() -> None:
    document = {
        "jobUID": 1,
        "pairs": [[1, True], [1], "x"],
        "inner": {"ranks": {}},
        "kind": "c",
        "on": 1,
        "nonces": {"k": 2},
    }
    with pytest.raises(InvalidDocument) as caught:
        codec.from_json(Outer, document)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "jobUID",
        "xxh3_128",
        "pairs[0][1]",
        "pairs[1]",
        "pairs[2]",
        "inner.podUID",
        "inner.ranks",
        "kind",
        "nonces.k",
        "on",
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "1", '"x"', "[" * 100_000, b"\xff"])
def test_what_is_no_object_is_an_invalid_document(text: str | bytes) -> None:
    with pytest.raises(InvalidDocument):
        codec.loads(Inner, text)


def test_unknown_keys_are_left_to_newer_writers_and_whole_floats_are_floats() -> None:
    outer = codec.from_json(Outer, {"jobUID": "j", "xxh3_128": "", "pairs": [], "inner": None, "new": 1, "seconds": 3})
    assert type(outer.seconds) is float


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400])
def test_a_number_that_no_limit_knows_is_refused(text: str) -> None:
    with pytest.raises(InvalidDocument, match="waitSeconds: expected finite number"):
        codec.loads(PollRequest, f'{{"version": null, "waitSeconds": {text}, "attempt": 1}}')


def test_equal_values_have_one_digest() -> None:
    assert codec.digest({"a": 1, "b": [2]}) == codec.digest({"b": [2], "a": 1}) != codec.digest({"a": 1, "b": [3]})
