"""What a pod's trainers say of saves that failed in themselves, read from where anybody in their container may write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from everstep_protocol import codec, names, records
from everstep_protocol.messages import Trouble
from everstep_sidecar import unsaved

ATTEMPT = 7


def say(memory: Path, local_rank: int, message: str, *, attempt: int = ATTEMPT, since_ns: int = 5) -> Path:
    path = memory / f"{names.UNSAVED_PREFIX}{local_rank}"
    path.write_text(codec.dumps(records.Unsaved(attempt, 20, "StateRefused", message, since_ns)))
    return path


def test_the_oldest_of_a_pods_ranks_is_told(tmp_path: Path) -> None:
    assert unsaved.failure(tmp_path, ATTEMPT, 2, now_ns=10) is None
    say(tmp_path, 1, "second", since_ns=2_000_000_000)
    say(tmp_path, 0, "first", since_ns=1_000_000_000)
    found = unsaved.failure(tmp_path, ATTEMPT, 2, now_ns=3_500_000_000)
    assert found == Trouble("StateRefused", "first", 2.5)


@pytest.mark.parametrize(
    "which", ["another attempt", "another rank", "damaged", "too large", "a link", "a pipe", "gone"]
)
def test_what_is_not_a_note_of_this_attempt_says_nothing(tmp_path: Path, which: str) -> None:
    path = say(
        tmp_path, 0, "x" * (20_000 if which == "too large" else 1), attempt=6 if which == "another attempt" else 7
    )
    if which == "another rank":
        path.rename(tmp_path / f"{names.UNSAVED_PREFIX}3")
    if which == "damaged":
        path.write_text(path.read_text()[:-9])
    if which == "a link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    if which in ("a pipe", "gone"):
        path.unlink()
    if which == "a pipe":
        os.mkfifo(path)
    assert unsaved.failure(tmp_path, ATTEMPT, 2, now_ns=10) is None
