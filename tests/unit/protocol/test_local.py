"""The pod's socket: one line a message, unknown ones are left to newer versions."""

import json
from typing import get_args

import pytest
from everstep_protocol import local
from everstep_protocol.codec import InvalidDocument

EXAMPLES = [
    local.LauncherHello("n", 2, 0),
    local.Stopped(3),
    local.PortChosen(3, 40123),
    local.ProcessExited(3, 1, None, 9, True, False, "Killed\nline \u2028 two"),
    local.Finished(3),
    local.Terminating(25.5),
    local.Activity(3, 7.5),
    local.Stop(3, 0.0),
    local.ChoosePort(3),
    local.Start(3, '{"a": 1}', (0, 2), 4, "10.0.0.1", 40123, ""),
    local.Exit("finished"),
    local.Saved(3, 50, 1),
]


def test_there_is_an_example_of_each() -> None:
    assert {type(message) for message in EXAMPLES} >= set(get_args(local.Message))


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_there_and_back_in_one_line(message: local.Message) -> None:
    line = local.encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert local.decode(line) == message


def test_a_type_of_a_newer_version_is_none() -> None:
    assert local.decode(b'{"type": "Dance", "attempt": 3}\n') is None
    assert local.decode(b"{}\n") is None


@pytest.mark.parametrize(
    "line", [b"", b"x", b"[]", b"1", b'{"type": "Stopped"}', b'{"type": "Stopped", "attempt": "3"}']
)
def test_what_is_no_message_is_said(line: bytes) -> None:
    with pytest.raises(InvalidDocument):
        local.decode(line)


def test_a_field_of_a_newer_version_is_ignored() -> None:
    document = {**json.loads(local.encode(local.Stopped(3))), "new": True}
    assert local.decode(json.dumps(document).encode()) == local.Stopped(3)
