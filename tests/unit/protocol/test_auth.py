"""R22: signatures cover everything that gives a message its meaning."""

import pytest
from everstep_protocol import auth

TOKEN = auth.job_token(b"root key", "job-1")
REQUEST = {
    "method": "POST",
    "path": "/v1/hello",
    "job": "job-1",
    "sender": "pod-a",
    "recipient": "pod-b",
    "nonce": "n" * 32,
    "body": b"{}",
}
ANSWER = {"nonce": "n" * 32, "status": 200, "responder": "pod-b", "body": b"{}"}


def test_each_job_has_its_own_token() -> None:
    assert auth.job_token(b"root key", "job-1") == TOKEN
    assert TOKEN not in (auth.job_token(b"root key", "job-2"), auth.job_token(b"other", "job-1"))


@pytest.mark.parametrize("name", REQUEST)
def test_r22_a_changed_request_does_not_verify(name: str) -> None:
    signature = auth.sign_request(TOKEN, **REQUEST)  # type: ignore[arg-type]
    assert auth.verify(auth.sign_request(TOKEN, **REQUEST), signature)  # type: ignore[arg-type]
    changed = {**REQUEST, name: b"x" if name == "body" else "x"}
    assert not auth.verify(auth.sign_request(TOKEN, **changed), signature)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ANSWER)
def test_r22_an_answer_counts_for_one_question_and_one_pod(name: str) -> None:
    signature = auth.sign_answer(TOKEN, **ANSWER)  # type: ignore[arg-type]
    changed = {**ANSWER, name: {"body": b"x", "status": 500}.get(name, "x")}
    assert not auth.verify(auth.sign_answer(TOKEN, **changed), signature)  # type: ignore[arg-type]


def test_r22_a_stranger_without_the_token_is_refused() -> None:
    forged = auth.sign_request(auth.job_token(b"guess", "job-1"), **REQUEST)  # type: ignore[arg-type]
    assert not auth.verify(auth.sign_request(TOKEN, **REQUEST), forged)  # type: ignore[arg-type]
    for given in (None, "", "é"):
        assert not auth.verify(auth.sign_request(TOKEN, **REQUEST), given)  # type: ignore[arg-type]


def test_parts_cannot_be_shifted_into_each_other() -> None:
    one = auth.sign_request(TOKEN, **{**REQUEST, "sender": "ab", "recipient": "c"})  # type: ignore[arg-type]
    two = auth.sign_request(TOKEN, **{**REQUEST, "sender": "a", "recipient": "bc"})  # type: ignore[arg-type]
    assert one != two


def test_a_request_is_never_an_answer() -> None:
    assert auth.sign_answer("t", nonce="a", status=1, responder="b", body=b"") != auth.sign_request(
        "t", method="a", path="1", job="b", sender="", recipient="", nonce="", body=b""
    )
