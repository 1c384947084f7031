"""R22: signatures cover everything that gives a message its meaning."""

import dataclasses

import pytest
from everstep_protocol import auth

TOKEN = auth.job_token(b"root key", "job-1")
HEAD = auth.RequestHead("POST", "/v1/hello", "job-1", "pod-a", "pod-b", "boot-1", "n" * 32, auth.body_sha256(b"{}"))
ANSWER = {"nonce": "n" * 32, "status": 200, "responder": "pod-b", "body": b"{}"}


def test_each_job_has_its_own_token() -> None:
    assert auth.job_token(b"root key", "job-1") == TOKEN
    assert TOKEN not in (auth.job_token(b"root key", "job-2"), auth.job_token(b"other", "job-1"))


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(auth.RequestHead)])
def test_r22_a_changed_request_does_not_verify(name: str) -> None:
    assert auth.verify(HEAD.signature(TOKEN), HEAD.signature(TOKEN))
    changed = dataclasses.replace(HEAD, **{name: "x"})
    assert not auth.verify(changed.signature(TOKEN), HEAD.signature(TOKEN))


def test_a_head_is_read_from_its_headers() -> None:
    headers = HEAD.headers(TOKEN)
    assert auth.read_head("POST", "/v1/hello", headers) == HEAD
    assert headers[auth.HEADER_SIGNATURE] == HEAD.signature(TOKEN)
    assert auth.read_head("GET", "/", {}) == auth.RequestHead("GET", "/", "", "", "", "", "", "")


def test_each_post_is_new() -> None:
    one, two = (auth.new_post("/v1/ping", b"{}", job="j", sender="a", recipient="b", boot="c") for _ in range(2))
    assert one != two
    assert dataclasses.replace(one, nonce=two.nonce) == two


@pytest.mark.parametrize("name", ANSWER)
def test_r22_an_answer_counts_for_one_question_and_one_pod(name: str) -> None:
    signature = auth.sign_answer(TOKEN, **ANSWER)  # type: ignore[arg-type]
    changed = {**ANSWER, name: {"body": b"x", "status": 500}.get(name, "x")}
    assert not auth.verify(auth.sign_answer(TOKEN, **changed), signature)  # type: ignore[arg-type]


def test_r22_a_stranger_without_the_token_is_refused() -> None:
    forged = HEAD.signature(auth.job_token(b"guess", "job-1"))
    for given in (forged, None, "", "é"):
        assert not auth.verify(HEAD.signature(TOKEN), given)


def test_parts_cannot_be_shifted_into_each_other() -> None:
    one = dataclasses.replace(HEAD, sender="ab", recipient="c")
    two = dataclasses.replace(HEAD, sender="a", recipient="bc")
    assert one.signature(TOKEN) != two.signature(TOKEN)


def test_a_request_is_never_an_answer() -> None:
    head = auth.RequestHead("a", "1", "b", "", "", "", "", "")
    assert auth.sign_answer("t", nonce="a", status=1, responder="b", body=b"") != head.signature("t")


def test_boot_ids_are_those_told_last_and_the_pods_asked_longest_ago_are_forgotten() -> None:
    boots = auth.Boots(largest=2)
    assert boots.of("a") == ""
    boots.learn("a", "1")
    boots.learn("b", "1")
    boots.learn("a", "2")
    assert boots.of("a") == "2"
    boots.learn("c", "1")
    assert [boots.of(uid) for uid in "abc"] == ["2", "", "1"]
